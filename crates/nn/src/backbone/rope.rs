//! Rotary positions (RoPE): the angles are computed once per forward pass, in f32, and shared by all layers. Supports no
//! scaling, `linear` scaling and Llama 3's; other kinds are errors.

use std::f64::consts::PI;

use souk_native::Autocast;
use tch::{Device, Kind, Tensor};

use super::fields::Fields;
use souk_io::error::Result;

#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    theta: f64,
    scaling: Scaling,
}

/// Rotary positions of layers with full attention, and of those with a sliding window.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerRopes {
    pub(super) full: Rope,
    pub(super) sliding: Rope,
}

impl LayerRopes {
    pub(super) fn same(rope: Rope) -> Self {
        Self { full: rope.clone(), sliding: rope }
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Scaling {
    None,
    Linear { factor: f64 },
    Llama3 { factor: f64, low: f64, high: f64, trained_length: f64 },
}

impl Rope {
    /// Reads `rope_parameters` (transformers 5), or `rope_theta` and `rope_scaling` (before).
    pub(super) fn read(fields: &Fields, positions: i64) -> Result<Self> {
        let old_theta = fields.positive("rope_theta", Some(10_000.0))?;
        let old_scaling = fields.object("rope_scaling")?;
        let parameters = match fields.object("rope_parameters")? {
            Some(new) => Some(new),
            None => old_scaling,
        };
        match parameters {
            Some(parameters) => Self::parse(&parameters, old_theta, positions),
            None => Ok(Self { theta: old_theta, scaling: Scaling::None }),
        }
    }

    /// Reads one object of parameters.
    fn parse(parameters: &Fields, old_theta: f64, positions: i64) -> Result<Self> {
        let theta = parameters.positive("rope_theta", Some(old_theta))?;
        let old_name: Option<String> = parameters.get("type")?;
        let name: Option<String> = parameters.get("rope_type")?;
        parameters.expect("partial_rotary_factor", 1.0)?;
        let scaling = match name.or(old_name).as_deref() {
            None | Some("default") => Scaling::None,
            Some("linear") => Scaling::Linear { factor: parameters.positive("factor", None)? },
            Some("llama3") => Scaling::Llama3 {
                factor: parameters.positive("factor", None)?,
                low: parameters.positive("low_freq_factor", None)?,
                high: parameters.positive("high_freq_factor", None)?,
                trained_length: parameters.positive("original_max_position_embeddings", Some(positions as f64))?,
            },
            Some(other) => {
                let problem = format!("is `{other}`: Souk supports default, linear and llama3");
                return Err(parameters.error("rope_type", &problem));
            }
        };
        parameters.finish("")?;
        Ok(Self { theta, scaling })
    }

    /// Bases of layers with full attention and with a sliding window: `rope_parameters` by kind of layer (transformers 5), or two
    /// fields with their defaults, the second one for sliding windows, and a `rope_scaling` of full attention (before).
    pub(super) fn read_by_layer(fields: &Fields, positions: i64, old: [(&str, f64); 2]) -> Result<LayerRopes> {
        let by_layer = fields.object("rope_parameters")?;
        let old_scaling = fields.object("rope_scaling")?;
        let rope = |kind: &str, (theta, default): (&str, f64), old_scaling: Option<Fields>| {
            let theta = fields.positive(theta, Some(default))?;
            let own = by_layer.as_ref().map(|by_layer| by_layer.object(kind)).transpose()?.flatten();
            match own.or(old_scaling) {
                Some(parameters) => Self::parse(&parameters, theta, positions),
                None => Ok(Self { theta, scaling: Scaling::None }),
            }
        };
        let ropes = LayerRopes {
            full: rope("full_attention", old[0], old_scaling)?,
            sliding: rope("sliding_attention", old[1], None)?,
        };
        by_layer.map_or(Ok(()), |by_layer| by_layer.finish(""))?;
        Ok(ropes)
    }

    /// Frequencies, one per pair of entries of a head.
    fn frequencies(&self, head: i64) -> Vec<f64> {
        // rounds to f32 after each step, as in training
        let single = |x: f64| f64::from(x as f32);
        let plain = (0..head / 2).map(|i| single(1.0 / self.theta.powf(2.0 * i as f64 / head as f64)));
        match self.scaling {
            Scaling::None => plain.collect(),
            Scaling::Linear { factor } => plain.map(|f| f / factor).collect(),
            Scaling::Llama3 { factor, low, high, trained_length } => plain
                .map(|f| {
                    let wavelength = 2.0 * PI / f;
                    if wavelength < trained_length / high {
                        return f;
                    }
                    if wavelength > trained_length / low {
                        return f / factor;
                    }
                    let smooth = (trained_length / wavelength - low) / (high - low);
                    (1.0 - smooth) * f / factor + smooth * f
                })
                .collect(),
        }
    }

    /// Cosine and sine for `positions` (any shape p), each `[p, 1, e]`, shared by all heads. In `kind`, or under a GPU's autocast in
    /// bf16, as the queries and keys are: rotating in f32 moves twice the memory.
    pub(super) fn angles(&self, positions: &Tensor, head: i64, kind: Kind) -> Angles {
        let device = positions.device();
        let kind = if device != Device::Cpu && Autocast::is_on(device) { Kind::BFloat16 } else { kind };
        let frequencies: Vec<f32> = self.frequencies(head).iter().map(|&f| f as f32).collect();
        let frequencies = Tensor::from_slice(&frequencies).to_device(positions.device());
        let half = positions.to_kind(Kind::Float).unsqueeze(-1) * frequencies;
        let both = Tensor::cat(&[&half, &half], -1).unsqueeze(-2);
        Angles { cos: both.cos().to_kind(kind), sin: both.sin().to_kind(kind) }
    }
}

pub(super) struct Angles {
    cos: Tensor,
    sin: Tensor,
}

impl Angles {
    /// Rotates `x [.., h, e]` by its position.
    pub(super) fn rotate(&self, x: &Tensor) -> Tensor {
        let half = x.size().last().copied().unwrap_or(0) / 2;
        let (front, back) = (x.narrow(-1, 0, half), x.narrow(-1, half, half));
        let swapped = Tensor::cat(&[-back, front], -1);
        x * &self.cos + swapped * &self.sin
    }

    /// The same, rounded once at the end if `x` is not f32, as ModernBERT does.
    pub(super) fn rotate_exactly(&self, x: &Tensor) -> Tensor {
        self.rotate(&x.to_kind(Kind::Float)).to_kind(x.kind())
    }
}
