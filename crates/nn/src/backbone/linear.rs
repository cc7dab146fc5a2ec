//! Linear layers: trainable with an optional low-rank adapter, or frozen for CPU inference (f32 or int8). A `Projection` is
//! one or more linear layers with the same input (query, key and value; gate and up). On the CPU they are one matrix product,
//! fused with the operation after it: always when frozen, and in training where that is faster than libtorch's products.

use schemars::JsonSchema;
use std::cell::{Ref, RefCell};

use souk_native::{Activation, Autocast, Epilogue, NativeResult, Norm, PackedLinear, TrainedLinear};
use tch::{Device, Kind, Tensor};

use super::weights::{Init, Parameters};
use souk_io::error::{Error, Result};

/// Numeric precision of a model on its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// 32-bit floats.
    F32,
    /// bfloat16: GPUs, and CPUs with AVX512_BF16 or AMX.
    Bf16,
    /// int8 weights (scaled per output) and activations (scaled per token); CPU only, f32 between matrix products.
    Int8,
}

impl Precision {
    /// Kind in which parameters are stored.
    pub fn kind(self) -> Kind {
        match self {
            Self::F32 | Self::Int8 => Kind::Float,
            Self::Bf16 => Kind::BFloat16,
        }
    }
}

/// Weight matrix with a cached bf16 copy for autocast. libtorch caches casts of trained weights only: frozen ones are cast
/// again for every product, and the graph keeps each copy alive if a gradient flows through it.
pub(super) struct Matrix {
    exact: Tensor,
    /// bf16 copy and the version of `exact` it was made from: other holders of the tensor may change it in place.
    half: RefCell<Option<(i64, Tensor)>>,
}

impl Matrix {
    pub(super) fn of(exact: Tensor) -> Self {
        Self { exact, half: RefCell::new(None) }
    }

    /// Operand of the next matrix product: the bf16 copy under autocast, else the matrix itself.
    pub(super) fn factor(&self) -> Tensor {
        let exact = &self.exact;
        if exact.kind() != Kind::Float || exact.requires_grad() || !Autocast::is_on(exact.device()) {
            return exact.shallow_clone();
        }
        let now = exact.internal_version();
        let mut half = self.half.borrow_mut();
        match &*half {
            Some((version, kept)) if *version == now => kept.shallow_clone(),
            _ => half.insert((now, exact.to_kind(Kind::BFloat16))).1.shallow_clone(),
        }
    }

    pub(super) fn exact(&self) -> &Tensor {
        &self.exact
    }

    fn add(&mut self, change: &Tensor) {
        self.exact.copy_(&(&self.exact + change));
    }
}

pub struct Linear {
    /// Hub name of the tensor without `.weight`.
    pub(super) name: String,
    /// `[out, in]`
    weight: Matrix,
    bias: Option<Tensor>,
    pub(super) adapter: Option<Adapter>,
}

/// LoRA: `y += scale · up(down(dropout(x)))`.
pub struct Adapter {
    /// `[rank, in]`
    pub(super) down: Tensor,
    /// `[out, rank]`
    pub(super) up: Tensor,
    pub(super) scale: f64,
    pub(super) dropout: f64,
}

/// Name and sizes of one linear layer.
pub(super) struct LinearSpec<'a> {
    pub name: &'a str,
    pub inputs: i64,
    pub outputs: i64,
    pub bias: bool,
    /// Standard deviation of randomly initialised weights.
    pub std: f64,
}

impl Linear {
    pub(super) fn build(spec: LinearSpec, parameters: &mut Parameters) -> Result<Self> {
        let LinearSpec { name, inputs, outputs, bias, std } = spec;
        let weight = parameters.tensor(&format!("{name}.weight"), &[outputs, inputs], Init::Normal(std))?;
        let bias = if bias { Some(parameters.tensor(&format!("{name}.bias"), &[outputs], Init::Zeros)?) } else { None };
        Ok(Self { name: name.into(), weight: Matrix::of(weight), bias, adapter: None })
    }

    fn forward(&self, x: &Tensor, train: bool) -> Tensor {
        self.adapt(x.linear(&self.weight.factor(), self.bias.as_ref()), x, train)
    }

