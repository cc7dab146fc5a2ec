//! The reward of a candidate (Retrieval-GRPO, eq. 6): relevance from a judge, quality of the item from the catalogue or the search
//! log, and exclusivity against the lexical channel. The components are kept separately.
//!
//! ```text
//! r = w_rel · f_rel(q,d) + w_q · g_quality(d) + w_x · h_excl(q,d)
//! ```
//!
//! Within a group of candidates of one query, quality can count beside that of candidates of the same level, and the components can be brought
//! to the same deviation before they are weighted.
//!
//! A candidate without a verdict has no reward; a verdict is never guessed. An item whose quality nobody knows counts as average.

use std::collections::HashMap;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::exclusivity::{Exclusivity, ExclusivityKind};
use super::{Candidate, Question, RewardSource};
use souk_io::domain::Level;
use souk_io::error::{Error, Result};
use souk_lexical::Lexical;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RewardSettings {
    /// w_rel: weight of relevance.
    pub relevance: f32,
    /// w_q: weight of quality. It is the catalogue's field `quality`, else what `souk judgements --quality` derived from the log, else 0.5.
    pub quality: f32,
    /// w_x: weight of exclusivity.
    pub exclusivity: f32,
    /// When exclusivity counts.
    pub exclusivity_kind: ExclusivityKind,
    /// Number of lexical hits that posterior exclusivity compares with.
    pub exclusivity_depth: usize,
    /// Baseline that is subtracted from an item's quality.
    #[serde(skip_serializing_if = "QualityBaseline::is_none")]
    pub quality_baseline: QualityBaseline,
    /// Divide each component by its deviation among the candidates of a query before weighting it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub normalize: bool,
    /// Components that count only for Good items (level 3 or 4).
    pub only_good: Vec<RewardComponent>,
    /// Range that rewards are clipped to; none: no clipping.
    pub clip: Option<[f32; 2]>,
    /// Factor applied after clipping.
    pub scale: f32,
    /// Maximum fraction of missing rewards in a step; above it, training pauses.
    pub max_missing: f64,
    /// Maximum attempts for a missing reward while the judge answers others.
    pub max_attempts: usize,
    /// First pause before retrying a judge that is down; doubles up to a minute.
    pub pause_seconds: f64,
    /// Cache verdicts: of a remote judge in `store.cache`, of a relevance model in this process in memory.
    pub cache: bool,
    /// Fraction of a remote judge's verdicts that is recorded in the ledger, 0 to 1. Above 0 it needs `store.database`, set up with
    /// `souk db migrate`.
    pub audit_rate: f64,
    /// Steps whose candidates are sent to the judge ahead of time; 0: training waits for each answer.
    pub lookahead: usize,
}

/// Smaller deviations of a component within a group are rounding.
const MIN_DEVIATION: f32 = 1e-6;
/// Quality of an item of which nothing is known, from 0 to 1.
const NEUTRAL_QUALITY: f32 = 0.5;

/// Baseline that is subtracted from an item's quality.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum QualityBaseline {
    /// None: the quality itself is rewarded, and with it the levels that have items of high quality.
    #[default]
    None,
    /// The mean quality of the query's candidates of the same level, so that quality decides among equally relevant items.
    Level,
}

impl QualityBaseline {
    fn is_none(&self) -> bool {
        *self == Self::None
    }
}

/// Component of a reward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum RewardComponent {
    /// By the judge.
    Relevance,
    /// The item's quality.
    Quality,
    /// Whether other channels miss the item.
    Exclusivity,
}

impl RewardComponent {
    pub const ALL: [Self; 3] = [Self::Relevance, Self::Quality, Self::Exclusivity];

    pub fn name(self) -> &'static str {
        match self {
            Self::Relevance => "relevance",
            Self::Quality => "quality",
            Self::Exclusivity => "exclusivity",
        }
    }
}

impl Default for RewardSettings {
    fn default() -> Self {
        Self {
            relevance: 1.0,
            quality: 0.0,
            exclusivity: 0.0,
            exclusivity_kind: ExclusivityKind::Prior,
            exclusivity_depth: 100,
            quality_baseline: QualityBaseline::None,
            normalize: false,
            only_good: vec![RewardComponent::Exclusivity],
            clip: None,
            scale: 1.0,
            max_missing: 0.1,
            max_attempts: 3,
            pause_seconds: 1.0,
            cache: true,
            audit_rate: 0.0,
            lookahead: 0,
        }
    }
}

