//! Head of the cross-encoder: pooled states to outputs, outputs to the loss, and, on the host, outputs to level probabilities,
//! a score and a level.
//!
//! `ordinal`: one output s and three rising cutpoints θ, P(level > k) = σ((s − θ_k)/T); `four_way`: a softmax over four
//! outputs. The loss is the negative log-probability of the judged level at T = 1.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor};

use super::reading::Reading;
use souk_io::domain::Level;
use souk_io::error::Result;
use souk_nn::backbone::Architecture;
use souk_nn::backbone::weights::{Init, Parameters};
use souk_reward::Verdict;

pub const NUM_LEVELS: usize = 4;
/// Finite stand-in for infinity; infinity would give NaN gradients.
pub(super) const FAR: f64 = 1e4;
const INIT_STD: f64 = 0.02;
/// Tensor of the cutpoints: the first, then the inverse softplus of each distance to the next.
const CUTPOINTS: &str = "ordinal.cutpoints";

/// Loss of the relevance model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Loss {
    /// Ordinal: levels are steps on one scale.
    #[default]
    Ordinal,
    /// Softmax over four unrelated levels.
    FourWay,
}

impl Loss {
    pub fn num_outputs(self) -> i64 {
        match self {
            Self::Ordinal => 1,
            Self::FourWay => NUM_LEVELS as i64,
        }
    }
}

/// Tensors of the head that transformers' class for an architecture has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeadFamily {
    /// `pooler`, then `classifier`.
    Bert,
    /// `classifier.dense`, then `classifier.out_proj`.
    Roberta,
    /// `score`.
    Decoder,
    /// Another head than ours.
    Other,
}

impl HeadFamily {
    pub fn of(architecture: &Architecture) -> Self {
        match architecture.class_names().class {
            "Bert" => Self::Bert,
            "Roberta" | "XLMRoberta" | "MPNet" => Self::Roberta,
            _ if architecture.is_decoder() => Self::Decoder,
            _ => Self::Other,
        }
    }

    /// Layer that gives the outputs.
    pub fn output(self) -> &'static str {
        match self {
            Self::Bert => "classifier",
            Self::Roberta => "classifier.out_proj",
            Self::Decoder => "score",
            Self::Other => "judge",
        }
    }
}

/// Location of the head's tensors and its input, in the form that `transformers` loads.
pub(super) struct HeadShape {
    pub loss: Loss,
    pub width: i64,
    pub family: HeadFamily,
    pub pooling: Reading,
    /// Prefix of the backbone's tensors.
    pub prefix: String,
}

pub(super) struct Head {
    loss: Loss,
    /// Layer before the outputs: on the first token (tanh), or on two pooled texts (gelu).
    hidden: Option<(Tensor, Tensor)>,
    sides: bool,
    weight: Tensor,
    bias: Option<Tensor>,
    cutpoints: Option<Tensor>,
}

impl HeadShape {
    /// Tensor names outside the backbone.
    pub const TENSORS: [&str; 4] = ["classifier.", "score.", "judge.", "ordinal."];

    /// Whether a class of transformers computes this head; the tensors of others have no standard name.
    fn is_standard(&self) -> bool {
        match self.family {
            HeadFamily::Bert | HeadFamily::Roberta => self.pooling == Reading::Cls,
            HeadFamily::Decoder => self.pooling == Reading::LastToken,
            HeadFamily::Other => false,
        }
    }

    /// Layer that gives the outputs.
    fn output(&self) -> &'static str {
        if self.is_standard() { self.family.output() } else { "judge" }
    }

    /// Layer before it.
    fn hidden(&self) -> Option<String> {
        match self.family {
            _ if self.pooling == Reading::Sides => Some("judge.dense".into()),
            HeadFamily::Bert if self.is_standard() => Some(format!("{}pooler.dense", self.prefix)),
            HeadFamily::Roberta if self.is_standard() => Some("classifier.dense".into()),
            _ => None,
        }
    }
}

