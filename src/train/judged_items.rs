//! Judged items of the training queries, which join the batch: what is known about a query is learned although neither its pairs nor its
//! candidates have it.

use std::collections::HashMap;
use std::sync::Arc;

use super::batch::Batch;
use super::context::StageContext;
use super::judge_context::query_ids;
use crate::objective::JudgedLevels;
use souk_io::beir::DataFolder;
use souk_io::domain::{Level, normalized_query};
use souk_io::error::{Error, Result};

pub struct JudgedItems {
    /// Query ids by normalised text.
    ids: HashMap<String, Arc<str>>,
    /// Ids of items with their levels by id of the query, in the order of the file.
    items: HashMap<String, Vec<(String, Level)>>,
}

/// Places among the items of a batch of the judged items of each query.
pub type JudgedPlaces = Vec<Vec<(i64, Level)>>;

impl JudgedItems {
    /// Reads the judgements of a split, which the setting `setting` names, as far as they are of `levels`.
    pub fn open(data: &DataFolder, split: &str, levels: JudgedLevels, setting: &str) -> Result<Self> {
        let file = data.qrels(split);
        if !file.exists() {
            let problem = format!("is `{split}`, but there is no {}: name a split with judgements", file.display());
            return Err(Error::config(setting, problem));
        }
        let mut items: HashMap<String, Vec<(String, Level)>> = HashMap::new();
        for judgement in data.judgements(split)? {
            let judgement = judgement?;
            if levels == JudgedLevels::Rejected && judgement.level.is_good() {
                continue;
            }
            items.entry(judgement.query).or_default().push((judgement.item, judgement.level));
        }
        if items.is_empty() {
            let which = if levels == JudgedLevels::Rejected { " of level 1 or 2" } else { "" };
            return Err(Error::config(setting, format!("is `{split}`, which has no judgements{which}")));
        }
        Ok(Self { ids: query_ids(data)?, items })
    }

    /// Adds up to `limit` judged items of every query to the batch, others in each visit; places of those of this process's queries.
    pub fn join(&self, stage: &StageContext, batch: &mut Batch, limit: usize) -> JudgedPlaces {
        let own = stage.own_pairs(batch);
        let mut places = vec![Vec::new(); own.len()];
        for at in 0..batch.pairs.len() {
            let id = self.ids.get(&normalized_query(batch.pairs[at].query));
            let judged = id.and_then(|id| self.items.get(&**id)).map_or(&[][..], Vec::as_slice);
            for shown in stage.sample(judged.len(), limit, batch.draws.start + at as u64) {
                let (item, level) = &judged[shown];
                let Some(row) = stage.catalogue.row(item) else { continue };
                let place = batch.add(row);
                if own.contains(&at) {
                    places[at - own.start].push((place, *level));
                }
            }
        }
        places
    }
}
