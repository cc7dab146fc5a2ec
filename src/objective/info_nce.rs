//! InfoNCE over the gathered batch (Retrieval-GRPO, eq. 4 and 5):
//!
//! ```text
//! L = −log  exp(s(q,d⁺)/τ) / ( Σ_{d∈B̂} exp(s(q,d)/τ) + Σ_{d∈𝒢} exp(s(q,d)/τ) )
//! ```
//!
//! `B̂`: the distinct items of all pairs of all processes. `𝒢`: items drawn from the whole catalogue. Items that the query is
//! known to have found are not negatives: they are left out of the query's sum. So are, with a margin, items that score above `d⁺` by more
//! than that: they are probably answers that nobody chose. The scores are the model's own, or a guide's (GISTEmbed, Solatorio 2024). `s` is
//! the cosine.
//!
//! With judgements, the judged items of a query join the batch, so that those of L1 and L2 are its negatives, and a listwise softmax over
//! them learns their order (as ListNet, with the gains 0, 1, 3 and 7 of L1 to L4):
//!
//! ```text
//! L + w · Σ_d −g(d)/Σg · log  exp(s(q,d)/τ) / Σ_{d'∈judged} exp(s(q,d')/τ)
//! ```

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor};

use super::{JudgedTargets, Needs, ObjectiveSettings, PairTargets, Vectors, cosines, matryoshka, positive};
use souk_io::error::{Error, Result};

/// Settings of InfoNCE.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct InfoNceSettings {
    /// τ
    pub temperature: f64,
    /// Items drawn from the whole catalogue for each step, shared by all its queries.
    pub global_negatives: usize,
    /// Prefixes of the vector over which the loss is averaged; none: the whole vector.
    pub dimensions: Vec<i64>,
    /// Symmetric loss: averages with the loss of finding the query among all queries, given the item.
    pub symmetric: bool,
    /// Items that score above the pair's item by more than this are left out of its negatives, as probable answers; none: no item is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mask_margin: Option<f64>,
    /// Another encoder whose scores decide that: a model folder or a name of the Hugging Face hub; none: the model that learns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guide: Option<String>,
    /// Share of the queries that are read with a typing error, another one in each visit.
    #[serde(skip_serializing_if = "super::is_zero")]
    pub mistyped: f64,
    /// Split whose judged items join their query's batch.
    pub judged_split: Option<String>,
    /// The levels of the judged items that join.
    #[serde(skip_serializing_if = "JudgedLevels::is_all")]
    pub judged_levels: JudgedLevels,
    /// Judged items of a query in one batch; others come in the next visit.
    pub judged: usize,
    /// w: weight of the order of the judged items; 0: they are negatives only.
    pub list_weight: f64,
}

/// The levels of judged items.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum JudgedLevels {
    /// All.
    #[default]
    All,
    /// Levels 1 and 2: hard negatives.
    Rejected,
}

impl JudgedLevels {
    fn is_all(&self) -> bool {
        *self == Self::All
    }
}

impl Default for InfoNceSettings {
    fn default() -> Self {
        Self {
            temperature: 0.05,
            global_negatives: 0,
            dimensions: Vec::new(),
            symmetric: false,
            mask_margin: None,
            guide: None,
            mistyped: 0.0,
            judged_split: None,
            judged_levels: JudgedLevels::All,
            judged: 8,
            list_weight: 0.0,
        }
    }
}