    /// Adds the adapter's part to the product `y`.
    fn adapt(&self, y: Tensor, x: &Tensor, train: bool) -> Tensor {
        match &self.adapter {
            None => y,
            Some(Adapter { down, up, scale, dropout }) => {
                let x = if train { x.dropout(*dropout, true) } else { x.shallow_clone() };
                y + x.linear::<&Tensor>(down, None).linear::<&Tensor>(up, None) * *scale
            }
        }
    }

    pub(super) fn weight(&self) -> &Tensor {
        self.weight.exact()
    }

    /// Merges the adapter into the weight.
    pub(super) fn merge(&mut self) {
        if let Some(Adapter { down, up, scale, .. }) = self.adapter.take() {
            let _guard = tch::no_grad_guard();
            let change = up.matmul(&down) * scale;
            self.weight.add(&change);
        }
    }
}

pub struct Projection {
    parts: Vec<Linear>,
    outputs: Vec<i64>,
    frozen: Option<PackedLinear>,
    /// The parts packed for training; packed again once they have changed.
    trained: RefCell<Option<TrainedLinear>>,
}

/// Operation after a projection, fused with it where possible.
pub(super) enum PostOp<'a> {
    Nothing,
    Activation(Activation),
    /// Adds the residual and normalises the sum (post-norm).
    AddNorm(AddNorm<'a>),
}

/// Dropout, residual and norm at the end of a sublayer.
#[derive(Clone, Copy)]
pub(super) struct AddNorm<'a> {
    /// Share of the projection's entries that is dropped in training; 0 otherwise.
    pub dropout: f64,
    pub residual: &'a Tensor,
    pub norm: &'a LayerNorm,
}

impl Projection {
    pub(super) fn of(parts: Vec<Linear>) -> Self {
        let outputs = parts.iter().map(|part| part.weight().size()[0]).collect();
        Self { parts, outputs, frozen: None, trained: RefCell::new(None) }
    }

    pub(super) fn parts_mut(&mut self) -> &mut [Linear] {
        &mut self.parts
    }

    /// Output of each linear layer; from one product, they are views of one tensor.
    pub(super) fn split(&self, x: &Tensor, train: bool) -> Result<Vec<Tensor>> {
        let parts = |all: Tensor| all.split_with_sizes(&self.outputs[..], -1);
        if let Some(all) = self.joined(x)? {
            return Ok(parts(all));
        }
        if let Some(trained) = self.trained(x)? {
            let all = parts(flat(x, trained.out_features(), |rows| trained.forward(rows, None))?);
            return Ok(all.into_iter().zip(&self.parts).map(|(y, part)| part.adapt(y, x, train)).collect());
        }
        Ok(self.parts.iter().map(|part| part.forward(x, train)).collect())
    }

    /// Outputs of all linear layers side by side, if one product computes them.
    pub(super) fn joined(&self, x: &Tensor) -> Result<Option<Tensor>> {
        if let Some(frozen) = &self.frozen {
            return flat(x, frozen.out_features(), |rows| frozen.forward(rows, Epilogue::None)).map(Some);
        }
        match self.plainly_trained(x)? {
            Some(trained) => flat(x, trained.out_features(), |rows| trained.forward(rows, None)).map(Some),
            None => Ok(None),
        }
    }

    /// Output of a projection with a single linear layer.
    pub(super) fn apply(&self, x: &Tensor, post_op: PostOp, train: bool) -> Result<Tensor> {
        if let Some(frozen) = &self.frozen {
            let run = |epilogue: Epilogue| flat(x, frozen.out_features(), |rows| frozen.forward(rows, epilogue));
            return post_op.fused(run);
        }
        if let Some(trained) = self.plainly_trained(x)? {
            let run = |norm: Option<Norm>| flat(x, trained.out_features(), |rows| trained.forward(rows, norm));
            return post_op.fused_norm(run);
        }
        let y = self.split(x, train)?.remove(0);
        Ok(post_op.unfused(y))
    }

