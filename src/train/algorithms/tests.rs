//! Rules that learn from groups, on three queries with four items each, against their formulas computed term by term.

use tch::{Device, Kind, Tensor};

use crate::objective::{
    CandidateWeights, Component, DpoSettings, Group, GroupLoss, Losses, MinedSettings, Objective, PairwiseSettings,
    RGrpoSettings, Scaling, Support, Vectors, cosines,
};

/// Three queries, five items, four candidates of each query; one reward is missing, and one query's are all the same.
struct Case {
    queries: Tensor,
    items: Tensor,
    candidates: Tensor,
    reward: Tensor,
    known: Tensor,
    old: Tensor,
    reference: Tensor,
}

const PLACES: [[i64; 4]; 3] = [[0, 1, 2, 4], [3, 2, 1, 0], [4, 0, 3, 1]];
const REWARDS: [[f32; 4]; 3] = [[1.0, 0.25, 0.5, 0.0], [0.75, 0.1, 9.0, 0.3], [0.5, 0.5, 0.5, 0.5]];

fn known(query: usize, at: usize) -> bool {
    (query, at) != (1, 2)
}

impl Case {
    fn new() -> Self {
        tch::manual_seed(11);
        let random = |rows: i64, columns: i64| Tensor::randn([rows, columns], (Kind::Double, Device::Cpu));
        let mask: Vec<bool> = (0..12).map(|at| known(at / 4, at % 4)).collect();
        Self {
            queries: random(3, 4),
            items: random(5, 4),
            candidates: Tensor::from_slice(PLACES.as_flattened()).view([3, 4]),
            reward: Tensor::from_slice(REWARDS.as_flattened()).view([3, 4]),
            known: Tensor::from_slice(&mask).view([3, 4]),
            old: random(3, 4).to_kind(Kind::Float) * 0.3 - 1.5,
            reference: random(3, 5).to_kind(Kind::Float).tanh(),
        }
    }

    fn loss(&self, rule: &Objective) -> GroupLoss {
        let group = Group {
            candidates: &self.candidates,
            reward: &self.reward,
            known: &self.known,
            components: &self.components(),
            old: Some(&self.old),
            reference: Some(&self.reference),
        };
        let vectors = Vectors { queries: &self.queries, items: &self.items, steps: 1 };
        match rule {
            Objective::RGrpo(settings) => super::r_grpo::loss(settings, &vectors, &group),
            Objective::Pairwise(settings) => settings.loss(&vectors, &group),
            Objective::Dpo(settings) => settings.loss(&vectors, &group).unwrap(),
            other => panic!("{other:?} does not learn from groups"),
        }
    }

    /// Two goals: the reward, and its opposite with half the weight.
    fn components(&self) -> [Component; 2] {
        [(1.0, self.reward.copy()), (0.5, -&self.reward)].map(|(weight, value)| Component { weight, value })
    }

    fn scores(&self) -> Vec<Vec<f64>> {
        let unit = |x: &Tensor| {
            let rows = Vec::<Vec<f64>>::try_from(x).unwrap();
            let norm = |row: &Vec<f64>| row.iter().map(|x| x * x).sum::<f64>().sqrt();
            rows.iter().map(|row| row.iter().map(|x| x / norm(row)).collect::<Vec<f64>>()).collect::<Vec<_>>()
        };
        let (queries, items) = (unit(&self.queries), unit(&self.items));
        let dot = |a: &Vec<f64>, b: &Vec<f64>| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        queries.iter().map(|query| items.iter().map(|item| dot(query, item)).collect()).collect()
    }
}

/// log softmax of scores over a temperature.
fn log_policy(scores: &[f64], temperature: f64) -> Vec<f64> {
    let all = scores.iter().map(|score| (score / temperature).exp()).sum::<f64>().ln();
    scores.iter().map(|score| score / temperature - all).collect()
}

fn advantages(query: usize) -> [f64; 4] {
    let rewards: Vec<f64> = (0..4).filter(|at| known(query, *at)).map(|at| f64::from(REWARDS[query][at])).collect();
    let mean = rewards.iter().sum::<f64>() / rewards.len() as f64;
    let std = (rewards.iter().map(|reward| (reward - mean).powi(2)).sum::<f64>() / rewards.len() as f64).sqrt();
    std::array::from_fn(|at| {
        if known(query, at) && std > 1e-6 { (f64::from(REWARDS[query][at]) - mean) / (std + 1e-6) } else { 0.0 }
    })
}

