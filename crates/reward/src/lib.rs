//! Relevance judges (the simulated market's oracle, judgement files, remote services) and the rewards made of their verdicts. A
//! verdict that cannot be obtained is missing, never a number.

mod audited;
mod blend;
mod cached;
mod exclusivity;
mod judgements;
mod known_else;
mod oracle;
mod resilient;
mod settings;
mod wire;

pub use audited::AuditedJudge;
pub use blend::{Blend, QualityBaseline, Reward, RewardComponent, RewardSettings};
pub use cached::CachedJudge;
pub use exclusivity::ExclusivityKind;
pub use judgements::Judgements;
pub use known_else::KnownElse;
pub use oracle::MarketOracle;
pub use settings::{
    Judge, JudgeLimits, KnownElseModelJudge, ModelJudge, OpenaiJudge, QrelsJudge, RerankJudge, RerankShape, SoukJudge,
    open,
};
pub use wire::Thresholds;
pub use wire::{Failure, FailureKind, Http, Rewriter, RewriterSettings};

use souk_io::domain::Level;
use souk_io::error::Result;

/// A query-item pair to judge. Some judges use the ids, others the texts.
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
    /// Verdict of a judge without scores: levels are spaced evenly, L1 at 0 and L4 at 1.
    pub fn of(level: Level) -> Self {
        Self { score: f32::from(level.number() - 1) / 3.0, level }
    }
}

/// A judge, in this process or remote.
pub trait RewardSource: Send + Sync {
    /// Name in reports.
    fn id(&self) -> &str;

    /// One answer per question, in the same order; `None` if there is no verdict. Blocks. An error needs a person (for example a wrong
    /// key); during an outage, verdicts are missing instead.
    fn judge(&self, questions: &[Question<'_>]) -> Result<Vec<Option<Verdict>>>;

    /// Why no verdict on a question will ever come, whoever asks again; none if it may come.
    fn refusal(&self, _: &Question<'_>) -> Option<String> {
        None
    }

    /// Why the last verdicts were missing.
    fn trouble(&self) -> Option<String> {
        None
    }
}

/// A question with the item's catalogue data.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    pub question: Question<'a>,
    /// The item's row in the catalogue.
    pub row: u32,
    /// 0 to 1, if the catalogue has it.
    pub quality: Option<f32>,
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use souk_io::domain::Judgement;
    use souk_market::{MarketSpec, Oracle};

    pub(crate) fn question<'a>(query_id: &'a str, item_id: &'a str) -> Question<'a> {
        Question { query_id, query: query_id, item_id, item: item_id }
    }

    /// Contract of every judge: one answer per question in order, reproducible, none for unknown pairs.
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
        let rows = [row("q1", "a", Level::L4), row("q2", "a", Level::L1)];
        let source = Judgements::gather("qrels", rows.into_iter()).unwrap();
        conforms(&source, [("q1", "a", Level::L4), ("q2", "a", Level::L1)]);
        assert_eq!(source.refusal(&question("q1", "a")), None);
        assert!(source.refusal(&question("q2", "b")).unwrap().contains("nobody judged the pair"));
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
