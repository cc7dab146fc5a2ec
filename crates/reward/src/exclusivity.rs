//! Exclusivity reward: 1 for items that the lexical channel does not find, down to 0 for items it does. Independent of relevance,
//! which is another component of the reward.

use std::collections::HashMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Candidate;
use souk_io::error::Result;
use souk_lexical::Lexical;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ExclusivityKind {
    /// 1 minus the IDF-weighted fraction of the query's terms that the item contains.
    #[default]
    Prior,
    /// 0 for items among the first lexical hits, 1 for the others.
    Posterior,
}

pub struct Exclusivity {
    lexical: Lexical,
    kind: ExclusivityKind,
    depth: usize,
}

impl Exclusivity {
    pub fn new(lexical: Lexical, kind: ExclusivityKind, depth: usize) -> Self {
        Self { lexical, kind, depth }
    }

    /// One value per candidate, in the same order.
    pub fn of(&self, candidates: &[Candidate<'_>]) -> Result<Vec<f32>> {
        match self.kind {
            ExclusivityKind::Prior => {
                let overlap = |candidate: &Candidate<'_>| {
                    self.lexical.matcher(candidate.question.query).compare(candidate.question.item, "").overlap
                };
                Ok(candidates.iter().map(|candidate| 1.0 - overlap(candidate)).collect())
            }
            ExclusivityKind::Posterior => self.posterior(candidates),
        }
    }

    fn posterior(&self, candidates: &[Candidate<'_>]) -> Result<Vec<f32>> {
        let mut places: HashMap<&str, usize> = HashMap::new();
        let mut queries = Vec::new();
        for candidate in candidates {
            places.entry(candidate.question.query).or_insert_with(|| {
                queries.push(candidate.question.query);
                queries.len() - 1
            });
        }
        let hits = self.lexical.search_many(&queries, self.depth)?;
        let mut rows: Vec<Vec<u32>> = hits.iter().map(|hits| hits.iter().map(|hit| hit.row).collect()).collect();
        rows.iter_mut().for_each(|rows| rows.sort_unstable());
        let of = |candidate: &Candidate<'_>| {
            let found = rows[places[candidate.question.query]].binary_search(&candidate.row).is_ok();
            if found { 0.0 } else { 1.0 }
        };
        Ok(candidates.iter().map(of).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Question;

    #[test]
    fn what_the_lexical_channel_brings_is_not_exclusive() {
        let texts = ["oak desk", "oak oak shelf with oak", "lamp", "steel lamp"];
        let lexical = || Lexical::build(texts.iter().map(|text| Ok((*text).to_owned()))).unwrap();
        let candidates: Vec<Candidate<'_>> = [("oak desk", 0), ("oak desk", 1), ("oak desk", 2), ("lamp", 2)]
            .into_iter()
            .map(|(query, row)| {
                let question = Question { query_id: "", query, item_id: "", item: texts[row] };
                Candidate { question, row: row as u32, quality: None }
            })
            .collect();
        let of = |kind, depth| Exclusivity::new(lexical(), kind, depth).of(&candidates).unwrap();
        assert_eq!(of(ExclusivityKind::Posterior, 10), [0.0, 0.0, 1.0, 0.0]);
        assert_eq!(of(ExclusivityKind::Posterior, 1), [0.0, 1.0, 1.0, 0.0]);
        let prior = of(ExclusivityKind::Prior, 1);
        assert_eq!((prior[0], prior[2], prior[3]), (0.0, 1.0, 0.0));
        assert!(prior[1] > 0.3 && prior[1] < 0.7, "one of two terms, and the less telling: {prior:?}");
    }
}
