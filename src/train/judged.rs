//! What all stages share that learn from judged candidates: questions about a batch, the reference's scores, and the step
//! from a group's rewards to gradients.

use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use tch::{Device, Kind, Tensor};

use super::batch::Batch;
use super::judge::{Judge, Owned, Questions};
use super::policy::Sums;
use super::reference::{Known, Reference};
use super::step::{Encoded, Parts, Stepped};
use crate::beir::DataFolder;
use crate::collective::gather_rows;
use crate::dataset::normal;
use crate::domain::Item;
use crate::error::{Error, Result};
use crate::objective::{Advantages, Group, Scaling, Vectors, cosines};
use crate::reward::{Blend, Reward};

/// Who judges, who is remembered, and what queries are called.
pub struct Bench {
    pub judge: Judge,
    reference: Option<RefCell<Reference>>,
    /// By what two spellings of a query share.
    ids: HashMap<String, Arc<str>>,
}

/// The judged candidates of one batch.
pub struct Lesson<'a> {
    /// `[b, g]`: places among the batch's items.
    pub candidates: &'a Tensor,
    /// `[b, g]`: log-probabilities they were retrieved with; none: those of now.
    pub old: Option<&'a Tensor>,
    pub rewarded: &'a Rewarded,
    /// What the batch counts in its step.
    pub share: f64,
}

/// What a judge is shown of an item.
struct Shown {
    id: Arc<str>,
    text: Arc<str>,
    quality: Option<f32>,
}

/// Rewards of the candidates `[b, g]` of one process's queries, as tensors.
pub struct Rewarded {
    reward: Tensor,
    known: Tensor,
}

impl Rewarded {
    /// In the order of the candidates, `width` of each query.
    pub fn of(rewards: &[Option<Reward>], width: usize, device: Device) -> Self {
        let totals: Vec<f32> = rewards.iter().map(|reward| reward.map_or(0.0, |reward| reward.total)).collect();
        let known: Vec<bool> = rewards.iter().map(Option::is_some).collect();
        let shape = [(rewards.len() / width.max(1)) as i64, width as i64];
        let tensor = |x: Tensor| x.view(shape).to_device(device);
        Self { reward: tensor(Tensor::from_slice(&totals)), known: tensor(Tensor::from_slice(&known)) }
    }

    /// `[b, g]`
    pub fn advantages(&self, scaling: Scaling) -> Tensor {
        Advantages::of(&self.reward, &self.known, scaling).values
    }
}

impl Shown {
    fn of(item: Item) -> Self {
        let quality = item.fields.get("quality").and_then(serde_json::Value::as_f64);
        Self { text: item.passage().into(), id: item.id.into(), quality: quality.map(|quality| quality as f32) }
    }
}

impl Bench {
    /// A judge of texts needs no ids; those of `queries.jsonl` are for one that goes by them.
    pub fn new(data: &DataFolder, blend: Blend, reference: Option<Reference>) -> Result<Self> {
        let mut ids = HashMap::new();
        if data.queries_file().exists() {
            for query in data.queries()? {
                let query = query?;
                ids.insert(normal(&query.text), query.id.into());
            }
        }
        Ok(Self { judge: Judge::new(blend), reference: reference.map(RefCell::new), ids })
    }

    /// Asks about rows of the catalogue, so many `rows` for each of `queries` (number and text).
    pub fn questions<'q>(
        &self,
        parts: &Parts,
        queries: impl Iterator<Item = (u32, &'q str)>,
        rows: &[Vec<u32>],
    ) -> Result<Questions> {
        let mut questions = Questions::default();
        let mut items: HashMap<u32, Shown> = HashMap::new();
        for ((number, text), rows) in queries.zip(rows) {
            let query: Arc<str> = text.into();
            let query_id = self.ids.get(&normal(text)).cloned().unwrap_or_default();
            for row in rows {
                questions.add(number, *row, || {
                    let shown = match items.entry(*row) {
                        Entry::Occupied(shown) => shown.into_mut(),
                        Entry::Vacant(place) => place.insert(Shown::of(parts.catalogue.item(*row)?)),
                    };
                    let (item_id, item, quality) = (shown.id.clone(), shown.text.clone(), shown.quality);
                    Ok(Owned { query_id: query_id.clone(), query: query.clone(), item_id, item, row: *row, quality })
                })?;
            }
        }
        Ok(questions)
    }

    /// `[b, n]`: the scores that the reference gives a batch, where there is one.
    fn reference_scores(&self, parts: &Parts, encoded: &Encoded, batch: &Batch) -> Result<Option<Tensor>> {
        let Some(reference) = &self.reference else { return Ok(None) };
        let mut reference =
            reference.try_borrow_mut().map_err(|e| Error::device("the reference is in use").because(e))?;
        let (pairs, items) = parts.own(batch);
        let pairs = &batch.pairs[pairs];
        let known: Vec<Known> = pairs.iter().map(|pair| Known::Query(pair.query.into())).collect();
        let queries = reference.vectors(&known, |at| parts.read_query(&encoded.reader(), pairs[at].query))?;
        let rows = &batch.items[items];
        let known: Vec<Known> = rows.iter().map(|row| Known::Item(*row)).collect();
        let items = reference.vectors(&known, |at| parts.read_item(&encoded.reader(), rows[at]))?;
        let items = gather_rows(parts.collective, &items)?;
        Ok(Some(cosines(&queries, &items.all)))
    }

    /// Back-propagates what the objective makes of rewards; gives this process's part of the loss.
    pub fn correct(
        &self,
        parts: &Parts,
        (batch, encoded): (&Batch, Encoded),
        lesson: &Lesson<'_>,
        (sums, stepped): (&mut Sums, &mut Stepped),
    ) -> Result<Tensor> {
        let reference = self.reference_scores(parts, &encoded, batch)?;
        let Rewarded { reward, known } = lesson.rewarded;
        let Lesson { candidates, old, share, .. } = *lesson;
        let group = Group { candidates, reward, known, old, reference: reference.as_ref() };
        let mut tally = None;
        let scale = share / batch.pairs.len() as f64;
        let loss = |vectors: &Vectors<'_>| {
            let corrected = parts.objective.correct(vectors, &group)?;
            tally = Some(corrected.tally);
            Ok(corrected.loss * scale)
        };
        let loss = encoded.learn(parts, false, loss, stepped)?;
        if let Some(tally) = tally {
            sums.tally(&tally);
        }
        Ok(loss.to_kind(Kind::Float))
    }
}
