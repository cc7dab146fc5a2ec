//! AdamW over named tensors in f32, with gradient clipping, no weight decay on biases and norms, and a cosine schedule with
//! warm-up. Its state can be saved and restored. Never draws a random number.

use std::collections::BTreeMap;
use std::f64::consts::PI;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use souk_native::{AdamW, Moments, fused_adamw};
use tch::{Kind, Tensor};

use souk_io::error::{Error, Result};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct OptimizerSettings {
    /// Peak learning rate, reached after the warm-up.
    pub learning_rate: f64,
    /// AdamW's β₁ and β₂.
    pub betas: [f64; 2],
    /// AdamW's ε.
    pub epsilon: f64,
    /// Weight decay; not applied to tensors with one dimension (biases and norms).
    pub weight_decay: f64,
    /// Fraction of all steps with linear warm-up; then the rate falls to 0 along a cosine.
    pub warmup: f64,
    /// Maximum gradient norm; 0 disables clipping.
    pub clip: f64,
}

impl Default for OptimizerSettings {
    fn default() -> Self {
        Self { learning_rate: 1e-5, betas: [0.9, 0.95], epsilon: 1e-8, weight_decay: 0.01, warmup: 0.05, clip: 1.0 }
    }
}

impl OptimizerSettings {
    fn check(&self) -> Result<()> {
        let invalid = |name: &str, value: f64, range: &str| {
            Err(Error::config(format!("train.optimizer.{name}"), format!("is {value}: set it to {range}")))
        };
        for (name, value) in [("learning_rate", self.learning_rate), ("epsilon", self.epsilon)] {
            if !value.is_finite() || value <= 0.0 {
                return invalid(name, value, "a number above 0");
            }
        }
        for (name, value) in [("weight_decay", self.weight_decay), ("clip", self.clip)] {
            if !value.is_finite() || value < 0.0 {
                return invalid(name, value, "0 or more");
            }
        }
        match self.betas.into_iter().find(|beta| !(0.0..1.0).contains(beta)) {
            Some(beta) => invalid("betas", beta, "two numbers from 0 to below 1"),
            None if !(0.0..=1.0).contains(&self.warmup) => invalid("warmup", self.warmup, "a fraction from 0 to 1"),
            None => Ok(()),
        }
    }

    /// Learning rate of step `at`, counted from 0, of `steps`. The first warm-up step has a rate above 0.
    pub fn rate(&self, at: u64, steps: u64) -> f64 {
        let warmup = (self.warmup * steps as f64).round();
        let at = at as f64;
        if at < warmup {
            return self.learning_rate * (at + 1.0) / warmup;
        }
        let rest = (steps as f64 - warmup).max(1.0);
        self.learning_rate * 0.5 * (1.0 + (PI * ((at - warmup) / rest).min(1.0)).cos())
    }
}

pub struct Optimizer {
    settings: OptimizerSettings,
    parameters: Vec<Parameter>,
    steps: u64,
}

struct Parameter {
    name: String,
    tensor: Tensor,
    first: Tensor,
    second: Tensor,
}

impl Optimizer {
    pub fn new(settings: &OptimizerSettings, named: Vec<(String, Tensor)>) -> Result<Self> {
        settings.check()?;
        let parameter = |(name, tensor): (String, Tensor)| {
            let zeros = || tensor.detach().zeros_like();
            Parameter { name, first: zeros(), second: zeros(), tensor }
        };
        Ok(Self { settings: settings.clone(), parameters: named.into_iter().map(parameter).collect(), steps: 0 })
    }

    pub fn settings(&self) -> &OptimizerSettings {
        &self.settings
    }

    /// Number of updates made.
    pub fn num_steps(&self) -> u64 {
        self.steps
    }

    /// Trained tensors, in their original order.
    pub fn weights(&self) -> impl Iterator<Item = &Tensor> {
        self.parameters.iter().map(|parameter| &parameter.tensor)
    }

    /// Number of entries of all tensors.
    pub fn num_parameters(&self) -> usize {
        self.parameters.iter().map(|parameter| parameter.tensor.numel()).sum()
    }

    /// Gradients, in the same order on all processes; zeros for tensors without a part in the loss.
    pub fn gradients(&self) -> Vec<Tensor> {
        let gradient = |parameter: &Parameter| {
            let gradient = parameter.tensor.grad();
            if gradient.defined() { gradient.contiguous() } else { parameter.tensor.detach().zeros_like() }
        };
        self.parameters.iter().map(gradient).collect()
    }