    /// The parts packed for training, if their products are faster that way than libtorch's. Under autocast they have factors in
    /// bf16 and results in f32.
    fn trained(&self, x: &Tensor) -> Result<Option<Ref<'_, TrainedLinear>>> {
        let exact = |t: &Tensor| t.kind() == Kind::Float && t.device() == Device::Cpu;
        let factors = if Autocast::is_on(Device::Cpu) { Kind::BFloat16 } else { Kind::Float };
        let fits = exact(x) && self.parts.iter().all(|part| exact(part.weight()));
        if !fits || !souk_native::packed_products_are_faster(factors)? {
            return Ok(None);
        }
        if !self.trained.borrow().as_ref().is_some_and(|trained| trained.is_current(factors)) {
            let weights: Vec<&Tensor> = self.parts.iter().map(Linear::weight).collect();
            let biases: Vec<Option<&Tensor>> = self.parts.iter().map(|part| part.bias.as_ref()).collect();
            self.trained.replace(None);
            self.trained.replace(Some(TrainedLinear::pack(&weights, &biases, factors)?));
        }
        Ok(Ref::filter_map(self.trained.borrow(), Option::as_ref).ok())
    }

    /// The same, if no part has an adapter, which would add to the product.
    fn plainly_trained(&self, x: &Tensor) -> Result<Option<Ref<'_, TrainedLinear>>> {
        if self.parts.iter().any(|part| part.adapter.is_some()) { Ok(None) } else { self.trained(x) }
    }

    /// Packs the weights for the CPU and drops the originals; the projection can no longer be trained.
    pub(super) fn freeze(&mut self, precision: Precision) -> Result<()> {
        let weight = Tensor::cat(&self.parts.iter().map(Linear::weight).collect::<Vec<_>>(), 0);
        let zeros = |part: &Linear| Tensor::zeros([part.weight().size()[0]], (Kind::Float, weight.device()));
        let bias = if self.parts.iter().any(|p| p.bias.is_some()) {
            let all: Vec<Tensor> =
                self.parts.iter().map(|p| p.bias.as_ref().map_or_else(|| zeros(p), Tensor::shallow_clone)).collect();
            Some(Tensor::cat(&all, 0))
        } else {
            None
        };
        self.trained.replace(None);
        self.frozen = Some(match precision {
            Precision::F32 => PackedLinear::f32(&weight, bias.as_ref())?,
            Precision::Int8 => PackedLinear::int8(&weight, bias.as_ref())?,
            Precision::Bf16 => return Err(Error::device("bf16 cannot be packed: use f32 or int8")),
        });
        self.parts.clear();
        Ok(())
    }
}

/// Computes `down(activation(up(x)))` and the end of the sublayer; packed, the intermediate rows stay in the CPU cache.
pub(super) fn feed_forward(
    [up, down]: [&Projection; 2],
    activation: Activation,
    x: &Tensor,
    end: AddNorm,
    train: bool,
) -> Result<Tensor> {
    let post_op = PostOp::AddNorm(end);
    if let (Some(wide), Some(narrow)) = (&up.frozen, &down.frozen) {
        let run = |epilogue: Epilogue| {
            flat(x, narrow.out_features(), |rows| souk_native::feed_forward(rows, wide, activation, narrow, epilogue))
        };
        return post_op.fused(run);
    }
    if let (Some(wide), Some(narrow)) = (up.plainly_trained(x)?, down.plainly_trained(x)?) {
        let run = |norm: Option<Norm>| {
            let run = |rows: &Tensor| souk_native::train_feed_forward(rows, &wide, activation, &narrow, norm);
            flat(x, narrow.out_features(), run)
        };
        return post_op.fused_norm(run);
    }
    down.apply(&up.apply(x, PostOp::Activation(activation), train)?, post_op, train)
}

