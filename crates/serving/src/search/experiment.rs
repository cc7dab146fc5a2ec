//! Experiments with shoppers: stable assignment to arms by client key, and team-draft interleaving of two result lists
//! (Radlinski, Kurup, Joachims: How does clickthrough data reflect retrieval quality?, 2008).

use std::collections::HashSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use souk_io::error::{Error, Result};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// Name in the event log and in reports.
    pub name: String,
    /// A/B test or interleaving.
    #[serde(rename = "type")]
    pub kind: ExperimentKind,
    /// A channel, named as in /compare.
    pub left: String,
    /// The other channel.
    pub right: String,
    /// Fraction of shoppers in the experiment; the others see the served version.
    #[serde(default = "all")]
    pub share: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ExperimentKind {
    /// A/B test: half see left, half see right.
    Ab,
    /// All see both, interleaved in one list.
    Interleave,
}

fn all() -> f64 {
    1.0
}

/// Assignment of a shopper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Arm {
    Left,
    Right,
    Both,
}

impl Experiment {
    pub fn check(&self) -> Result<()> {
        if self.name.trim().is_empty() {
            return Err(Error::config("search.experiments", "an experiment has no name: give it one"));
        }
        if !(0.0..=1.0).contains(&self.share) {
            let problem = format!("`{}` has share {}: set it to 0 to 1", self.name, self.share);
            return Err(Error::config("search.experiments", problem));
        }
        Ok(())
    }

    /// Arm of a shopper, a function of the experiment's name and the client key alone; None if not in the experiment.
    pub fn arm(&self, client: &str) -> Option<Arm> {
        let bits = hash(&[&self.name, client]);
        // two independent draws from one hash
        let (takes_part, is_left) = (draw(bits[0]) < self.share, bits[1] & 1 == 0);
        takes_part.then_some(match self.kind {
            ExperimentKind::Interleave => Arm::Both,
            ExperimentKind::Ab if is_left => Arm::Left,
            ExperimentKind::Ab => Arm::Right,
        })
    }
}

/// Uniform in [0, 1).
fn draw(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}

fn hash(parts: &[&str]) -> [u64; 2] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    let bytes: [u8; 32] = hash.finalize().into();
    let word = |at: usize| bytes[at..at + 8].iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
    [word(0), word(8)]
}

/// Two pages for a blind comparison, and the version and channel of each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Comparison {
    /// Random id; it alone decides which page is shown on which side.
    id: String,
    /// As requested.
    pub left: String,
    pub right: String,
}

impl Comparison {
    pub fn new(id: String, left: String, right: String) -> Self {
        Self { id, left, right }
    }

    /// Name for the judge: hides which side is which, and has a checksum that proves where it came from.
    pub fn name(&self) -> String {
        let Self { id, left, right } = self;
        format!("{id}-{:016x}-{}-{left}{right}", self.checksum(), left.len())
    }

    /// Parses a name; None unless `name` made it.
    pub fn parse(name: &str) -> Option<Self> {
        let mut parts = name.splitn(4, '-');
        let (id, _, length) = (parts.next()?, parts.next()?, parts.next()?.parse().ok()?);
        let (left, right) = parts.next()?.split_at_checked(length)?;
        let comparison = Self::new(id.into(), left.into(), right.into());
        (comparison.name() == name).then_some(comparison)
    }

    /// Whether the requested left page is shown on the right.
    pub fn is_swapped(&self) -> bool {
        hash(&["side", &self.id])[0] & 1 == 1
    }

    fn checksum(&self) -> u64 {
        hash(&["comparison", &self.id, &self.left, &self.right])[0]
    }
}

