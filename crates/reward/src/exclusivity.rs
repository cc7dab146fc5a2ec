//! Whether an item is worth finding by this channel, because the lexical channel would not bring it. Takes candidates,
//! gives 0 to 1 for each. Never reads a judgement: whether an item is wanted at all is another part of the reward.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::blend::Candidate;
use souk_io::error::Result;
use souk_lexical::Lexical;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// 1 less the share of the query's terms, weighed by idf, that the item has.
    #[default]
    Prior,
    /// 0 for what the channel really returns among its first hits, 1 for the rest.
    Posterior,
}

pub struct Exclusivity {
    lexical: Lexical,
    kind: Kind,
    depth: usize,
}

impl Exclusivity {
    pub fn new(lexical: Lexical, kind: Kind, depth: usize) -> Self {
        Self { lexical, kind, depth }
    }

    /// One number for each candidate, in their order.
    pub fn of(&self, asked: &[Candidate<'_>]) -> Result<Vec<f32>> {
        match self.kind {
            Kind::Prior => {
                let overlap = |asked: &Candidate<'_>| self.lexical.overlap(asked.question.query, asked.question.item);
                Ok(asked.iter().map(|asked| 1.0 - overlap(asked)).collect())
            }
            Kind::Posterior => self.posterior(asked),
        }
    }

    fn posterior(&self, asked: &[Candidate<'_>]) -> Result<Vec<f32>> {
        let mut places: HashMap<&str, usize> = HashMap::new();
        let mut queries = Vec::new();
        for asked in asked {
            places.entry(asked.question.query).or_insert_with(|| {
                queries.push(asked.question.query);
                queries.len() - 1
            });
        }
        let hits = self.lexical.search_many(&queries, self.depth)?;
        let mut rows: Vec<Vec<u32>> = hits.iter().map(|hits| hits.iter().map(|hit| hit.row).collect()).collect();
        rows.iter_mut().for_each(|rows| rows.sort_unstable());
        let of = |asked: &Candidate<'_>| {
            let found = rows[places[asked.question.query]].binary_search(&asked.row).is_ok();
            if found { 0.0 } else { 1.0 }
        };
        Ok(asked.iter().map(of).collect())
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
        assert_eq!(of(Kind::Posterior, 10), [0.0, 0.0, 1.0, 0.0]);
        assert_eq!(of(Kind::Posterior, 1), [0.0, 1.0, 1.0, 0.0]);
        let prior = of(Kind::Prior, 1);
        assert_eq!((prior[0], prior[2], prior[3]), (0.0, 1.0, 0.0));
        assert!(prior[1] > 0.3 && prior[1] < 0.7, "one of two terms, and the less telling: {prior:?}");
    }
}
