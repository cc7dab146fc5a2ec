//! Experiments with shoppers: who sees which side, by their own key and always the same; and two result lists in one, by
//! team drafts (Radlinski, Kurup, Joachims: How does clickthrough data reflect retrieval quality?, 2008).

use std::collections::HashSet;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use souk_io::error::{Error, Result};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    pub name: String,
    #[serde(rename = "type")]
    pub kind: ExperimentKind,
    /// Channels, as /compare names them.
    pub left: String,
    pub right: String,
    /// Of the shoppers; the others see what is served.
    #[serde(default = "all")]
    pub share: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ExperimentKind {
    /// Half see the left, half the right.
    Ab,
    /// All see both in one list.
    Interleave,
}

fn all() -> f64 {
    1.0
}

/// What a shopper is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Arm {
    Left,
    Right,
    Both,
}

impl Experiment {
    pub fn check(&self) -> Result<()> {
        match (self.name.trim().is_empty(), (0.0..=1.0).contains(&self.share)) {
            (true, _) => Err(Error::config("search.experiments", "one has no name")),
            (_, false) => Err(Error::config("search.experiments", format!("`{}`: share is 0 to 1", self.name))),
            _ => Ok(()),
        }
    }

    /// A function of the experiment's name and the shopper's key alone; none for who takes no part.
    pub fn arm(&self, client: &str) -> Option<Arm> {
        let bits = hash(&[&self.name, client]);
        // two independent draws from one hash
        let (takes_part, side) = (draw(bits[0]) < self.share, bits[1] & 1 == 0);
        takes_part.then_some(match (self.kind, side) {
            (ExperimentKind::Interleave, _) => Arm::Both,
            (ExperimentKind::Ab, true) => Arm::Left,
            (ExperimentKind::Ab, false) => Arm::Right,
        })
    }
}

/// From 0 to below 1.
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

/// Two pages for people to judge, and which channels of which versions made them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Comparison {
    /// Of its own; it alone decides which page is shown where.
    id: String,
    /// As they were asked for.
    pub left: String,
    pub right: String,
}

impl Comparison {
    pub fn new(id: String, left: String, right: String) -> Self {
        Self { id, left, right }
    }

    /// Its name for who judges: says nothing of where a page is shown, and that it was given here.
    pub fn name(&self) -> String {
        let Self { id, left, right } = self;
        format!("{id}-{:016x}-{}-{left}{right}", self.proof(), left.len())
    }

    /// Nothing where no comparison has that name.
    pub fn parse(name: &str) -> Option<Self> {
        let mut parts = name.splitn(4, '-');
        let (id, _, length) = (parts.next()?, parts.next()?, parts.next()?.parse().ok()?);
        let (left, right) = parts.next()?.split_at_checked(length)?;
        let comparison = Self::new(id.into(), left.into(), right.into());
        (comparison.name() == name).then_some(comparison)
    }

    /// Whether what was asked for as left is shown on the right.
    pub fn is_swapped(&self) -> bool {
        hash(&["side", &self.id])[0] & 1 == 1
    }

    fn proof(&self) -> u64 {
        hash(&["comparison", &self.id, &self.left, &self.right])[0]
    }
}

/// Two lists in one of `k`: in each round both sides add their best that is not there yet, in an order drawn by `seed`.
/// Gives places in the lists: `(Left, 3)` is the fourth of the left.
pub fn interleave(left: &[&str], right: &[&str], k: usize, seed: &str) -> Vec<(Arm, usize)> {
    let mut lists = [(Arm::Left, left, 0), (Arm::Right, right, 0)];
    let mut seen = HashSet::new();
    let mut mixed = Vec::new();
    for round in 0.. {
        let first = (hash(&[seed, &round.to_string()])[0] & 1) as usize;
        let before = mixed.len();
        for side in [first, 1 - first] {
            let (arm, list, at) = &mut lists[side];
            while *at < list.len() && seen.contains(list[*at]) {
                *at += 1;
            }
            if *at < list.len() && mixed.len() < k {
                seen.insert(list[*at]);
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
    fn a_shopper_stays_where_they_are_and_sides_are_even() {
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
    fn a_comparison_is_known_by_its_name_and_no_other_name_is_one() {
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
    fn drafts_take_turns_and_no_item_comes_twice() {
        let (left, right) = (["a", "b", "c", "d"], ["b", "e", "a", "f"]);
        let mut firsts = HashSet::new();
        for seed in 0..50 {
            let mixed = interleave(&left, &right, 6, &seed.to_string());
            let ids: Vec<&str> =
                mixed.iter().map(|(arm, at)| if *arm == Arm::Left { left[*at] } else { right[*at] }).collect();
            let unique: HashSet<&&str> = ids.iter().collect();
            assert_eq!((ids.len(), unique.len()), (6, 6));
            for round in mixed.chunks(2) {
                assert_ne!(round[0].0, round[1].0, "each side adds one a round");
            }
            firsts.insert(mixed[0].0 == Arm::Left);
            assert_eq!(mixed, interleave(&left, &right, 6, &seed.to_string()));
        }
        assert_eq!(firsts.len(), 2, "either may begin");
        assert_eq!(interleave(&[], &["a"], 3, "s"), [(Arm::Right, 0)]);
        assert_eq!(interleave(&left, &left, 10, "s").len(), 4);
    }
}