impl Head {
    /// Loads all tensors from `weights`. With `fresh`, it initialises those that `weights` do not have, or have for another head.
    pub fn build(shape: &HeadShape, weights: &mut Parameters, mut fresh: Option<&mut Parameters>) -> Result<Self> {
        let mut take = |name: &str, size: &[i64], init| match &mut fresh {
            Some(fresh) if !weights.fits(name, size) => fresh.tensor(name, size, init),
            _ => weights.tensor(name, size, init),
        };
        let (name, width, outputs) = (shape.output(), shape.width, shape.loss.num_outputs());
        let sides = shape.pooling == Reading::Sides;
        let mut hidden = None;
        if let Some(at) = shape.hidden() {
            let size = [width, shape.pooling.width(width)];
            let weight = take(&format!("{at}.weight"), &size, Init::Normal(INIT_STD))?;
            hidden = Some((weight, take(&format!("{at}.bias"), &[width], Init::Zeros)?));
        }
        let weight = take(&format!("{name}.weight"), &[outputs, width], Init::Normal(INIT_STD))?;
        let bias = match name {
            "score" => None,
            _ => Some(take(&format!("{name}.bias"), &[outputs], Init::Zeros)?),
        };
        let cutpoints = match shape.loss {
            Loss::Ordinal => Some(take(CUTPOINTS, &[NUM_LEVELS as i64 - 1], Init::Zeros)?),
            Loss::FourWay => None,
        };
        Ok(Self { loss: shape.loss, hidden, sides, weight, bias, cutpoints })
    }

    /// Pooled states `[b, w]` to outputs `[b, o]`, in f32.
    pub fn outputs(&self, pooled: &Tensor) -> Tensor {
        let kind = self.weight.kind();
        let mut x = pooled.to_kind(kind);
        if let Some((weight, bias)) = &self.hidden {
            let y = x.linear(weight, Some(bias));
            x = if self.sides { y.gelu("none") } else { y.tanh() };
        }
        x.linear(&self.weight, self.bias.as_ref()).to_kind(Kind::Float)
    }

    /// Mean loss of `outputs [b, o]` for levels `[b]`, counted from 0.
    pub fn loss(&self, outputs: &Tensor, levels: &Tensor) -> Tensor {
        match &self.cutpoints {
            None => outputs.cross_entropy_for_logits(levels),
            Some(raw) => ordinal_loss(outputs, raw, levels),
        }
    }

    /// Cutpoints as numbers; meaningless for `four_way`.
    pub fn cutpoints(&self) -> Result<[f64; 3]> {
        let Some(raw) = &self.cutpoints else { return Ok([0.0; 3]) };
        let values = Vec::<f64>::try_from(rising(raw).to_kind(Kind::Double))?;
        Ok(std::array::from_fn(|k| values[k]))
    }

    pub fn kind_of_loss(&self) -> Loss {
        self.loss
    }
}

/// Cutpoints, rising.
fn rising(raw: &Tensor) -> Tensor {
    let gaps = raw.narrow(0, 1, 2).softplus();
    Tensor::cat(&[raw.narrow(0, 0, 1), gaps], 0).cumsum(0, Kind::Float)
}

/// −log(σ(s − θ_low) − σ(s − θ_high)), written so that neither end loses its digits:
/// σ(a) − σ(b) = σ(a)·σ(−b)·(1 − exp(b − a)).
fn ordinal_loss(outputs: &Tensor, raw: &Tensor, levels: &Tensor) -> Tensor {
    let end = |value: f64| Tensor::from_slice(&[value as f32]).to_device(raw.device());
    let ends = Tensor::cat(&[end(-FAR), rising(&raw.to_kind(Kind::Float)), end(FAR)], 0);
    let (low, high) = (ends.index_select(0, levels), ends.index_select(0, &(levels + 1)));
    let score = outputs.squeeze_dim(1);
    let apart = (-(&low - &high).expm1()).log();
    -((&score - low).log_sigmoid() + (high - score).log_sigmoid() + apart).mean(Kind::Float)
}

/// Maps outputs to probabilities, score and level. Calibrated, then saved beside the weights.
#[derive(Clone, Debug, PartialEq)]
pub struct Grading {
    pub loss: Loss,
    pub cutpoints: [f64; 3],
    pub temperature: f64,
    /// Minimum scores of L2, L3 and L4.
    pub thresholds: [f64; 3],
}

