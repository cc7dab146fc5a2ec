//! Distillation of a ranking: the scores that any engine gave to a query's hits, such as hybrid search with a reranker, become the
//! target of the encoder's softmax (a listwise loss, as ListNet's; soft targets as in Hinton et al. 2015).
//!
//! ```text
//! p(d|q) = exp(s(q,d)/τ) / Σ_{d'∈B̂} exp(s(q,d')/τ)              t(d|q) = exp(r(q,d)/T) / Σ_{d'∈hits} exp(r(q,d')/T)
//! L = (1/|Q|) Σ_q −(1−α) Σ_{d∈hits} t(d|q) log p(d|q) − α log p(d⁺|q)
//! ```
//!
//! `B̂`: the distinct items of all pairs and all hits of all processes. Items that the query is known to have found, but that are
//! neither the pair's nor among its hits, are left out of the query's sum.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor};

use super::{Needs, ObjectiveSettings, Vectors, matryoshka, positive};
use souk_io::error::{Error, Result};

/// Settings of distillation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DistilSettings {
    /// TREC run with the hits of all training queries, such as `run.trec` of `souk evaluate --split train`.
    pub run: PathBuf,
    /// Number of a query's hits that are used, best first.
    pub depth: usize,
    /// Number of these that a step sees.
    pub group: usize,
    /// τ: temperature of the encoder's scores.
    pub temperature: f64,
    /// T: temperature of the run's scores.
    pub run_temperature: f64,
    /// α: share of the pair's own item in the target.
    pub own_share: f64,
    /// Prefixes of the vector over which the loss is averaged; none: the whole vector.
    pub dimensions: Vec<i64>,
}

impl Default for DistilSettings {
    fn default() -> Self {
        Self {
            run: PathBuf::new(),
            depth: 50,
            group: 24,
            temperature: 0.05,
            run_temperature: 1.0,
            own_share: 0.3,
            dimensions: Vec::new(),
        }
    }
}

impl ObjectiveSettings for DistilSettings {
    fn check(&self, dimensions: i64) -> Result<()> {
        positive("temperature", self.temperature)?;
        positive("run_temperature", self.run_temperature)?;
        if self.run.as_os_str().is_empty() {
            let problem = "is missing: name a TREC run with the hits of all training queries, such as run.trec of \
                           `souk evaluate --channel hybrid --split train --depth 200`";
            return Err(Error::config("objective.run", problem));
        }
        if self.group < 2 || self.depth < self.group {
            let problem =
                format!("is {} of {}: use 2 or more, and no more than objective.depth", self.group, self.depth);
            return Err(Error::config("objective.group", problem));
        }
        if !(0.0..=1.0).contains(&self.own_share) {
            return Err(Error::config("objective.own_share", format!("is {}: use 0 to 1", self.own_share)));
        }
        matryoshka::check(&self.dimensions, dimensions)
    }

    fn needs(&self) -> Needs {
        Needs { hits: self.group, ..Needs::default() }
    }
}

/// The ranking that this process's queries should learn.
pub struct DistilTargets<'a> {
    /// `[b]`: the rows of `items` that their shoppers chose.
    pub chosen: &'a Tensor,
    /// `[b, g]`: rows of `items`.
    pub hits: &'a Tensor,
    /// `[b, g]`: their scores in the run.
    pub scores: &'a Tensor,
    /// `[b, n]`: true where the query is known to have found the item, except the chosen one.
    pub known: &'a Tensor,
}

