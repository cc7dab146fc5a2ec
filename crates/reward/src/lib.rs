//! Who says how well an item answers a query: the market's oracle, judgements that were written down, or a service behind
//! a wire. Takes questions, gives a verdict for each that could be had; one that could not is missing, never a number.

mod audited;
mod blend;
mod cached;
mod exclusivity;
mod guarded;
mod judgements;
mod oracle;
mod settings;
mod wire;

pub use audited::Audited;
pub use blend::{Blend, Candidate, Part, Reward, RewardSettings};
pub use cached::Cached;
pub use exclusivity::Kind as ExclusivityKind;
pub use judgements::Judgements;
pub use oracle::MarketOracle;
pub use settings::{Judge, Limits, ModelJudge, OpenaiJudge, QrelsJudge, RerankJudge, RerankShape, SoukJudge, open};
pub use wire::Thresholds;
pub use wire::{Failure, FailureKind, Http};

use souk_io::domain::Level;
use souk_io::error::Result;

/// One pair to be judged. Some sources go by the identifiers, some read the texts.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    pub query_id: &'a str,
    pub query: &'a str,
    pub item_id: &'a str,
    pub item: &'a str,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Verdict {
    /// 0 to 1.
    pub score: f32,
    pub level: Level,
}

impl Verdict {
    /// Of a source that knows levels only: they lie evenly, L1 at 0 and L4 at 1.
    pub fn of(level: Level) -> Self {
        Self { score: f32::from(level.number() - 1) / 3.0, level }
    }
}

/// A judge, in this process or behind a wire.
pub trait RewardSource: Send + Sync {
    /// What reports name it by.
    fn id(&self) -> &str;

    /// One answer for each question, in their order; `None` where there is no verdict. It waits: not to be called on a
    /// thread that others need. An error is what only a person can mend; an outage is verdicts that are missing.
    fn judge(&self, asked: &[Question<'_>]) -> Result<Vec<Option<Verdict>>>;

    /// Why the last verdicts were missing, for the person who watches.
    fn trouble(&self) -> Option<String> {
        None
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use souk_io::domain::Judgement;
    use souk_market::{MarketSpec, Oracle};

    pub(crate) fn question<'a>(query_id: &'a str, item_id: &'a str) -> Question<'a> {
        Question { query_id, query: query_id, item_id, item: item_id }
    }

    /// What holds for every source: one answer each in the order of the questions, the same again, nothing for strangers.
    pub(crate) fn conforms(source: &dyn RewardSource, known: [(&str, &str, Level); 2]) {
        assert!(!source.id().is_empty());
        assert!(source.judge(&[]).unwrap().is_empty());
        let [(q0, i0, l0), (q1, i1, l1)] = known;
        let asked = [question(q0, i0), question("nobody", i0), question(q1, i1), question(q0, "nothing")];
        let verdicts = source.judge(&asked).unwrap();
        assert_eq!(verdicts.iter().map(|v| v.map(|v| v.level)).collect::<Vec<_>>(), [Some(l0), None, Some(l1), None]);
        assert!(verdicts.iter().flatten().all(|verdict| (0.0..=1.0).contains(&verdict.score)));
        assert_eq!(source.judge(&asked).unwrap(), verdicts);
    }

    #[test]
    fn levels_lie_evenly_between_nothing_and_one() {
        let scores: Vec<f32> = Level::ALL.into_iter().map(|level| Verdict::of(level).score).collect();
        assert_eq!(scores, [0.0, 1.0 / 3.0, 2.0 / 3.0, 1.0]);
    }

    #[test]
    fn judgements_answer_for_what_was_judged() {
        let row = |query: &str, item: &str, level| Ok(Judgement { query: query.into(), item: item.into(), level });
        let rows = [row("q1", "a", Level::L4), row("q2", "a", Level::L1), row("q1", "a", Level::L4)];
        let source = Judgements::gather("qrels", rows.into_iter()).unwrap();
        conforms(&source, [("q1", "a", Level::L4), ("q2", "a", Level::L1)]);
        let rows = [row("q1", "a", Level::L4), row("q1", "a", Level::L2)];
        let error = Judgements::gather("qrels", rows.into_iter()).err().unwrap().to_string();
        assert!(error.contains("item `a` is judged twice for query `q1`, as level 4 and as level 2"), "{error}");
    }

    #[test]
    fn the_market_judges_its_own_pairs() {
        let folder = tempfile::tempdir().unwrap();
        let plan = MarketSpec { seed: 3, items: 400, queries: 12, events: 0 };
        souk_market::write(&plan, &folder.path().join("shop"), &|_, _| {}).unwrap();
        let source = MarketOracle::load(&folder.path().join("shop")).unwrap();
        let oracle = Oracle::build(&plan).unwrap();
        let (good, level) = oracle.good(0).next().unwrap();
        let poor = (0..400).find(|row| oracle.judge(5, *row) == Some(Level::L1)).unwrap();
        let (good, poor) = (format!("i{good}"), format!("i{poor}"));
        conforms(&source, [("q0", &good, level), ("q5", &poor, Level::L1)]);
    }
}
