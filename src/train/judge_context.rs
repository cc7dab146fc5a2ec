//! Shared by algorithms that learn from a judge's rewards: questions about a batch's candidates, the reference policy's scores, and
//! rewards as tensors.

use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tch::{Device, Tensor};

use super::batch::Batch;
use super::context::StageContext;
use super::frozen::FrozenEncoder;
use super::judge::{AsyncJudge, JudgedCandidates, OwnedQuestion, PendingRewards, Questions};
use crate::objective::{Component, Group, RGrpoSettings, group_advantages, prefix_cosines};
use souk_ingest::dataset::TrainingPair;
use souk_io::beir::DataFolder;
use souk_io::domain::{Item, normalized_query};
use souk_io::error::{Error, Result};
use souk_nn::collective::Collective;
use souk_reward::{Blend, Reward, RewardComponent, RewardSettings};

/// The judge, the reference policy, and the ids of queries.
pub struct JudgeContext {
    judge: AsyncJudge,
    reference: Option<RefCell<FrozenEncoder>>,
    /// Query ids by normalised text.
    ids: HashMap<String, Arc<str>>,
}

/// Rewards of the candidates `[b, g]` of one process's queries, as tensors.
pub struct GroupRewards {
    reward: Tensor,
    known: Tensor,
    components: Vec<Component>,
}

/// An item as the judge sees it.
struct ItemView {
    id: Arc<str>,
    text: Arc<str>,
    quality: Option<f32>,
}

impl ItemView {
    fn new(item: Item, text: String) -> Self {
        let quality = item.fields.get("quality").and_then(serde_json::Value::as_f64);
        Self { text: text.into(), id: item.id.into(), quality: quality.map(|quality| quality as f32) }
    }
}

impl GroupRewards {
    /// `rewards` in the order of the candidates, `width` of each query.
    pub fn new(settings: &RewardSettings, rewards: &[Option<Reward>], width: usize, device: Device) -> Self {
        let mut rewards = rewards.to_vec();
        rewards.chunks_mut(width.max(1)).for_each(|group| settings.fuse_group(group));
        let totals: Vec<f32> = rewards.iter().map(|reward| reward.map_or(0.0, |reward| reward.total)).collect();
        let known: Vec<bool> = rewards.iter().map(Option::is_some).collect();
        let shape = [(rewards.len() / width.max(1)) as i64, width as i64];
        let tensor = |x: Tensor| x.view(shape).to_device(device);
        let component = |(component, weight): (RewardComponent, f32)| {
            let values = rewards.iter().map(|reward| reward.map_or(0.0, |reward| reward.parts[component as usize]));
            let value = tensor(Tensor::from_slice(&values.collect::<Vec<_>>()));
            Component { weight: f64::from(weight), value }
        };
        let weighted = settings.weights().into_iter().filter(|(_, weight)| *weight > 0.0);
        Self {
            components: weighted.map(component).collect(),
            reward: tensor(Tensor::from_slice(&totals)),
            known: tensor(Tensor::from_slice(&known)),
        }
    }

    /// `[b, g]`
    pub fn advantages(&self, settings: &RGrpoSettings) -> Tensor {
        group_advantages(&self.reward, &self.known, settings.advantage, settings.min_std).values
    }

    pub fn as_group<'a>(
        &'a self,
        candidates: &'a Tensor,
        old: Option<&'a Tensor>,
        reference: Option<&'a Tensor>,
    ) -> Group<'a> {
        Group { candidates, reward: &self.reward, known: &self.known, components: &self.components, old, reference }
    }
}

/// Ids of the queries in `queries.jsonl`, by normalised text.
pub fn query_ids(data: &DataFolder) -> Result<HashMap<String, Arc<str>>> {
    let mut ids = HashMap::new();
    if data.queries_file().exists() {
        for query in data.queries()? {
            let query = query?;
            ids.insert(normalized_query(&query.text), query.id.into());
        }
    }
    Ok(ids)
}

impl JudgeContext {
    /// Reads the ids of `queries.jsonl`, for judges that look queries up by id.
    pub fn new(data: &DataFolder, blend: Blend, reference: Option<FrozenEncoder>) -> Result<Self> {
        let ids = query_ids(data)?;
        Ok(Self { judge: AsyncJudge::new(blend), reference: reference.map(RefCell::new), ids })
    }

    pub fn id(&self) -> &str {
        self.judge.blend().source().id()
    }

    pub fn settings(&self) -> &RewardSettings {
        self.judge.blend().settings()
    }

    /// Starts to judge candidates `[b, g]`, places among the batch's items, of this process's queries.
    pub fn ask(&self, stage: &StageContext, batch: &Batch, candidates: &Tensor) -> Result<PendingRewards> {
        let places = Vec::<Vec<i64>>::try_from(candidates)?;
        let rows: Vec<Vec<u32>> =
            places.iter().map(|places| places.iter().map(|place| batch.items[*place as usize]).collect()).collect();
        self.ask_rows(stage, &batch.pairs[stage.own_pairs(batch)], &rows)
    }

    /// Starts to judge rows of the catalogue, one list of rows for each query.
    pub fn ask_rows(
        &self,
        stage: &StageContext,
        queries: &[TrainingPair],
        rows: &[Vec<u32>],
    ) -> Result<PendingRewards> {
        let mut questions = Questions::default();
        let mut items: HashMap<u32, ItemView> = HashMap::new();
        for (pair, rows) in queries.iter().zip(rows) {
            let query: Arc<str> = pair.query.into();
            let query_id = self.ids.get(&normalized_query(pair.query)).cloned().unwrap_or_default();
            for row in rows {
                questions.add(pair.query_number, *row, || {
                    let view = match items.entry(*row) {
                        Entry::Occupied(view) => view.into_mut(),
                        Entry::Vacant(place) => {
                            let item = stage.catalogue.item(*row)?;
                            let text = stage.catalogue.text_of(&item);
                            place.insert(ItemView::new(item, text))
                        }
                    };
                    let (item_id, item, quality) = (view.id.clone(), view.text.clone(), view.quality);
                    let (query_id, query) = (query_id.clone(), query.clone());
                    Ok(OwnedQuestion { query_id, query, item_id, item, row: *row, quality })
                })?;
            }
        }
        self.judge.ask(questions)
    }

    /// Waits for rewards, in the order of the candidates; none if a process was asked to stop.
    pub fn wait(
        &self,
        pending: &mut PendingRewards,
        collective: &dyn Collective,
        stop: &AtomicBool,
    ) -> Result<Option<JudgedCandidates>> {
        self.judge.wait(pending, collective, stop)
    }

    /// `[b, p·n]`: scores under the reference policy by each prefix, if the objective has one.
    pub fn reference_scores(&self, stage: &StageContext, batch: &Batch, prefixes: &[i64]) -> Result<Option<Tensor>> {
        let Some(reference) = &self.reference else { return Ok(None) };
        let mut reference =
            reference.try_borrow_mut().map_err(|e| Error::device("the reference is in use").because(e))?;
        let (queries, items) = reference.encode(stage, batch)?;
        Ok(Some(Tensor::cat(&prefix_cosines(prefixes, &queries, &items), 1)))
    }
}