    /// Clips the gradients to the maximum norm; returns the norm before clipping.
    pub fn clip(&self, gradients: &mut [Tensor]) -> f64 {
        let norms: Vec<Tensor> = gradients.iter().map(|gradient| gradient.norm().to_kind(Kind::Double)).collect();
        let norm = Tensor::stack(&norms, 0).norm().double_value(&[]);
        if self.settings.clip > 0.0 && norm > self.settings.clip {
            let scale = self.settings.clip / (norm + 1e-6);
            gradients.iter_mut().for_each(|gradient| drop(gradient.g_mul_scalar_(scale)));
        }
        norm
    }

    /// Makes one update with a learning rate.
    pub fn step(&mut self, gradients: &[Tensor], rate: f64) -> Result<()> {
        self.steps += 1;
        let OptimizerSettings { betas: [beta1, beta2], epsilon: eps, weight_decay, .. } = self.settings;
        for decays in [true, false] {
            let group = || self.parameters.iter().zip(gradients).filter(|(p, _)| (p.tensor.dim() > 1) == decays);
            let of = |pick: fn((&Parameter, &Tensor)) -> Tensor| group().map(pick).collect::<Vec<Tensor>>();
            let (tensors, gradients) = (of(|(p, _)| p.tensor.shallow_clone()), of(|(_, g)| g.shallow_clone()));
            let (first, second) = (of(|(p, _)| p.first.shallow_clone()), of(|(p, _)| p.second.shallow_clone()));
            let steps = vec![self.steps as i64; tensors.len()];
            let moments = Moments { first: &first, second: &second, steps: &steps };
            let weight_decay = if decays { weight_decay } else { 0.0 };
            fused_adamw(&tensors, &gradients, moments, &AdamW { rate, beta1, beta2, eps, weight_decay })?;
        }
        Ok(())
    }

    /// Whether all weights are finite.
    pub fn is_finite(&self) -> bool {
        let _guard = tch::no_grad_guard();
        self.parameters.iter().all(|parameter| parameter.tensor.sum(Kind::Double).double_value(&[]).is_finite())
    }

    pub fn zero(&mut self) {
        self.parameters.iter_mut().for_each(|parameter| parameter.tensor.zero_grad());
    }

    /// Copies of weights and moments on the CPU, by name; later steps do not change them.
    pub fn state(&self) -> BTreeMap<String, Tensor> {
        let copy = |tensor: &Tensor| tensor.detach().to_device(tch::Device::Cpu).copy();
        let mut state = BTreeMap::new();
        for Parameter { name, tensor, first, second } in &self.parameters {
            for (part, tensor) in [("weight", tensor), ("first", first), ("second", second)] {
                state.insert(format!("{part}/{name}"), copy(tensor));
            }
        }
        state
    }

    /// Copies of the weights alone on the CPU, by name.
    pub fn copies(&self) -> BTreeMap<String, Tensor> {
        let copy = |parameter: &Parameter| parameter.tensor.detach().to_device(tch::Device::Cpu).copy();
        self.parameters.iter().map(|parameter| (parameter.name.clone(), copy(parameter))).collect()
    }

    /// Sets the weights to those that `copies` returned.
    pub fn load(&mut self, copies: &BTreeMap<String, Tensor>) -> Result<()> {
        let _guard = tch::no_grad_guard();
        for Parameter { name, tensor, .. } in &mut self.parameters {
            let found = copies.get(name).filter(|found| found.size() == tensor.size());
            tensor.copy_(
                found
                    .ok_or_else(|| Error::input(format!("these weights are of another model: `{name}` is missing")))?,
            );
        }
        Ok(())
    }