impl RewardSettings {
    pub fn check(&self) -> Result<()> {
        let wrong = |name: &str, problem: String| Err(Error::config(format!("reward.{name}"), problem));
        for (name, value) in
            [("relevance", self.relevance), ("quality", self.quality), ("exclusivity", self.exclusivity)]
        {
            if !value.is_finite() || value < 0.0 {
                return wrong(name, format!("is {value}: use 0 or more"));
            }
        }
        if self.relevance + self.quality + self.exclusivity == 0.0 {
            return wrong("relevance", "and all other weights are 0: nothing would be rewarded".into());
        }
        if !self.scale.is_finite() || self.scale <= 0.0 {
            return wrong("scale", format!("is {}: use more than 0", self.scale));
        }
        if self.clip.is_some_and(|[low, high]| high <= low || low.is_nan() || high.is_nan()) {
            return wrong("clip", format!("is {:?}: use a lower and a higher number", self.clip));
        }
        if !(0.0..1.0).contains(&self.max_missing) {
            return wrong("max_missing", format!("is {}: use a fraction from 0 to less than 1", self.max_missing));
        }
        if !(0.0..=1.0).contains(&self.audit_rate) {
            return wrong("audit_rate", format!("is {}: use a fraction from 0 to 1", self.audit_rate));
        }
        if self.max_attempts == 0 || self.exclusivity_depth == 0 {
            let name = if self.max_attempts == 0 { "max_attempts" } else { "exclusivity_depth" };
            return wrong(name, "is 0: use 1 or more".into());
        }
        if self.pause_seconds.is_finite() && self.pause_seconds >= 0.01 {
            Ok(())
        } else {
            wrong("pause_seconds", format!("is {}: use 0.01 or more", self.pause_seconds))
        }
    }
}

/// One reward, and what it was made of; parts are before their weights.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reward {
    pub total: f32,
    pub level: Level,
    /// In the order of [`RewardComponent::ALL`].
    pub parts: [f32; 3],
}

pub struct Blend {
    settings: RewardSettings,
    source: Arc<dyn RewardSource>,
    /// Quality from the log, by catalogue row.
    qualities: HashMap<u32, f32>,
    exclusivity: Option<Exclusivity>,
}

impl Blend {
    /// `lexical` is over the catalogue's passages; without a weight for exclusivity it is not asked for.
    pub fn build(
        settings: &RewardSettings,
        source: Arc<dyn RewardSource>,
        lexical: impl FnOnce() -> Result<Lexical>,
    ) -> Result<Self> {
        settings.check()?;
        let RewardSettings { exclusivity, exclusivity_kind: kind, exclusivity_depth: depth, .. } = settings;
        let exclusivity = (*exclusivity > 0.0).then(lexical).transpose()?;
        let exclusivity = exclusivity.map(|lexical| Exclusivity::new(lexical, *kind, *depth));
        Ok(Self { settings: settings.clone(), source, qualities: HashMap::new(), exclusivity })
    }

    /// Adds quality from the log, by catalogue row, for items whose catalogue entry has none.
    #[must_use]
    pub fn with_qualities(self, qualities: HashMap<u32, f32>) -> Self {
        Self { qualities, ..self }
    }

    pub fn source(&self) -> &dyn RewardSource {
        self.source.as_ref()
    }

    pub fn settings(&self) -> &RewardSettings {
        &self.settings
    }

    /// One answer for each candidate, in their order.
    pub fn reward(&self, asked: &[Candidate<'_>]) -> Result<Vec<Option<Reward>>> {
        let questions: Vec<Question<'_>> = asked.iter().map(|asked| asked.question).collect();
        let verdicts = self.source.judge(&questions)?;
        if verdicts.len() != asked.len() {
            let problem = format!("the judge `{}` answered {} of {}", self.source.id(), verdicts.len(), asked.len());
            return Err(Error::input(problem));
        }
        let exclusive = self.exclusivity.as_ref().map(|exclusivity| exclusivity.of(asked)).transpose()?;
        let rewards = asked.iter().zip(verdicts).enumerate().map(|(at, (asked, verdict))| {
            // a score that is no number is no verdict
            let verdict = verdict.filter(|verdict| verdict.score.is_finite())?;
            let quality = asked.quality.or_else(|| self.qualities.get(&asked.row).copied()).unwrap_or(NEUTRAL_QUALITY);
            let exclusive = exclusive.as_ref().map_or(0.0, |all| all[at]);
            Some(self.fuse(verdict.level, [verdict.score, quality, exclusive]))
        });
        Ok(rewards.collect())
    }

    fn fuse(&self, level: Level, mut parts: [f32; 3]) -> Reward {
        let settings = &self.settings;
        for (part, value) in RewardComponent::ALL.into_iter().zip(&mut parts) {
            if !level.is_good() && settings.only_good.contains(&part) {
                *value = 0.0;
            }
        }
        Reward { total: settings.total(parts), level, parts }
    }
}

impl RewardSettings {
    /// Whether a reward is more than the weighted sum of its components.
    pub fn is_reshaped(&self) -> bool {
        self.clip.is_some() || self.compares_candidates()
    }