impl Grading {
    /// Uncalibrated: evenly spaced levels.
    pub fn plain(loss: Loss, cutpoints: [f64; 3]) -> Self {
        Self { loss, cutpoints, temperature: 1.0, thresholds: [1.0 / 6.0, 0.5, 5.0 / 6.0] }
    }

    /// Probabilities of the four levels.
    pub fn probabilities(&self, outputs: &[f32]) -> [f64; NUM_LEVELS] {
        match self.loss {
            Loss::Ordinal => {
                let score = outputs.first().copied().map_or(f64::NAN, f64::from);
                let above = self.cutpoints.map(|cut| sigmoid((score - cut) / self.temperature));
                [1.0 - above[0], above[0] - above[1], above[1] - above[2], above[2]].map(|p| p.max(0.0))
            }
            Loss::FourWay => {
                let scaled: [f64; NUM_LEVELS] = std::array::from_fn(|level| {
                    outputs.get(level).copied().map_or(f64::NAN, f64::from) / self.temperature
                });
                let most = scaled.into_iter().fold(f64::NEG_INFINITY, f64::max);
                let powers = scaled.map(|output| (output - most).exp());
                let sum: f64 = powers.iter().sum();
                powers.map(|power| power / sum)
            }
        }
    }

    /// Expected level, scaled to 0 for L1 and 1 for L4.
    pub fn score(&self, outputs: &[f32]) -> f64 {
        let [_, second, third, fourth] = self.probabilities(outputs);
        ((second + 2.0 * third + 3.0 * fourth) / 3.0).clamp(0.0, 1.0)
    }

    /// One number that rises with the relevance: an ordinal loss's output, else the logit of the score.
    pub fn output(&self, outputs: &[f32]) -> f32 {
        match (self.loss, outputs) {
            (Loss::Ordinal, [output, ..]) => *output,
            _ => {
                let score = self.score(outputs).clamp(1e-6, 1.0 - 1e-6);
                (score / (1.0 - score)).ln() as f32
            }
        }
    }

    /// Probability of L3 or L4.
    pub fn good(&self, outputs: &[f32]) -> f64 {
        let [_, _, third, fourth] = self.probabilities(outputs);
        third + fourth
    }

    pub fn level(&self, score: f64) -> Level {
        Level::ALL[self.thresholds.iter().filter(|threshold| score >= **threshold).count()]
    }

    /// Whether a score that is wrong by up to `error` may have another level.
    pub fn is_near_threshold(&self, score: f64, error: f64) -> bool {
        self.level((score - error).max(0.0)) != self.level((score + error).min(1.0))
    }

    pub fn verdict(&self, outputs: &[f32]) -> Verdict {
        let score = self.score(outputs);
        Verdict { score: score as f32, level: self.level(score) }
    }
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::*;

    fn head(loss: Loss, seed: u64) -> Head {
        let shape =
            HeadShape { loss, width: 6, family: HeadFamily::Bert, pooling: Reading::Cls, prefix: String::new() };
        Head::build(&shape, &mut Parameters::seeded(seed, Device::Cpu, Kind::Float), None).unwrap()
    }

    #[test]
    fn the_ordinal_loss_is_the_formulas() {
        let raw = Tensor::from_slice(&[-0.7_f32, 0.3, 1.1]);
        let softplus = |x: f64| x.exp().ln_1p();
        let first = f64::from(-0.7_f32);
        let cuts = [first, first + softplus(f64::from(0.3_f32)), 0.0];
        let cuts = [cuts[0], cuts[1], cuts[1] + softplus(f64::from(1.1_f32))];
        let found = Vec::<f64>::try_from(rising(&raw).to_kind(Kind::Double)).unwrap();
        assert!(found.iter().zip(cuts).all(|(a, b)| (a - b).abs() < 1e-6), "{found:?} {cuts:?}");
        let scores = [-2.0_f32, 0.1, 0.9, 3.5];
        let levels = [0_i64, 2, 1, 3];
        let outputs = Tensor::from_slice(&scores).unsqueeze(1);
        let loss = ordinal_loss(&outputs, &raw, &Tensor::from_slice(&levels)).double_value(&[]);
        let grading = Grading::plain(Loss::Ordinal, cuts);
        let by_hand = scores.iter().zip(levels).map(|(s, level)| -grading.probabilities(&[*s])[level as usize].ln());
        assert!((loss - by_hand.sum::<f64>() / 4.0).abs() < 1e-6, "{loss}");
        // P(L2) at s = 0.9: sigmoid(1.6) - sigmoid(0.9 + 0.7 - 0.8544) = 0.83202 - 0.67827
        assert!((grading.probabilities(&[0.9])[1] - 0.1537).abs() < 1e-3, "{:?}", grading.probabilities(&[0.9]));
    }