    /// Restores what `state` returned after `steps` updates.
    pub fn restore(&mut self, mut state: BTreeMap<String, Tensor>, steps: u64) -> Result<()> {
        let _guard = tch::no_grad_guard();
        for parameter in &mut self.parameters {
            let Parameter { name, tensor, first, second } = parameter;
            for (part, tensor) in [("weight", tensor), ("first", first), ("second", second)] {
                let key = format!("{part}/{name}");
                let found = state.remove(&key).filter(|found| found.size() == tensor.size());
                let missing = || {
                    Error::input(format!("the checkpoint is of another model: `{key}` is missing or has another shape"))
                };
                tensor.copy_(&found.ok_or_else(missing)?);
            }
        }
        match state.keys().next() {
            Some(key) => Err(Error::input(format!("the checkpoint is of another model: `{key}` is unknown"))),
            None => {
                self.steps = steps;
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::*;

    fn parameters() -> Vec<(String, Tensor)> {
        let of = |shape: &[i64]| Tensor::ones(shape, (Kind::Float, Device::Cpu)).set_requires_grad(true);
        vec![("matrix".into(), of(&[2, 2])), ("bias".into(), of(&[2]))]
    }

    fn step(optimizer: &mut Optimizer, named: &[(String, Tensor)], rate: f64) {
        optimizer.zero();
        let loss = named.iter().map(|(_, tensor)| (tensor * tensor).sum(Kind::Float)).reduce(|a, b| a + b).unwrap();
        loss.backward();
        let mut gradients = optimizer.gradients();
        optimizer.clip(&mut gradients);
        optimizer.step(&gradients, rate).unwrap();
    }

    #[test]
    fn two_steps_equal_the_formula_and_biases_do_not_decay() {
        let named = parameters();
        let copies = named.iter().map(|(name, tensor)| (name.clone(), tensor.shallow_clone())).collect();
        let settings = OptimizerSettings { weight_decay: 0.5, clip: 0.0, ..OptimizerSettings::default() };
        let mut optimizer = Optimizer::new(&settings, copies).unwrap();
        let by_hand = |decay: f64| {
            let (mut w, mut m, mut v) = (1.0_f64, 0.0, 0.0);
            for t in 1..=2 {
                let g = 2.0 * w;
                w -= 0.1 * decay * w;
                (m, v) = (0.9 * m + 0.1 * g, 0.95 * v + 0.05 * g * g);
                let (m, v) = (m / (1.0 - 0.9_f64.powi(t)), v / (1.0 - 0.95_f64.powi(t)));
                w -= 0.1 * m / (v.sqrt() + 1e-8);
            }
            w
        };
        step(&mut optimizer, &named, 0.1);
        step(&mut optimizer, &named, 0.1);
        assert!((named[0].1.double_value(&[1, 1]) - by_hand(0.5)).abs() < 1e-6);
        assert!((named[1].1.double_value(&[1]) - by_hand(0.0)).abs() < 1e-6);
    }

    #[test]
    fn a_restored_optimizer_continues_bit_for_bit() {
        let (a, b) = (parameters(), parameters());
        let open = |named: &[(String, Tensor)]| {
            let copies = named.iter().map(|(name, tensor)| (name.clone(), tensor.shallow_clone())).collect();
            Optimizer::new(&OptimizerSettings::default(), copies).unwrap()
        };
        let (mut whole, mut resumed) = (open(&a), open(&b));
        (0..3).for_each(|_| step(&mut whole, &a, 0.1));
        let state = whole.state();
        (0..3).for_each(|_| step(&mut whole, &a, 0.1));
        resumed.restore(state, 3).unwrap();
        (0..3).for_each(|_| step(&mut resumed, &b, 0.1));
        assert!(a.iter().zip(&b).all(|(a, b)| a.1 == b.1));
        assert!(resumed.restore(BTreeMap::new(), 0).is_err());
    }

    #[test]
    fn clips_gradients_to_the_maximum_norm() {
        let named = parameters();
        let copies = named.iter().map(|(name, tensor)| (name.clone(), tensor.shallow_clone())).collect();
        let optimizer = Optimizer::new(&OptimizerSettings::default(), copies).unwrap();
        let mut gradients = vec![Tensor::from_slice(&[3.0_f32]), Tensor::from_slice(&[4.0_f32])];
        assert!((optimizer.clip(&mut gradients) - 5.0).abs() < 1e-6);
        assert!((gradients[1].double_value(&[0]) - 0.8).abs() < 1e-5);
        assert!((optimizer.clip(&mut gradients) - 1.0).abs() < 1e-5);
    }

    #[test]
    fn the_rate_warms_up_and_decays() {
        let settings = OptimizerSettings { learning_rate: 1.0, warmup: 0.1, ..OptimizerSettings::default() };
        let rates: Vec<f64> = (0..100).map(|at| settings.rate(at, 100)).collect();
        assert!((rates[0] - 0.1).abs() < 1e-12 && (rates[9] - 1.0).abs() < 1e-12 && (rates[10] - 1.0).abs() < 1e-12);
        assert!((rates[55] - 0.5).abs() < 1e-12 && rates[99] > 0.0 && rates[99] < 1e-3);
        assert!(rates[10..].windows(2).all(|pair| pair[1] < pair[0]));
        let flat = OptimizerSettings { warmup: 0.0, ..settings };
        assert_eq!(flat.rate(0, 1), 1.0);
    }

    #[test]
    fn rejects_invalid_settings() {
        for settings in [
            OptimizerSettings { learning_rate: 0.0, ..OptimizerSettings::default() },
            OptimizerSettings { betas: [0.9, 1.0], ..OptimizerSettings::default() },
            OptimizerSettings { warmup: 2.0, ..OptimizerSettings::default() },
            OptimizerSettings { clip: f64::NAN, ..OptimizerSettings::default() },
        ] {
            assert!(Optimizer::new(&settings, Vec::new()).is_err(), "{settings:?}");
        }
    }
}