/// Equation 7, term by term.
fn by_hand(case: &Case, rule: &RGrpoSettings) -> f64 {
    let scores = case.scores();
    let [old, reference] = [&case.old, &case.reference].map(|x| Vec::<Vec<f32>>::try_from(x).unwrap());
    let mut loss = 0.0;
    for query in 0..3 {
        let of = |scores: &[f64]| match rule.support {
            Support::Batch => log_policy(scores, rule.temperature),
            Support::Group => log_policy(&PLACES[query].map(|place| scores[place as usize]), rule.temperature),
        };
        let place = |at: usize| match rule.support {
            Support::Batch => PLACES[query][at] as usize,
            Support::Group => at,
        };
        let reference: Vec<f64> = reference[query].iter().map(|score| f64::from(*score)).collect();
        let (policy, reference, advantage) = (of(&scores[query]), of(&reference), advantages(query));
        let group: Vec<usize> = (0..4).filter(|at| known(query, *at)).collect();
        let mut value = 0.0;
        for at in &group {
            let ratio = (policy[place(*at)] - f64::from(old[query][*at])).exp();
            let clipped = ratio.clamp(1.0 - rule.clip, 1.0 + rule.clip);
            let weight = match rule.weights {
                CandidateWeights::Equal => 1.0 / group.len() as f64,
                CandidateWeights::Policy => f64::from(old[query][*at]).exp(),
            };
            value += weight * (ratio * advantage[*at]).min(clipped * advantage[*at]);
        }
        let kl: f64 = policy.iter().zip(&reference).map(|(p, r)| p.exp() * (p - r)).sum();
        loss += rule.beta * kl - value;
    }
    loss
}

fn variants() -> Vec<RGrpoSettings> {
    let mut all = Vec::new();
    for support in [Support::Batch, Support::Group] {
        for weights in [CandidateWeights::Equal, CandidateWeights::Policy] {
            all.push(RGrpoSettings { temperature: 0.4, group: 4, support, weights, ..RGrpoSettings::default() });
        }
    }
    all
}

#[test]
fn r_grpo_is_equation_7() {
    let case = Case::new();
    for rule in variants() {
        let found = case.loss(&Objective::RGrpo(rule.clone()));
        let expected = by_hand(&case, &rule);
        assert!((found.loss.double_value(&[]) - expected).abs() < 1e-4, "{rule:?}: {} {expected}", found.loss);
        assert_eq!((found.tally.groups, found.tally.flat), (3.0, 1.0));
        assert!(found.tally.clipped >= 1.0, "a clip that never works proves nothing");
    }
}

#[test]
fn nested_prefixes_have_the_mean_of_their_losses() {
    let (whole, mut case) = (Case::new(), Case::new());
    let prefix = |x: &Tensor| x.narrow(1, 0, 2);
    let short = Case {
        queries: prefix(&whole.queries),
        items: prefix(&whole.items),
        old: &whole.old - 0.1,
        reference: &whole.reference * 0.5,
        ..Case::new()
    };
    case.old = Tensor::cat(&[&whole.old, &short.old], 1);
    case.reference = Tensor::cat(&[&whole.reference, &short.reference], 1);
    for rule in variants() {
        let found = case.loss(&Objective::RGrpo(RGrpoSettings { dimensions: vec![4, 2], ..rule.clone() }));
        let expected = (by_hand(&whole, &rule) + by_hand(&short, &rule)) / 2.0;
        assert!((found.loss.double_value(&[]) - expected).abs() < 1e-4, "{rule:?}: {} {expected}", found.loss);
        assert_eq!(found.tally, whole.loss(&Objective::RGrpo(rule)).tally);
    }
}

/// Gradient of the queries or items, under any objective that learns from groups.
fn gradient(case: &mut Case, rule: &Objective, items: bool) -> Tensor {
    let leaf = if items { &case.items } else { &case.queries }.detach().set_requires_grad(true);
    *(if items { &mut case.items } else { &mut case.queries }) = leaf.shallow_clone();
    case.loss(rule).loss.backward();
    *(if items { &mut case.items } else { &mut case.queries }) = leaf.detach();
    leaf.grad()
}

#[test]
fn gradients_are_those_of_finite_differences() {
    let mined = MinedSettings { depth: 4, group: 4 };
    let mut rules: Vec<Objective> = variants().into_iter().map(Objective::RGrpo).collect();
    rules.push(Objective::Pairwise(PairwiseSettings {
        temperature: 0.4,
        mined: mined.clone(),
        ..PairwiseSettings::default()
    }));
    rules.push(Objective::Pairwise(PairwiseSettings { temperature: 0.4, losses: Losses::Apart, mined: mined.clone() }));
    rules.push(Objective::Dpo(DpoSettings { temperature: 0.4, beta: 0.5, mined }));
    let mut case = Case::new();
    for rule in rules {
        for items in [false, true] {
            let found = gradient(&mut case, &rule, items);
            let whole = if items { case.items.copy() } else { case.queries.copy() };
            for at in 0..whole.numel() as i64 {
                let mut moved = |by: f64| {
                    let copy = whole.copy();
                    let _ = copy.view([-1]).get(at).g_add_scalar_(by);
                    *(if items { &mut case.items } else { &mut case.queries }) = copy;
                    case.loss(&rule).loss.double_value(&[])
                };
                let slope = (moved(5e-3) - moved(-5e-3)) / 1e-2;
                let found = found.view([-1]).double_value(&[at]);
                assert!((found - slope).abs() < 3e-3 * (1.0 + slope.abs()), "{rule:?} {at}: {found} beside {slope}");
            }
            *(if items { &mut case.items } else { &mut case.queries }) = whole;
        }
    }
}