    #[test]
    fn far_outputs_have_a_finite_loss_and_gradient() {
        let raw = Tensor::zeros([3], (Kind::Float, Device::Cpu)).set_requires_grad(true);
        let outputs = Tensor::from_slice(&[-300_f32, 300.0, -90.0, 90.0]).unsqueeze(1).set_requires_grad(true);
        let loss = ordinal_loss(&outputs, &raw, &Tensor::from_slice(&[3_i64, 0, 1, 2]));
        loss.backward();
        let sum = loss + outputs.grad().abs().sum(Kind::Float) + raw.grad().abs().sum(Kind::Float);
        assert!(sum.double_value(&[]).is_finite());
    }

    #[test]
    fn four_ways_are_a_softmax() {
        let grading = Grading::plain(Loss::FourWay, [0.0; 3]);
        let probabilities = grading.probabilities(&[1.0_f32.ln(), 2.0_f32.ln(), 3.0_f32.ln(), 4.0_f32.ln()]);
        assert!(probabilities.iter().zip([0.1, 0.2, 0.3, 0.4]).all(|(a, b)| (a - b).abs() < 1e-6), "{probabilities:?}");
        let outputs = [1.0_f32, 2.0, 3.0, 4.0].map(f32::ln);
        assert!((grading.score(&outputs) - (0.2 + 0.6 + 1.2) / 3.0).abs() < 1e-6);
        assert!((grading.good(&outputs) - 0.7).abs() < 1e-6);
        assert_eq!(grading.verdict(&outputs).level, Level::L3);
        assert!(grading.is_near_threshold(0.495, 0.01) && !grading.is_near_threshold(0.48, 0.01));
        let head = head(Loss::FourWay, 3);
        let batch = Tensor::from_slice(&outputs).unsqueeze(0);
        let loss = head.loss(&batch, &Tensor::from_slice(&[1_i64])).double_value(&[]);
        assert!((loss + 0.2_f64.ln()).abs() < 1e-6);
    }

    #[test]
    fn gradients_are_finite_differences() {
        for loss in [Loss::Ordinal, Loss::FourWay] {
            let head = head(loss, 7);
            let states = Tensor::from_slice(&(0..30).map(|i| ((i * 7 % 11) as f32 - 5.0) / 4.0).collect::<Vec<_>>());
            let (states, levels) = (states.view([5, 6]), Tensor::from_slice(&[0_i64, 3, 1, 2, 2]));
            let mut tensors = vec![head.weight.shallow_clone(), head.hidden.as_ref().unwrap().0.shallow_clone()];
            tensors.extend(head.cutpoints.as_ref().map(Tensor::shallow_clone));
            tensors.iter().for_each(|tensor| drop(tensor.set_requires_grad(true)));
            let run = || head.loss(&head.outputs(&states), &levels);
            run().backward();
            let _guard = tch::no_grad_guard();
            for tensor in &tensors {
                let (flat, gradient) = (tensor.view([-1]), tensor.grad().view([-1]));
                for at in 0..flat.size()[0].min(8) {
                    let moved = |by: f64| {
                        drop(flat.get(at).g_add_scalar_(by));
                        let loss = run().double_value(&[]);
                        drop(flat.get(at).g_add_scalar_(-by));
                        loss
                    };
                    let difference = (moved(1e-2) - moved(-1e-2)) / 2e-2;
                    let found = gradient.double_value(&[at]);
                    assert!((difference - found).abs() < 2e-4, "{loss:?} {at}: {difference} and {found}");
                }
            }
        }
    }
}