impl DistilSettings {
    /// Sum of the losses of this process's queries.
    pub fn loss(&self, vectors: &Vectors, targets: &DistilTargets) -> Tensor {
        let DistilTargets { chosen, hits, scores, known } = *targets;
        let target = (scores / self.run_temperature).softmax(-1, Kind::Float) * (1.0 - self.own_share);
        let is_hit = known.zeros_like().scatter_value(1, hits, 1);
        let left_out = known.logical_and(&is_hit.logical_not());
        matryoshka::mean(&self.dimensions, [vectors.queries, vectors.items], |queries, items| {
            let logits = (queries.matmul(&items.tr()) / self.temperature).masked_fill(&left_out, f64::NEG_INFINITY);
            let total = logits.logsumexp([1], true);
            let of_hits = logits.gather(1, hits, false) - &total;
            let of_chosen = logits.gather(1, &chosen.unsqueeze(1), false) - &total;
            -((of_hits * &target).sum(Kind::Float) + of_chosen.sum(Kind::Float) * self.own_share)
        })
    }
}

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::*;

    const DOUBLE: (Kind, Device) = (Kind::Double, Device::Cpu);
    const HITS: [[usize; 3]; 2] = [[4, 0, 2], [1, 3, 0]];
    const SCORES: [[f64; 3]; 2] = [[2.0, 1.0, -0.5], [0.3, 0.2, 0.9]];
    const CHOSEN: [usize; 2] = [4, 2];
    /// The first query knows item 1, which is left out, and item 0, which is a hit.
    const KNOWN: [[bool; 5]; 2] = [[true, true, false, false, false], [false; 5]];

    fn settings() -> DistilSettings {
        DistilSettings { run: "run.trec".into(), group: 3, run_temperature: 0.7, ..DistilSettings::default() }
    }

    fn loss(queries: &Tensor, items: &Tensor) -> Tensor {
        let hits: Vec<i64> = HITS.as_flattened().iter().map(|at| *at as i64).collect();
        let targets = DistilTargets {
            chosen: &Tensor::from_slice(&CHOSEN.map(|at| at as i64)),
            hits: &Tensor::from_slice(&hits).view([2, 3]),
            scores: &Tensor::from_slice(SCORES.as_flattened()).view([2, 3]),
            known: &Tensor::from_slice(KNOWN.as_flattened()).view([2, 5]),
        };
        settings().loss(&Vectors { queries, items, steps: 1 }, &targets)
    }

    #[test]
    fn the_loss_is_the_formula_term_by_term() {
        tch::manual_seed(3);
        let (queries, items) = (Tensor::randn([2, 4], DOUBLE), Tensor::randn([5, 4], DOUBLE));
        let cosines = Vec::<Vec<f64>>::try_from(crate::objective::cosines(&queries, &items)).unwrap();
        let mut expected = 0.0;
        for q in 0..2 {
            let inside = |d: &usize| !KNOWN[q][*d] || HITS[q].contains(d);
            let total: f64 = (0..5).filter(inside).map(|d| (cosines[q][d] / 0.05).exp()).sum();
            let log_p = |d: usize| cosines[q][d] / 0.05 - total.ln();
            let all: f64 = SCORES[q].iter().map(|score| (score / 0.7).exp()).sum();
            let hits = HITS[q].iter().zip(SCORES[q]).map(|(d, score)| (score / 0.7).exp() / all * log_p(*d));
            expected -= 0.7 * hits.sum::<f64>() + 0.3 * log_p(CHOSEN[q]);
        }
        let found = loss(&queries, &items).double_value(&[]);
        assert!((found - expected).abs() < 1e-4 * expected, "{found} instead of {expected}");
    }

    #[test]
    fn steps_against_the_gradient_find_the_order_of_the_scores() {
        tch::manual_seed(3);
        let mut queries = Tensor::randn([2, 16], DOUBLE).set_requires_grad(true);
        let items = Tensor::randn([5, 16], DOUBLE);
        for _ in 0..200 {
            let slope = Tensor::run_backward(&[loss(&queries, &items)], &[&queries], false, false).remove(0);
            let _guard = tch::no_grad_guard();
            queries -= slope * 0.01;
        }
        let cosines = Vec::<Vec<f64>>::try_from(crate::objective::cosines(&queries, &items)).unwrap();
        assert!(cosines[0][4] > cosines[0][0] && cosines[0][0] > cosines[0][2], "{cosines:?}");
        assert!(cosines[0][2] > cosines[0][3], "a hit is above an item of another query: {cosines:?}");
    }

    #[test]
    fn settings_that_cannot_be_meant_are_refused() {
        let refused = |settings: DistilSettings| settings.check(8).unwrap_err().to_string();
        assert!(settings().check(8).is_ok());
        assert!(refused(DistilSettings::default()).contains("objective.run"));
        assert!(refused(DistilSettings { depth: 2, ..settings() }).contains("objective.group"));
        assert!(refused(DistilSettings { own_share: 1.1, ..settings() }).contains("objective.own_share"));
        assert!(refused(DistilSettings { dimensions: vec![9], ..settings() }).contains("dimensions"));
    }
}
