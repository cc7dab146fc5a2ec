//! Judgements on record first, a judge for all other pairs.

use std::sync::Arc;

use super::{Judgements, Question, RewardSource, Verdict};
use souk_io::error::Result;

pub struct KnownElse {
    id: String,
    known: Judgements,
    other: Arc<dyn RewardSource>,
}

impl KnownElse {
    pub fn new(known: Judgements, other: Arc<dyn RewardSource>) -> Self {
        Self { id: format!("{}, else {}", known.id(), other.id()), known, other }
    }
}

impl RewardSource for KnownElse {
    fn id(&self) -> &str {
        &self.id
    }

    fn judge(&self, asked: &[Question<'_>]) -> Result<Vec<Option<Verdict>>> {
        let mut verdicts = self.known.judge(asked)?;
        let open: Vec<usize> = (0..asked.len()).filter(|at| verdicts[*at].is_none()).collect();
        let questions: Vec<Question<'_>> = open.iter().map(|at| asked[*at]).collect();
        if !questions.is_empty() {
            for (at, verdict) in open.into_iter().zip(self.other.judge(&questions)?) {
                verdicts[at] = verdict;
            }
        }
        Ok(verdicts)
    }

    fn refusal(&self, asked: &Question<'_>) -> Option<String> {
        self.other.refusal(asked)
    }

    fn trouble(&self) -> Option<String> {
        self.other.trouble()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{conforms, question};
    use souk_io::domain::{Judgement, Level};

    fn judgements(id: &str, rows: &[(&str, &str, Level)]) -> Judgements {
        let row = |row: &(&str, &str, Level)| Ok(Judgement { query: row.0.into(), item: row.1.into(), level: row.2 });
        Judgements::gather(id, rows.iter().map(row)).unwrap()
    }

    #[test]
    fn judgements_come_before_the_other_judge() {
        let known = judgements("train", &[("q1", "a", Level::L4)]);
        let other = judgements("model", &[("q1", "a", Level::L2), ("q2", "b", Level::L3)]);
        let judge = KnownElse::new(known, Arc::new(other));
        assert_eq!(judge.id(), "train, else model");
        conforms(&judge, [("q1", "a", Level::L4), ("q2", "b", Level::L3)]);
    }

    #[test]
    fn the_other_judge_is_asked_only_about_what_is_not_known() {
        struct Strict;
        impl RewardSource for Strict {
            fn id(&self) -> &str {
                "strict"
            }
            fn judge(&self, asked: &[Question<'_>]) -> Result<Vec<Option<Verdict>>> {
                assert!(!asked.is_empty() && asked.iter().all(|asked| asked.item_id != "a"));
                Ok(vec![Some(Verdict::of(Level::L1)); asked.len()])
            }
            fn trouble(&self) -> Option<String> {
                Some("busy".into())
            }
        }
        let judge = KnownElse::new(judgements("train", &[("q", "a", Level::L4)]), Arc::new(Strict));
        let levels = |asked: &[Question<'_>]| {
            judge.judge(asked).unwrap().into_iter().map(|verdict| verdict.unwrap().level).collect::<Vec<_>>()
        };
        assert_eq!(levels(&[question("q", "a")]), [Level::L4]);
        assert_eq!(levels(&[question("q", "b"), question("q", "a")]), [Level::L1, Level::L4]);
        assert_eq!(judge.trouble().as_deref(), Some("busy"));
    }
}
