//! A judge that looks up recorded judgements; other pairs have no verdict.

use std::collections::HashMap;

use super::{Question, RewardSource, Verdict};
use souk_io::domain::{Judgement, Level};
use souk_io::error::Result;

pub struct Judgements {
    id: String,
    /// By query, then by item.
    levels: HashMap<String, HashMap<String, Level>>,
}

impl Judgements {
    /// Each pair has one row: `DataFolder::judgements` has settled the others.
    pub fn gather(id: &str, rows: impl Iterator<Item = Result<Judgement>>) -> Result<Self> {
        let mut levels: HashMap<String, HashMap<String, Level>> = HashMap::new();
        for row in rows {
            let Judgement { query, item, level } = row?;
            levels.entry(query).or_default().insert(item, level);
        }
        Ok(Self { id: id.into(), levels })
    }

    /// Judged items of a query, unordered.
    pub fn of(&self, query: &str) -> impl Iterator<Item = (&str, Level)> {
        self.levels.get(query).into_iter().flatten().map(|(item, level)| (item.as_str(), *level))
    }

    pub fn num_queries(&self) -> usize {
        self.levels.len()
    }

    /// Queries with a judgement, unordered.
    pub fn queries(&self) -> impl Iterator<Item = &str> {
        self.levels.keys().map(String::as_str)
    }
}

impl RewardSource for Judgements {
    fn id(&self) -> &str {
        &self.id
    }

    fn judge(&self, asked: &[Question<'_>]) -> Result<Vec<Option<Verdict>>> {
        let level = |asked: &Question<'_>| Some(*self.levels.get(asked.query_id)?.get(asked.item_id)?);
        Ok(asked.iter().map(|asked| level(asked).map(Verdict::of)).collect())
    }

    fn refusal(&self, asked: &Question<'_>) -> Option<String> {
        let is_known = self.levels.get(asked.query_id).is_some_and(|items| items.contains_key(asked.item_id));
        let why = "nobody judged the pair: judge.type = \"known_else_model\" has a model judge what is not known";
        (!is_known).then(|| why.to_owned())
    }
}