impl PostOp<'_> {
    /// Applies the operation as a separate step.
    fn unfused(self, y: Tensor) -> Tensor {
        match self {
            Self::Nothing => y,
            Self::Activation(activation) => activate(&y, activation),
            Self::AddNorm(AddNorm { dropout, residual, norm }) => {
                norm.forward(&(y.dropout(dropout, dropout > 0.0) + residual))
            }
        }
    }

    /// Calls `run` with the operation as an epilogue of the packed product.
    fn fused(self, run: impl FnOnce(Epilogue) -> Result<Tensor>) -> Result<Tensor> {
        match self {
            Self::Nothing => run(Epilogue::None),
            Self::Activation(activation) => run(Epilogue::Activation(activation)),
            Self::AddNorm(end) => run(Epilogue::AddNorm(end.fused(&rows_of(end.residual)))),
        }
    }

    /// Calls `run` with the norm, if that is the operation; any other one is a separate step.
    fn fused_norm(self, run: impl FnOnce(Option<Norm>) -> Result<Tensor>) -> Result<Tensor> {
        match self {
            Self::AddNorm(end) => run(Some(end.fused(&rows_of(end.residual)))),
            other => run(None).map(|y| other.unfused(y)),
        }
    }
}

impl AddNorm<'_> {
    /// The same for `residual` as a matrix of rows.
    fn fused<'a>(&'a self, residual: &'a Tensor) -> Norm<'a> {
        let LayerNorm { weight, bias, eps } = self.norm;
        Norm { residual, weight, bias, eps: *eps, dropout: self.dropout }
    }
}

/// Runs a packed product, which takes a matrix of rows, on `x [.., in]`.
fn flat(x: &Tensor, outputs: i64, run: impl FnOnce(&Tensor) -> NativeResult<Tensor>) -> Result<Tensor> {
    let y = run(&rows_of(x))?;
    if x.dim() == 2 {
        return Ok(y);
    }
    let mut shape = x.size();
    if let Some(last) = shape.last_mut() {
        *last = outputs;
    }
    Ok(y.view(&shape[..]))
}

/// `x [.., in]` as a matrix; the same tensor if it is one, because a layer recognises a residual that is its input.
fn rows_of(x: &Tensor) -> Tensor {
    if x.dim() == 2 && x.is_contiguous() {
        return x.shallow_clone();
    }
    let width = x.size().last().copied().unwrap_or(0);
    x.reshape([-1, width]).contiguous()
}

pub(super) fn activate(x: &Tensor, activation: Activation) -> Tensor {
    match activation {
        Activation::Gelu => x.gelu("none"),
        Activation::GeluTanh => x.gelu("tanh"),
        Activation::Relu => x.relu(),
        Activation::Silu => x.silu(),
    }
}

/// Parses `hidden_act` of a hub config.
pub(super) fn activation_of(name: &str) -> Option<Activation> {
    match name {
        "gelu" => Some(Activation::Gelu),
        "gelu_new" | "gelu_pytorch_tanh" => Some(Activation::GeluTanh),
        "relu" => Some(Activation::Relu),
        "silu" | "swish" => Some(Activation::Silu),
        _ => None,
    }
}

pub struct LayerNorm {
    pub(super) weight: Tensor,
    pub(super) bias: Tensor,
    pub(super) eps: f64,
}

impl LayerNorm {
    pub(super) fn build(name: &str, width: i64, eps: f64, parameters: &mut Parameters) -> Result<Self> {
        let weight = parameters.tensor(&format!("{name}.weight"), &[width], Init::Ones)?;
        let bias = parameters.tensor(&format!("{name}.bias"), &[width], Init::Zeros)?;
        Ok(Self { weight, bias, eps })
    }

    /// A norm whose bias is zero, not trained and not stored.
    pub(super) fn build_unbiased(name: &str, width: i64, eps: f64, parameters: &mut Parameters) -> Result<Self> {
        let weight = parameters.tensor(&format!("{name}.weight"), &[width], Init::Ones)?;
        let bias = weight.zeros_like();
        Ok(Self { weight, bias, eps })
    }

    pub(super) fn forward(&self, x: &Tensor) -> Tensor {
        x.layer_norm(self.weight.size(), Some(&self.weight), Some(&self.bias), self.eps, false)
    }
}

#[derive(Clone, Copy, Debug)]
pub struct RmsSettings {
    pub(super) eps: f64,
    /// Multiplies by 1 + weight, as in Gemma.
    pub(super) plus_one: bool,
}

pub struct RmsNorm {
    weight: Tensor,
    settings: RmsSettings,
}