    fn compares_candidates(&self) -> bool {
        self.quality_baseline != QualityBaseline::None || self.normalize
    }

    /// Components with their weights.
    pub fn weights(&self) -> [(RewardComponent, f32); 3] {
        let weights = [self.relevance, self.quality, self.exclusivity];
        std::array::from_fn(|at| (RewardComponent::ALL[at], weights[at]))
    }

    /// Weighted sum, clipped and scaled.
    fn total(&self, parts: [f32; 3]) -> f32 {
        let sum: f32 = parts.iter().zip(self.weights()).map(|(part, (_, weight))| part * weight).sum();
        self.clip.map_or(sum, |[low, high]| sum.clamp(low, high)) * self.scale
    }

    /// Fuses the rewards of one query's candidates again, where these settings compare candidates with each other.
    pub fn fuse_group(&self, rewards: &mut [Option<Reward>]) {
        if !self.compares_candidates() {
            return;
        }
        let known: Vec<Reward> = rewards.iter().copied().flatten().collect();
        let mean = |values: &[f32]| values.iter().sum::<f32>() / values.len().max(1) as f32;
        let baseline = |level: Level| {
            let same = known.iter().filter(|reward| reward.level == level);
            mean(&same.map(|reward| reward.parts[RewardComponent::Quality as usize]).collect::<Vec<_>>())
        };
        let mut parts: Vec<[f32; 3]> = known.iter().map(|reward| reward.parts).collect();
        if self.quality_baseline == QualityBaseline::Level {
            for (parts, reward) in parts.iter_mut().zip(&known) {
                parts[RewardComponent::Quality as usize] -= baseline(reward.level);
            }
        }
        if self.normalize {
            for component in RewardComponent::ALL.map(|component| component as usize) {
                let values: Vec<f32> = parts.iter().map(|parts| parts[component]).collect();
                let centre = mean(&values);
                let deviation = mean(&values.iter().map(|value| (value - centre).powi(2)).collect::<Vec<_>>()).sqrt();
                // without a difference there is nothing to compare
                let factor = if deviation > MIN_DEVIATION { 1.0 / deviation } else { 0.0 };
                parts.iter_mut().for_each(|parts| parts[component] *= factor);
            }
        }
        for (reward, parts) in rewards.iter_mut().flatten().zip(parts) {
            reward.total = self.total(parts);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Verdict;

    /// Answers by the item's id: a score and a level, or nothing.
    struct Told;

    impl RewardSource for Told {
        fn id(&self) -> &str {
            "told"
        }

        fn judge(&self, asked: &[Question<'_>]) -> Result<Vec<Option<Verdict>>> {
            let answer = |asked: &Question<'_>| match asked.item_id {
                "good" => Some(Verdict { score: 0.8, level: Level::L4 }),
                "bad" => Some(Verdict { score: 0.2, level: Level::L2 }),
                "nan" => Some(Verdict { score: f32::NAN, level: Level::L4 }),
                _ => None,
            };
            Ok(asked.iter().map(answer).collect())
        }
    }

    fn rewards(settings: RewardSettings, quality: Option<f32>) -> Vec<Option<Reward>> {
        let texts = ["oak desk", "steel lamp", "oak shelf", "chair"];
        let lexical = || Lexical::build(texts.iter().map(|text| Ok((*text).to_owned())));
        let blend = Blend::build(&settings, Arc::new(Told), lexical).unwrap();
        let candidates: Vec<Candidate<'_>> = ["good", "bad", "nan", "silent"]
            .iter()
            .zip(&texts)
            .zip(0..)
            .map(|((id, text), row)| {
                let question = Question { query_id: "q", query: "oak lamp", item_id: id, item: text };
                Candidate { question, row, quality }
            })
            .collect();
        blend.reward(&candidates).unwrap()
    }

    #[test]
    fn parts_are_weighed_and_kept_and_what_is_missing_is_missing() {
        let settings = RewardSettings { quality: 0.5, exclusivity: 0.25, ..RewardSettings::default() };
        let found = rewards(settings.clone(), Some(0.6));
        // "oak desk" has one of the query's two terms, "oak" in two of four texts, "lamp" in one
        let good = found[0].unwrap();
        assert_eq!((good.level, good.parts[0], good.parts[1]), (Level::L4, 0.8, 0.6));
        assert!(good.parts[2] > 0.5 && good.parts[2] < 1.0, "{good:?}");
        assert!((good.total - (0.8 + 0.3 + 0.25 * good.parts[2])).abs() < 1e-6);
        let bad = found[1].unwrap();
        assert_eq!(bad.parts, [0.2, 0.6, 0.0], "what is not Good need not be exclusive");
        assert_eq!(found[2..], [None, None]);
        let unknown = rewards(settings.clone(), None)[0].unwrap();
        assert_eq!(unknown.parts[1], 0.5, "an item of unknown quality counts as average");
        let texts = || Lexical::build(std::iter::once(Ok("oak desk".to_owned())));
        let blend = Blend::build(&settings, Arc::new(Told), texts).unwrap().with_qualities([(7, 0.9)].into());
        let question = Question { query_id: "q", query: "oak lamp", item_id: "good", item: "oak desk" };
        let part = |row, quality| blend.reward(&[Candidate { question, row, quality }]).unwrap()[0].unwrap().parts[1];
        assert_eq!((part(7, None), part(7, Some(0.2)), part(8, None)), (0.9, 0.2, 0.5), "the catalogue's comes first");
    }

    fn group(settings: &RewardSettings, candidates: &[Option<(Level, [f32; 3])>]) -> Vec<Option<f32>> {
        let reward = |(level, parts)| Reward { total: settings.total(parts), level, parts };
        let mut rewards: Vec<Option<Reward>> = candidates.iter().map(|candidate| candidate.map(reward)).collect();
        settings.fuse_group(&mut rewards);
        rewards.iter().map(|reward| reward.map(|reward| reward.total)).collect()
    }

    #[test]
    fn quality_can_decide_among_items_of_one_level_alone() {
        let level =
            RewardSettings { quality: 0.5, quality_baseline: QualityBaseline::Level, ..RewardSettings::default() };
        let (good, poor) = ((Level::L4, [1.0, 0.9, 0.0]), (Level::L4, [1.0, 0.5, 0.0]));
        let candidates = [Some(good), None, Some(poor), Some((Level::L1, [0.0, 1.0, 0.0]))];
        let found = group(&level, &candidates);
        // the mean quality of level 4 is 0.7; that of level 1 is the item's own
        let expected = [Some(1.1), None, Some(0.9), Some(0.0)];
        for (found, expected) in found.iter().zip(expected) {
            assert!(
                found.zip(expected).is_none_or(|(a, b)| (a - b).abs() < 1e-6) && found.is_some() == expected.is_some()
            );
        }
        let none = RewardSettings { quality_baseline: QualityBaseline::None, ..level };
        assert_eq!(group(&none, &candidates), [Some(1.45), None, Some(1.25), Some(0.5)]);
    }

    #[test]
    fn components_can_be_brought_to_one_deviation() {
        let settings = RewardSettings { quality: 0.5, exclusivity: 1.0, normalize: true, ..RewardSettings::default() };
        let candidates = [Some((Level::L4, [0.9, 0.4, 1.0])), Some((Level::L4, [0.7, 0.8, 1.0])), None];
        let found = group(&settings, &candidates);
        // deviations 0.1, 0.2 and none
        assert!((found[0].unwrap() - (9.0 + 0.5 * 2.0)).abs() < 1e-3 && found[2].is_none(), "{found:?}");
        assert!((found[1].unwrap() - (7.0 + 0.5 * 4.0)).abs() < 1e-3, "{found:?}");
    }

    #[test]
    fn shaping_is_off_until_it_is_asked_for() {
        let plain = rewards(RewardSettings::default(), None);
        assert_eq!(plain[0].unwrap().total, 0.8);
        let shaped = RewardSettings { clip: Some([0.3, 0.7]), scale: 2.0, ..RewardSettings::default() };
        let shaped: Vec<f32> = rewards(shaped, None).iter().flatten().map(|reward| reward.total).collect();
        assert_eq!(shaped, [1.4, 0.6]);
        let gated =
            RewardSettings { quality: 1.0, only_good: vec![RewardComponent::Quality], ..RewardSettings::default() };
        assert_eq!(rewards(gated, Some(0.5))[1].unwrap().parts, [0.2, 0.0, 0.0]);
    }

    #[test]
    fn settings_that_cannot_be_meant_are_refused() {
        for settings in [
            RewardSettings { relevance: -1.0, ..RewardSettings::default() },
            RewardSettings { relevance: 0.0, ..RewardSettings::default() },
            RewardSettings { clip: Some([1.0, 0.0]), ..RewardSettings::default() },
            RewardSettings { scale: 0.0, ..RewardSettings::default() },
            RewardSettings { max_missing: 1.0, ..RewardSettings::default() },
            RewardSettings { max_attempts: 0, ..RewardSettings::default() },
            RewardSettings { pause_seconds: 0.0, ..RewardSettings::default() },
        ] {
            assert!(settings.check().is_err(), "{settings:?}");
        }
    }
}