#[test]
fn without_kl_the_first_update_follows_scores_weighed_by_advantages() {
    let mut case = Case::new();
    let rule = RGrpoSettings { temperature: 0.4, group: 4, beta: 0.0, ..RGrpoSettings::default() };
    case.old = super::r_grpo::log_policy(&rule, &cosines(&case.queries, &case.items), &case.candidates).1;
    let found = gradient(&mut case, &Objective::RGrpo(rule), true);
    let items = case.items.detach().set_requires_grad(true);
    let scores = cosines(&case.queries, &items).gather(1, &case.candidates, false);
    let weights: Vec<f32> = (0..3)
        .flat_map(|query| {
            let num = (0..4).filter(|at| known(query, *at)).count() as f64;
            advantages(query).map(|advantage| (-advantage / num / 0.4) as f32)
        })
        .collect();
    (scores * Tensor::from_slice(&weights).view([3, 4])).sum(Kind::Float).backward();
    assert!((found - items.grad()).abs().max().double_value(&[]) < 1e-5);
}

/// Where the policy ends up if one query's candidates are rewarded again and again: at π_ref · exp(A/β), if they are weighted by the policy.
#[test]
fn weighted_by_the_policy_the_optimum_is_the_reference_times_the_exponential_of_advantages() {
    let rewards = [1.0_f32, 0.5, 0.3, 0.2];
    let (beta, temperature) = (0.4, 0.5);
    let reference = Tensor::from_slice(&[0.1_f32, 0.4, 0.2, 0.3]).unsqueeze(0);
    let known = Tensor::from_slice(&[true; 4]).unsqueeze(0);
    let policy_of = |weights| {
        let rule = RGrpoSettings {
            temperature,
            group: 4,
            beta,
            weights,
            advantage: Scaling::Mean,
            ..RGrpoSettings::default()
        };
        let case = Case::new();
        let query = case.queries.narrow(0, 0, 1).to_kind(Kind::Float);
        let mut items = case.items.narrow(0, 0, 4).to_kind(Kind::Float);
        for _ in 0..4000 {
            let leaf = items.detach().set_requires_grad(true);
            let group = Group {
                candidates: &Tensor::arange(4, (Kind::Int64, Device::Cpu)).unsqueeze(0),
                reward: &Tensor::from_slice(&rewards).unsqueeze(0),
                known: &known,
                components: &[],
                old: None,
                reference: Some(&reference),
            };
            let vectors = Vectors { queries: &query, items: &leaf, steps: 1 };
            super::r_grpo::loss(&rule, &vectors, &group).loss.backward();
            items = leaf.detach() - leaf.grad() * 0.5;
        }
        let scores = Vec::<Vec<f64>>::try_from(cosines(&query, &items).to_kind(Kind::Double)).unwrap();
        log_policy(&scores[0], temperature)
    };
    let reference = log_policy(&[0.1, 0.4, 0.2, 0.3], temperature);
    // the mean reward is 0.5
    let tilted: Vec<f64> =
        reference.iter().zip(rewards).map(|(log, reward)| log + (f64::from(reward) - 0.5) / beta).collect();
    let expected = log_policy(&tilted, 1.0);
    let worst =
        |found: Vec<f64>| found.iter().zip(&expected).map(|(a, b)| (a.exp() - b.exp()).abs()).fold(0.0, f64::max);
    assert!(worst(policy_of(CandidateWeights::Policy)) < 5e-3);
    assert!(worst(policy_of(CandidateWeights::Equal)) > 0.1, "pushed by 1/G, whatever the policy");
}

#[test]
fn a_permutation_of_the_group_changes_nothing() {
    let mut case = Case::new();
    let order = Tensor::from_slice(&[2_i64, 0, 3, 1]);
    let mined = MinedSettings { depth: 4, group: 4 };
    let mut rules: Vec<Objective> = variants().into_iter().map(Objective::RGrpo).collect();
    rules.push(Objective::Pairwise(PairwiseSettings {
        temperature: 0.4,
        mined: mined.clone(),
        ..PairwiseSettings::default()
    }));
    rules.push(Objective::Dpo(DpoSettings { temperature: 0.4, beta: 0.5, mined }));
    let before: Vec<f64> = rules.iter().map(|rule| case.loss(rule).loss.double_value(&[])).collect();
    for part in [&mut case.candidates, &mut case.reward, &mut case.known, &mut case.old] {
        *part = part.index_select(1, &order);
    }
    for (rule, before) in rules.iter().zip(before) {
        assert!((case.loss(rule).loss.double_value(&[]) - before).abs() < 1e-5, "{rule:?}");
    }
}