impl RmsNorm {
    pub(super) fn build(name: &str, width: i64, settings: RmsSettings, parameters: &mut Parameters) -> Result<Self> {
        let init = if settings.plus_one { Init::Zeros } else { Init::Ones };
        Ok(Self { weight: parameters.tensor(&format!("{name}.weight"), &[width], init)?, settings })
    }

    /// Computes statistics in f32 for any kind, as in training. On a GPU in one pass over the memory.
    pub(super) fn forward(&self, x: &Tensor) -> Tensor {
        let RmsSettings { eps, plus_one } = self.settings;
        if matches!(x.device(), Device::Cuda(_)) && !plus_one {
            return x.rms_norm(self.weight.size().as_slice(), Some(&self.weight), eps);
        }
        let single = x.to_kind(Kind::Float);
        let scale = (single.square().mean_dim(-1, true, Kind::Float) + eps).rsqrt();
        if plus_one {
            // rounds after the product, as in training
            return (single * scale * (self.weight.to_kind(Kind::Float) + 1.0)).to_kind(x.kind());
        }
        (single * scale).to_kind(x.kind()) * &self.weight
    }
}

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::*;

    /// Linear layer from 3 to 2 with frozen weights and a trainable adapter.
    fn adapted() -> Linear {
        tch::manual_seed(7);
        let drawn = |shape: [i64; 2]| Tensor::randn(shape, (Kind::Float, Device::Cpu));
        let learned = |shape| drawn(shape).set_requires_grad(true);
        let adapter = Adapter { down: learned([1, 3]), up: learned([2, 1]), scale: 0.5, dropout: 0.0 };
        Linear { name: "map".into(), weight: Matrix::of(drawn([2, 3])), bias: None, adapter: Some(adapter) }
    }

    #[test]
    fn frozen_weights_are_cast_once_and_equal_autocast() {
        let map = adapted();
        let x = Tensor::randn([4, 3], (Kind::Float, Device::Cpu)).set_requires_grad(true);
        let gradient = |y: Tensor| {
            Tensor::run_backward(&[y.to_kind(Kind::Float).square().sum(Kind::Float)], &[&x], false, false).remove(0)
        };
        let _autocast = Autocast::start(Device::Cpu).unwrap();
        let kept = x.linear::<&Tensor>(&map.weight.factor(), None);
        let cast_anew = x.linear::<&Tensor>(map.weight(), None);
        assert_eq!(kept.kind(), Kind::BFloat16);
        assert!(kept.equal(&cast_anew));
        assert!(gradient(kept).equal(&gradient(cast_anew)));
        assert_eq!(map.weight.factor().data_ptr(), map.weight.factor().data_ptr(), "one copy");
        drop(_autocast);
        assert_eq!(map.weight.factor().kind(), Kind::Float, "uncast outside the guard");
    }

    #[test]
    fn weights_changed_in_place_are_cast_again() {
        let matrix = Matrix::of(Tensor::ones([2, 3], (Kind::Float, Device::Cpu)));
        let mut alias = matrix.exact().shallow_clone();
        let sum = || {
            let _autocast = Autocast::start(Device::Cpu).unwrap();
            matrix.factor().sum(Kind::Float).double_value(&[])
        };
        assert_eq!(sum(), 6.0);
        let _no_grad = tch::no_grad_guard();
        alias.copy_(&Tensor::full([2, 3], 2.0, (Kind::Float, Device::Cpu)));
        assert_eq!(sum(), 12.0);
    }

    #[test]
    fn merged_weights_are_cast_again() {
        let mut map = adapted();
        let x = Tensor::ones([1, 3], (Kind::Float, Device::Cpu));
        let under_autocast = |map: &Linear| {
            let _autocast = Autocast::start(Device::Cpu).unwrap();
            let _no_grad = tch::no_grad_guard();
            map.forward(&x, false).to_kind(Kind::Float)
        };
        let before = under_autocast(&map);
        map.merge();
        let after = under_autocast(&map);
        assert!(after.allclose(&before, 2e-2, 2e-2, false), "{after} is not {before}");
        let _autocast = Autocast::start(Device::Cpu).unwrap();
        assert!(after.equal(&x.linear::<&Tensor>(map.weight(), None).to_kind(Kind::Float)));
    }
}