/// Interleaves two lists into `k` hits: in each round both sides add their best hit not yet listed, in an order drawn
/// from `seed`. Returns positions in the lists: `(Left, 3)` is the fourth of the left.
pub fn interleave<S: AsRef<str>>(left: &[S], right: &[S], k: usize, seed: &str) -> Vec<(Arm, usize)> {
    let mut lists = [(Arm::Left, left, 0), (Arm::Right, right, 0)];
    let mut seen = HashSet::new();
    let mut mixed = Vec::new();
    for round in 0.. {
        let first = (hash(&[seed, &round.to_string()])[0] & 1) as usize;
        let before = mixed.len();
        for side in [first, 1 - first] {
            let (arm, list, at) = &mut lists[side];
            while *at < list.len() && seen.contains(list[*at].as_ref()) {
                *at += 1;
            }
            if *at < list.len() && mixed.len() < k {
                seen.insert(list[*at].as_ref());
                mixed.push((*arm, *at));
            }
        }
        if mixed.len() == before {
            break;
        }
    }
    mixed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn experiment(kind: ExperimentKind, share: f64) -> Experiment {
        Experiment { name: "new encoder".into(), kind, left: "v1".into(), right: "v2".into(), share }
    }

    #[test]
    fn arms_are_stable_and_balanced() {
        let ab = experiment(ExperimentKind::Ab, 0.4);
        let arms: Vec<Option<Arm>> = (0..20_000).map(|i| ab.arm(&format!("client {i}"))).collect();
        let num = |arm| arms.iter().filter(|found| **found == arm).count();
        // 3 standard deviations of 20,000 draws
        assert!(num(None).abs_diff(12_000) < 210, "{}", num(None));
        assert!(num(Some(Arm::Left)).abs_diff(4_000) < 170, "{}", num(Some(Arm::Left)));
        assert_eq!(ab.arm("client 7"), arms[7]);
        assert_eq!(experiment(ExperimentKind::Interleave, 1.0).arm("a"), Some(Arm::Both));
        assert_eq!(experiment(ExperimentKind::Ab, 0.0).arm("a"), None);
        assert!(experiment(ExperimentKind::Ab, 1.5).check().is_err());
    }

    #[test]
    fn comparison_names_round_trip_and_reject_tampering() {
        let comparison = |id: &str| Comparison::new(id.into(), "v-1/dense".into(), "größe/lexical".into());
        let name = comparison("7f").name();
        assert_eq!(Comparison::parse(&name), Some(comparison("7f")));
        for wrong in
            ["", "made up", "7f-0-1-ab", "7f-0-9-ab", &name.replace("lexical", "dense"), &name.replace("7f", "8f")]
        {
            assert_eq!(Comparison::parse(wrong), None, "{wrong}");
        }
        let swapped = (0..400).filter(|id| comparison(&id.to_string()).is_swapped()).count();
        // 4 standard deviations of 400 draws
        assert!(swapped.abs_diff(200) < 40, "{swapped}");
    }

    #[test]
    fn interleaving_alternates_without_duplicates() {
        let (left, right) = (["a", "b", "c", "d"], ["b", "e", "a", "f"]);
        let mut firsts = HashSet::new();
        for seed in 0..50 {
            let mixed = interleave(&left, &right, 6, &seed.to_string());
            let ids: Vec<&str> =
                mixed.iter().map(|(arm, at)| if *arm == Arm::Left { left[*at] } else { right[*at] }).collect();
            let unique: HashSet<&&str> = ids.iter().collect();
            assert_eq!((ids.len(), unique.len()), (6, 6));
            for round in mixed.chunks(2) {
                assert_ne!(round[0].0, round[1].0, "each side adds one hit per round");
            }
            firsts.insert(mixed[0].0 == Arm::Left);
            assert_eq!(mixed, interleave(&left, &right, 6, &seed.to_string()));
        }
        assert_eq!(firsts.len(), 2, "either side can start");
        assert_eq!(interleave(&[], &["a"], 3, "s"), [(Arm::Right, 0)]);
        assert_eq!(interleave(&left, &left, 10, "s").len(), 4);
    }
}