impl ObjectiveSettings for InfoNceSettings {
    fn check(&self, dimensions: i64) -> Result<()> {
        positive("temperature", self.temperature)?;
        if !self.list_weight.is_finite() || self.list_weight < 0.0 {
            return Err(Error::config("objective.list_weight", format!("is {}: use 0 or more", self.list_weight)));
        }
        if self.mask_margin.is_some_and(|margin| !(0.0..2.0).contains(&margin)) {
            let problem = "is a difference of two cosines: use 0 or more and less than 2, such as 0.1";
            return Err(Error::config("objective.mask_margin", problem));
        }
        if self.guide.is_some() && self.mask_margin.is_none() {
            let problem = "has no effect without objective.mask_margin, such as 0.0";
            return Err(Error::config("objective.guide", problem));
        }
        if !(0.0..=1.0).contains(&self.mistyped) {
            let problem = format!("is {}: use a share from 0 to 1, such as 0.2", self.mistyped);
            return Err(Error::config("objective.mistyped", problem));
        }
        if self.list_weight > 0.0 && self.judged_split.is_none() {
            let problem = "has no effect without objective.judged_split, the split with the judgements";
            return Err(Error::config("objective.list_weight", problem));
        }
        if self.list_weight > 0.0 && self.judged_levels == JudgedLevels::Rejected {
            let problem =
                "has no effect with objective.judged_levels = \"rejected\": their order needs items of all levels";
            return Err(Error::config("objective.list_weight", problem));
        }
        if self.judged == 0 {
            return Err(Error::config("objective.judged", "is 0: use 1 or more, or leave out objective.judged_split"));
        }
        matryoshka::check(&self.dimensions, dimensions)
    }

    fn needs(&self) -> Needs {
        Needs { global_negatives: self.global_negatives, all_queries: self.symmetric, ..Needs::default() }
    }
}

impl InfoNceSettings {
    /// Weighted sum of the losses of this process's pairs.
    pub fn loss(&self, vectors: &Vectors, pairs: &PairTargets) -> Tensor {
        matryoshka::mean(&self.dimensions, [vectors.queries, vectors.items], |queries, items| {
            let own = queries.index_select(0, pairs.query);
            let scores = own.matmul(&items.tr());
            let guide = pairs.guide.map(|guide| cosines(&guide.queries.index_select(0, pairs.query), guide.items));
            let left_out = self.left_out(guide.as_ref().unwrap_or(&scores), pairs.known, pairs.item, pairs.judged);
            let forward = among(&scores, self.temperature, &left_out, pairs.item);
            let rows = match pairs.known_queries {
                Some(known) if self.symmetric => {
                    let scores = items.index_select(0, pairs.item).matmul(&queries.tr());
                    let guide =
                        pairs.guide.map(|guide| cosines(&guide.items.index_select(0, pairs.item), guide.queries));
                    let left_out = self.left_out(guide.as_ref().unwrap_or(&scores), &known.tr(), pairs.query, None);
                    (forward + among(&scores, self.temperature, &left_out, pairs.query)) / 2.0
                }
                _ => forward,
            };
            let rows = match pairs.judged {
                Some(judged) if self.list_weight > 0.0 => {
                    rows + order_loss(&scores, self.temperature, judged) * self.list_weight
                }
                _ => rows,
            };
            (rows * pairs.weight).sum(Kind::Float)
        })
    }

    /// Entries of each row of scores that are no negatives of the `chosen` one: the known ones, and those above it by more than the
    /// margin, unless they are judged.
    fn left_out(&self, scores: &Tensor, known: &Tensor, chosen: &Tensor, judged: Option<&JudgedTargets>) -> Tensor {
        let Some(margin) = self.mask_margin else { return known.shallow_clone() };
        let scores = scores.detach();
        let likely = scores.gt_tensor(&(scores.gather(1, &chosen.unsqueeze(1), false) + margin));
        let likely = match judged {
            Some(judged) => {
                let times = scores.zeros_like().scatter_add(1, judged.places, &judged.known.to_kind(scores.kind()));
                likely.logical_and(&times.eq(0.0))
            }
            None => likely,
        };
        known.logical_or(&likely)
    }
}

/// Listwise softmax of each query over its judged items; 0 for a query that has none with a gain.
fn order_loss(scores: &Tensor, temperature: f64, judged: &JudgedTargets) -> Tensor {
    let logits = scores.gather(1, judged.places, false) / temperature;
    let logits = logits.masked_fill(&judged.known.logical_not(), -1e9);
    let log_share = logits.log_softmax(1, Kind::Float);
    let total = judged.gains.sum_dim_intlist(1, true, Kind::Float).clamp_min(f64::from(f32::MIN_POSITIVE));
    -(log_share * judged.gains / total).sum_dim_intlist(1, false, Kind::Float)
}