#[test]
fn a_missing_reward_is_as_if_it_had_not_been_retrieved() {
    let mut case = Case::new();
    let without = |case: &Case| {
        let keep = Tensor::from_slice(&[0_i64, 1, 3]);
        let part = |x: &Tensor| x.index_select(1, &keep);
        Case {
            queries: case.queries.copy(),
            items: case.items.copy(),
            candidates: part(&case.candidates),
            reward: part(&case.reward),
            known: part(&case.known),
            old: part(&case.old),
            reference: case.reference.copy(),
        }
    };
    // the third candidate of every query has no reward
    let all: Vec<bool> = (0..12).map(|at| at % 4 != 2).collect();
    case.known = Tensor::from_slice(&all).view([3, 4]);
    let rule = Objective::RGrpo(RGrpoSettings { temperature: 0.4, group: 4, ..RGrpoSettings::default() });
    let mut short = without(&case);
    for items in [false, true] {
        let difference = gradient(&mut case, &rule, items) - gradient(&mut short, &rule, items);
        assert!(difference.abs().max().double_value(&[]) < 1e-6);
    }
}

#[test]
fn preferences_are_their_formulas() {
    let case = Case::new();
    let scores = case.scores();
    let reference = Vec::<Vec<f32>>::try_from(&case.reference).unwrap();
    let sum = |value: &dyn Fn(usize, usize) -> f64| {
        let mut all = 0.0;
        for query in 0..3 {
            let mut losses = Vec::new();
            for (i, j) in (0..4).flat_map(|i| (0..4).map(move |j| (i, j))) {
                if known(query, i) && known(query, j) && REWARDS[query][i] > REWARDS[query][j] {
                    let margin = value(query, PLACES[query][i] as usize) - value(query, PLACES[query][j] as usize);
                    losses.push((1.0 + (-margin).exp()).ln());
                }
            }
            all += losses.iter().sum::<f64>() / losses.len().max(1) as f64;
        }
        all
    };
    let mined = MinedSettings { depth: 4, group: 4 };
    let pairwise =
        |losses| case.loss(&Objective::Pairwise(PairwiseSettings { temperature: 0.4, losses, mined: mined.clone() }));
    let found = pairwise(Losses::Fused);
    let (wanted, opposite) = (sum(&|q, d| scores[q][d] / 0.4), sum(&|q, d| -scores[q][d] / 0.4));
    assert!((found.loss.double_value(&[]) - wanted).abs() < 1e-4);
    assert_eq!((found.tally.groups, found.tally.flat), (3.0, 1.0));
    let found = pairwise(Losses::Apart);
    assert!((found.loss.double_value(&[]) - (wanted + 0.5 * opposite)).abs() < 1e-4);
    assert_eq!((found.tally.groups, found.tally.flat), (3.0, 1.0));
    let dpo = Objective::Dpo(DpoSettings { temperature: 0.4, beta: 0.5, mined });
    let gained = |q: usize, d: usize| 0.5 * (scores[q][d] - f64::from(reference[q][d])) / 0.4;
    assert!((case.loss(&dpo).loss.double_value(&[]) - sum(&gained)).abs() < 1e-4);
}

#[test]
fn settings_that_cannot_be_meant_are_refused() {
    for rule in [
        RGrpoSettings { group: 1, ..RGrpoSettings::default() },
        RGrpoSettings { beta: -1.0, ..RGrpoSettings::default() },
        RGrpoSettings { clip: 0.0, ..RGrpoSettings::default() },
        RGrpoSettings { inner_epochs: 0, ..RGrpoSettings::default() },
        RGrpoSettings { min_std: f64::NAN, ..RGrpoSettings::default() },
        RGrpoSettings { dimensions: vec![4, 4], ..RGrpoSettings::default() },
    ] {
        assert!(Objective::RGrpo(rule.clone()).check(8).is_err(), "{rule:?}");
    }
    let wide = MinedSettings { depth: 4, group: 5 };
    assert!(Objective::Pairwise(PairwiseSettings { mined: wide, ..PairwiseSettings::default() }).check(8).is_err());
    let misspelt = serde_json::json!({"type": "pairwise", "dept": 3});
    assert!(serde_json::from_value::<Objective>(misspelt).is_err());
}