/// −log softmax of `chosen` per row, over the entries that are not masked.
pub(super) fn among(scores: &Tensor, temperature: f64, masked: &Tensor, chosen: &Tensor) -> Tensor {
    let logits = (scores / temperature).masked_fill(masked, f64::NEG_INFINITY);
    let of_chosen = logits.gather(1, &chosen.unsqueeze(1), false).squeeze_dim(1);
    logits.logsumexp([1], false) - of_chosen
}

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::*;

    const FLOAT: (Kind, Device) = (Kind::Float, Device::Cpu);

    struct Batch {
        queries: Tensor,
        items: Tensor,
        query: Tensor,
        item: Tensor,
        known: Tensor,
        weight: Tensor,
    }

    impl Batch {
        /// Three pairs among five items; the second query is also known to have found item 3.
        fn new() -> Self {
            tch::manual_seed(5);
            let known = Tensor::zeros([3, 5], (Kind::Bool, Device::Cpu));
            let _ = known.get(1).get(3).fill_(1);
            Self {
                queries: Tensor::randn([3, 4], (Kind::Double, Device::Cpu)),
                items: Tensor::randn([5, 4], (Kind::Double, Device::Cpu)),
                query: Tensor::from_slice(&[0_i64, 1, 2]),
                item: Tensor::from_slice(&[0_i64, 1, 1]),
                known,
                weight: Tensor::ones([3], FLOAT),
            }
        }

        fn loss(&self, rule: &InfoNceSettings) -> Tensor {
            self.guided_loss(rule, None)
        }

        fn guided_loss(&self, rule: &InfoNceSettings, guide: Option<&Vectors>) -> Tensor {
            let known_queries = self.known_queries();
            let pairs = PairTargets {
                query: &self.query,
                item: &self.item,
                known: &self.known,
                known_queries: Some(&known_queries),
                weight: &self.weight,
                judged: None,
                guide,
            };
            rule.loss(&Vectors { queries: &self.queries, items: &self.items, steps: 1 }, &pairs)
        }

        /// Queries 1 and 2 chose the same item.
        fn known_queries(&self) -> Tensor {
            let known = Tensor::zeros([3, 3], (Kind::Bool, Device::Cpu));
            let _ = known.get(1).get(2).fill_(1);
            let _ = known.get(2).get(1).fill_(1);
            known
        }

        fn rows(vectors: &Tensor, width: usize) -> Vec<Vec<f64>> {
            let rows = Vec::<Vec<f64>>::try_from(vectors).unwrap();
            let unit = |row: &Vec<f64>| {
                let norm = row[..width].iter().map(|x| x * x).sum::<f64>().sqrt();
                row[..width].iter().map(|x| x / norm).collect()
            };
            rows.iter().map(unit).collect()
        }

        /// The formula, term by term.
        fn by_hand(&self, rule: &InfoNceSettings, width: usize) -> f64 {
            let own = [&self.queries, &self.items].map(|vectors| Self::rows(vectors, width));
            self.guided_by_hand(rule, width, &own)
        }

        /// The same, where the queries and items of `guide` decide what is left out.
        fn guided_by_hand(&self, rule: &InfoNceSettings, width: usize, guide: &[Vec<Vec<f64>>; 2]) -> f64 {
            let (queries, items) = (Self::rows(&self.queries, width), Self::rows(&self.items, width));
            let chosen = [0, 1, 1];
            let score = |q: &[f64], d: &[f64]| q.iter().zip(d).map(|(a, b)| a * b).sum::<f64>();
            let power = |q: &[f64], d: &[f64]| (score(q, d) / rule.temperature).exp();
            let mut sum = 0.0;
            for (i, query) in queries.iter().enumerate() {
                let item = &items[chosen[i]];
                let [asked, found] = guide;
                let seen = |k: usize, j: usize| score(&asked[k], &found[j]);
                let limit = rule.mask_margin.map_or(f64::INFINITY, |margin| seen(i, chosen[i]) + margin);
                let left = |j: usize| (i != 1 || j != 3) && seen(i, j) <= limit;
                let all: f64 = (0..5).filter(|j| left(*j)).map(|j| power(query, &items[j])).sum();
                let forward = -(power(query, item) / all).ln();
                let left = |k: usize| (k == i || chosen[k] != chosen[i]) && seen(k, chosen[i]) <= limit;
                let all: f64 = (0..3).filter(|k| left(*k)).map(|k| power(&queries[k], item)).sum();
                let backward = -(power(query, item) / all).ln();
                sum += if rule.symmetric { (forward + backward) / 2.0 } else { forward };
            }
            sum
        }
    }

    #[test]
    fn it_is_the_formula_with_masks_prefixes_and_both_directions() {
        let batch = Batch::new();
        for symmetric in [false, true] {
            let rule = InfoNceSettings { temperature: 0.3, symmetric, ..InfoNceSettings::default() };
            assert!((batch.loss(&rule).double_value(&[]) - batch.by_hand(&rule, 4)).abs() < 1e-5);
            let masked = InfoNceSettings { mask_margin: Some(0.2), ..rule.clone() };
            let expected = batch.by_hand(&masked, 4);
            assert!((expected - batch.by_hand(&rule, 4)).abs() > 0.01, "nothing was masked");
            assert!((batch.loss(&masked).double_value(&[]) - expected).abs() < 1e-5);
            let guide = [3, 5].map(|rows| Tensor::randn([rows, 6], (Kind::Double, Device::Cpu)));
            let found = batch.guided_loss(&masked, Some(&Vectors { queries: &guide[0], items: &guide[1], steps: 1 }));
            let guided = batch.guided_by_hand(&masked, 4, &guide.map(|vectors| Batch::rows(&vectors, 6)));
            assert!((expected - guided).abs() > 0.01, "the guide changed nothing");
            assert!((found.double_value(&[]) - guided).abs() < 1e-5);
            let nested = InfoNceSettings { dimensions: vec![4, 2], ..rule.clone() };
            let mean = (batch.by_hand(&rule, 4) + batch.by_hand(&rule, 2)) / 2.0;
            assert!((batch.loss(&nested).double_value(&[]) - mean).abs() < 1e-5);
        }
    }

    #[test]
    fn gradients_are_those_of_finite_differences() {
        let mut batch = Batch::new();
        batch.weight = Tensor::from_slice(&[1.0_f32, 0.5, 2.0]);
        let rule = InfoNceSettings {
            temperature: 0.5,
            symmetric: true,
            dimensions: vec![4, 3],
            global_negatives: 2,
            ..InfoNceSettings::default()
        };
        for items in [false, true] {
            let mut leaf = if items { &batch.items } else { &batch.queries }.detach().set_requires_grad(true);
            let with = |vectors: Tensor, batch: &mut Batch| {
                *(if items { &mut batch.items } else { &mut batch.queries }) = vectors;
                batch.loss(&rule)
            };
            with(leaf.shallow_clone(), &mut batch).backward();
            let gradient = leaf.grad();
            leaf = leaf.detach();
            let step = 1e-2;
            for at in 0..leaf.numel() as i64 {
                let moved = |by: f64, batch: &mut Batch| {
                    let copy = leaf.copy();
                    let _ = copy.view([-1]).get(at).g_add_scalar_(by);
                    with(copy, batch).double_value(&[])
                };
                let slope = (moved(step, &mut batch) - moved(-step, &mut batch)) / (2.0 * step);
                let found = gradient.view([-1]).double_value(&[at]);
                assert!((found - slope).abs() < 2e-3 * (1.0 + slope.abs()), "entry {at}: {found} beside {slope}");
            }
            drop(with(leaf, &mut batch));
        }
    }

    #[test]
    fn the_order_of_judged_items_is_learned_by_their_gains() {
        let batch = Batch::new();
        let plain = InfoNceSettings { temperature: 0.3, ..InfoNceSettings::default() };
        let rule = InfoNceSettings { judged_split: Some("train".into()), list_weight: 0.5, ..plain.clone() };
        // the second query has one judged item less, the third none with a gain
        let places = [[0_i64, 2, 4], [1, 3, 0], [1, 2, 3]];
        let gains = [[7.0_f32, 0.0, 1.0], [3.0, 7.0, 0.0], [0.0, 0.0, 0.0]];
        let known = [[true, true, true], [true, true, false], [true, true, true]];
        let judged = JudgedTargets {
            places: &Tensor::from_slice(places.as_flattened()).view([3, 3]),
            gains: &Tensor::from_slice(gains.as_flattened()).view([3, 3]),
            known: &Tensor::from_slice(known.as_flattened()).view([3, 3]),
        };
        let (queries, items) = (Batch::rows(&batch.queries, 4), Batch::rows(&batch.items, 4));
        let mut expected = batch.by_hand(&plain, 4);
        for query in 0..3 {
            let power = |at: usize| {
                let item = &items[places[query][at] as usize];
                (queries[query].iter().zip(item).map(|(a, b)| a * b).sum::<f64>() / rule.temperature).exp()
            };
            let all: f64 = (0..3).filter(|at| known[query][*at]).map(power).sum();
            let gain: f32 = gains[query].iter().sum();
            for at in (0..3).filter(|at| gains[query][*at] > 0.0) {
                expected -= 0.5 * f64::from(gains[query][at] / gain) * (power(at) / all).ln();
            }
        }
        let known_queries = batch.known_queries();
        let pairs = PairTargets {
            query: &batch.query,
            item: &batch.item,
            known: &batch.known,
            known_queries: Some(&known_queries),
            weight: &batch.weight,
            judged: Some(&judged),
            guide: None,
        };
        let vectors = Vectors { queries: &batch.queries, items: &batch.items, steps: 1 };
        let found = rule.loss(&vectors, &pairs).double_value(&[]);
        assert!((found - expected).abs() < 1e-5, "{found} {expected}");

        // what is judged stays a negative, however near it is
        let scores = Tensor::from_slice(&[0.1_f32, 0.9, 0.9, 0.2, 0.9]).view([1, 5]).repeat([3, 1]);
        let rule = InfoNceSettings { mask_margin: Some(0.1), ..rule };
        let none = batch.known.zeros_like();
        let left_out = rule.left_out(&scores, &none, &Tensor::from_slice(&[0_i64, 0, 0]), Some(&judged));
        let expected =
            [[false, true, false, false, false], [false, false, true, false, true], [false, false, false, false, true]];
        assert_eq!(Vec::<Vec<bool>>::try_from(left_out).unwrap(), expected);
    }

    #[test]
    fn a_known_item_gets_no_push_and_the_order_of_items_does_not_matter() {
        let mut batch = Batch::new();
        let rule = InfoNceSettings::default();
        batch.items = batch.items.set_requires_grad(true);
        batch.weight = Tensor::from_slice(&[0.0_f32, 1.0, 0.0]);
        let loss = batch.loss(&rule);
        loss.backward();
        assert_eq!(batch.items.grad().get(3).abs().max().double_value(&[]), 0.0);
        assert!(batch.items.grad().get(2).abs().max().double_value(&[]) > 0.0);
        let order = Tensor::from_slice(&[4_i64, 0, 1, 3, 2]);
        batch.items = batch.items.detach().index_select(0, &order);
        batch.known = batch.known.index_select(1, &order);
        batch.item = Tensor::from_slice(&[1_i64, 2, 2]);
        assert!((batch.loss(&rule).double_value(&[]) - loss.double_value(&[])).abs() < 1e-6);
    }

    #[test]
    fn settings_that_cannot_be_meant_are_refused() {
        for rule in [
            InfoNceSettings { temperature: 0.0, ..InfoNceSettings::default() },
            InfoNceSettings { dimensions: vec![8, 8], ..InfoNceSettings::default() },
            InfoNceSettings { dimensions: vec![16], ..InfoNceSettings::default() },
            InfoNceSettings { list_weight: 1.0, ..InfoNceSettings::default() },
            InfoNceSettings { judged: 0, ..InfoNceSettings::default() },
            InfoNceSettings { mask_margin: Some(-0.1), ..InfoNceSettings::default() },
            InfoNceSettings { mistyped: 1.5, ..InfoNceSettings::default() },
            InfoNceSettings { guide: Some("e5".into()), ..InfoNceSettings::default() },
        ] {
            assert!(rule.check(8).is_err(), "{rule:?}");
        }
        InfoNceSettings { dimensions: vec![4, 8], ..InfoNceSettings::default() }.check(8).unwrap();
    }
}
