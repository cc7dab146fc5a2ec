//! Linear layers against plain tch: products, epilogues, int8 error bounds, independence of the batch.

mod close;

use close::{assert_close, forced_isas, largest, randn};
use souk_native::testing::{Isa, force};
use souk_native::{Activation, Epilogue, NativeError, Norm, PackedLinear, feed_forward};
use tch::{Device, Kind, Tensor};

// Up to 24 rows use the panels, unless the weight is too large for them.
const SHAPES: [(i64, i64, i64); 13] = [
    (1, 24, 40),
    (1, 384, 384),
    (7, 33, 17),
    (13, 100, 50),
    (16, 64, 3),
    (24, 1536, 384),
    (25, 384, 40),
    (3, 2048, 2064),
    (63, 384, 1152),
    (65, 100, 50),
    (200, 1536, 384),
    (515, 48, 384),
    (1100, 384, 96),
];

fn activated(y: &Tensor, a: Activation) -> Tensor {
    match a {
        Activation::Gelu => y.gelu("none"),
        Activation::GeluTanh => y.gelu("tanh"),
        Activation::Relu => y.relu(),
        Activation::Silu => y.silu(),
    }
}

const ACTIVATIONS: [Activation; 4] = [Activation::Gelu, Activation::GeluTanh, Activation::Relu, Activation::Silu];

#[test]
fn f32_equals_plain_torch() {
    for _ in forced_isas() {
        for (t, i, o) in SHAPES {
            let (x, w, b) = (randn(&[t, i]), randn(&[o, i]) / (i as f64).sqrt(), randn(&[o]));
            let plain = x.linear(&w, Some(&b));
            let layer = PackedLinear::f32(&w, Some(&b)).unwrap();
            assert_eq!((layer.in_features(), layer.out_features()), (i, o));
            assert_close(&layer.forward(&x, Epilogue::None).unwrap(), &plain, 1e-5);
            for a in ACTIVATIONS {
                let y = layer.forward(&x, Epilogue::Activation(a)).unwrap();
                assert_close(&y, &activated(&plain, a), 1e-5);
            }
            let (residual, weight, bias) = (randn(&[t, o]) + 3.0, randn(&[o]), randn(&[o]));
            let norm = Norm { residual: &residual, weight: &weight, bias: &bias, eps: 1e-12, dropout: 0.0 };
            let want = (&plain + &residual).layer_norm([o], Some(&weight), Some(&bias), 1e-12, false);
            assert_close(&layer.forward(&x, Epilogue::AddNorm(norm)).unwrap(), &want, 1e-5);
            let bare = PackedLinear::f32(&w, None).unwrap();
            assert_close(&bare.forward(&x, Epilogue::None).unwrap(), &x.linear(&w, None::<&Tensor>), 1e-5);
        }
    }
}

#[test]
fn layer_norm_keeps_precision_beside_a_large_mean() {
    for _ in forced_isas() {
        let (x, residual) = (randn(&[9, 8]), randn(&[9, 384]) + 100.0);
        let (w, weight, bias) = (randn(&[384, 8]) * 0.0, randn(&[384]), randn(&[384]));
        let layer = PackedLinear::f32(&w, None).unwrap();
        let norm = Norm { residual: &residual, weight: &weight, bias: &bias, eps: 1e-5, dropout: 0.0 };
        let double = |t: &Tensor| t.to_kind(Kind::Double);
        let exact = double(&residual).layer_norm([384], Some(double(&weight)), Some(double(&bias)), 1e-5, false);
        let ours = layer.forward(&x, Epilogue::AddNorm(norm)).unwrap();
        let torch = residual.layer_norm([384], Some(&weight), Some(&bias), 1e-5, false);
        let (error, theirs) = (largest(&(double(&ours) - &exact)), largest(&(double(&torch) - &exact)));
        assert!(error <= 2.0 * theirs + 1e-6, "{error} against torch's {theirs}");
    }
}

#[test]
fn activations_hold_over_their_whole_range() {
    // One input of 1 times the weight column gives each value itself.
    let values = Tensor::linspace(-100.0, 100.0, 200_001, (Kind::Float, Device::Cpu));
    let layer = PackedLinear::f32(&values.view([-1, 1]), None).unwrap();
    let one = Tensor::ones([1, 1], (Kind::Float, Device::Cpu));
    for isa in forced_isas() {
        for a in ACTIVATIONS {
            let y = layer.forward(&one, Epilogue::Activation(a)).unwrap().view([-1]);
            let exact = activated(&values.to_kind(Kind::Double), a);
            let error = largest(&((y.to_kind(Kind::Double) - &exact) / (values.abs() + 1.0)));
            assert!(error < 3e-7, "{a:?} on {isa:?}: {error}");
        }
    }
}

/// Bound on the quantisation error: half a step of the row times the weights, plus half a step of the weight times the inputs.
fn int8_bound(x: &Tensor, w: &Tensor) -> Tensor {
    let zero = Tensor::zeros([1], (Kind::Float, Device::Cpu));
    let high = x.amax([1i64], true).maximum(&zero);
    let low = x.amin([1i64], true).minimum(&zero);
    let step = (high - low) / 255.0;
    let scale = w.abs().amax([1i64], false) / 127.0;
    let columns = w.abs().sum_dim_intlist([1i64].as_slice(), false, Kind::Float) + &scale * (x.size()[1] as f64 / 2.0);
    let rows = x.abs().sum_dim_intlist([1i64].as_slice(), true, Kind::Float);
    step * 0.5 * columns + rows * 0.5 * scale
}

#[test]
fn int8_stays_inside_its_rounding_error() {
    for isa in forced_isas() {
        for (t, i, o) in SHAPES {
            let x = randn(&[t, i]) * (randn(&[t, 1]) * 2.0).exp() + randn(&[t, 1]);
            let (w, b) = (randn(&[o, i]), randn(&[o]));
            let layer = PackedLinear::int8(&w, Some(&b)).unwrap();
            let (y, want) = (layer.forward(&x, Epilogue::None).unwrap(), x.linear(&w, Some(&b)));
            let bound = int8_bound(&x, &w) * 1.001 + 1e-4;
            let worst = ((&y - &want).abs() / bound).max().double_value(&[]);
            assert!(worst <= 1.0, "[{t}, {i}, {o}] on {isa:?}: {worst} of the bound");
            // Errors of random sign add up like a random walk, far below the bound.
            let relative = ((&y - &want).norm() / want.norm()).double_value(&[]);
            assert!(t * o < 10_000 || relative < 0.02, "[{t}, {i}, {o}] on {isa:?}: relative error {relative}");
            for a in ACTIVATIONS {
                assert_close(&layer.forward(&x, Epilogue::Activation(a)).unwrap(), &activated(&y, a), 1e-5);
            }
            let (residual, weight, bias) = (randn(&[t, o]), randn(&[o]), randn(&[o]));
            let norm = Norm { residual: &residual, weight: &weight, bias: &bias, eps: 1e-5, dropout: 0.0 };
            let want = (&y + &residual).layer_norm([o], Some(&weight), Some(&bias), 1e-5, false);
            assert_close(&layer.forward(&x, Epilogue::AddNorm(norm)).unwrap(), &want, 2e-5);
        }
    }
}

/// Whole numbers of the full range are their own int8 values. Some instructions saturate on the largest.
#[test]
fn int8_products_are_exact() {
    for isa in forced_isas() {
        for (rows, depth, width) in [(1, 1, 1), (7, 3, 17), (13, 102, 40), (40, 3073, 70)] {
            let x = Tensor::randint(256, [rows, depth], (Kind::Float, Device::Cpu));
            let w = Tensor::randint(255, [width, depth], (Kind::Float, Device::Cpu)) - 127;
            let _ = (x.get(0).fill_(255), w.get(0).fill_(127), w.get(-1).fill_(-127));
            let _ = (x.narrow(1, 0, 1).fill_(255), w.narrow(1, 0, 1).fill_(-127));
            let exact = x.to_kind(Kind::Double).matmul(&w.to_kind(Kind::Double).tr());
            let y = PackedLinear::int8(&w, None).unwrap().forward(&x, Epilogue::None).unwrap().to_kind(Kind::Double);
            let largest_product = 255.0 * 127.0 * depth as f64;
            let error = largest(&(y - exact)) / largest_product;
            assert!(error < 1e-6, "[{rows}, {depth}, {width}] on {isa:?}: {error}");
        }
    }
}

#[test]
fn a_layer_is_used_with_the_instructions_that_it_was_packed_for() {
    let (w, x) = (randn(&[8, 24]), randn(&[3, 24]));
    let isas: Vec<Isa> = forced_isas().collect();
    for at in &isas {
        assert!(force(*at));
        let layer = PackedLinear::int8(&w, None).unwrap();
        for other in &isas {
            assert!(force(*other));
            match layer.forward(&x, Epilogue::None) {
                Ok(y) => assert_close(&y, &x.linear(&w, None::<&Tensor>), 0.1),
                Err(e) => {
                    assert!(e.to_string().contains("another instruction set"), "{e}");
                    assert!(*at as i32 != *other as i32, "{at:?} refuses its own layer");
                }
            }
        }
    }
}

#[test]
fn feed_forward_equals_its_two_layers() {
    for (t, d, wide) in [(1, 384, 1536), (65, 24, 100), (0, 8, 16), (700, 64, 256)] {
        let (w1, w2) = (randn(&[wide, d]) / (d as f64).sqrt(), randn(&[d, wide]) / (wide as f64).sqrt());
        let (b1, b2, weight) = (randn(&[wide]), randn(&[d]), randn(&[d]));
        let pairs = [PackedLinear::f32, PackedLinear::int8]
            .map(|pack| (pack(&w1, Some(&b1)).unwrap(), pack(&w2, Some(&b2)).unwrap()));
        let x = randn(&[t, d]);
        for (up, down) in pairs {
            let norm = Norm { residual: &x, weight: &weight, bias: &b2, eps: 1e-5, dropout: 0.0 };
            for epilogue in [Epilogue::None, Epilogue::AddNorm(norm)] {
                let wide = up.forward(&x, Epilogue::Activation(Activation::Gelu)).unwrap();
                let want = down.forward(&wide, epilogue).unwrap();
                let ours = feed_forward(&x, &up, Activation::Gelu, &down, epilogue).unwrap();
                assert_close(&ours, &want, 2e-6);
            }
            assert!(feed_forward(&x, &up, Activation::Gelu, &up, Epilogue::None).is_err());
        }
    }
}

#[test]
fn a_row_alone_equals_the_row_in_a_batch() {
    let (w, b) = (randn(&[96, 384]), randn(&[96]));
    let layers = [PackedLinear::f32, PackedLinear::int8].map(|pack| pack(&w, Some(&b)).unwrap());
    let x = randn(&[700, 384]) * (randn(&[700, 1]) * 3.0).exp();
    for layer in layers {
        let all = layer.forward(&x, Epilogue::Activation(Activation::Gelu)).unwrap();
        for row in [0, 1, 255, 256, 511, 699] {
            let alone = layer.forward(&x.narrow(0, row, 1), Epilogue::Activation(Activation::Gelu)).unwrap();
            assert!(alone.equal(&all.narrow(0, row, 1)), "{layer:?} row {row}");
        }
    }
}

#[test]
fn what_is_not_finite_stays_visible() {
    let w = randn(&[8, 24]);
    let x = randn(&[3, 24]);
    let _ = x.narrow(0, 1, 1).narrow(1, 5, 1).fill_(f64::NAN);
    for isa in forced_isas() {
        for layer in [PackedLinear::f32, PackedLinear::int8].map(|pack| pack(&w, None).unwrap()) {
            for epilogue in
                [Epilogue::None, Epilogue::Activation(Activation::Gelu), Epilogue::Activation(Activation::Silu)]
            {
                let y = layer.forward(&x, epilogue).unwrap();
                assert!(bool::try_from(y.get(1).isnan().all()).unwrap(), "{layer:?} on {isa:?}");
                assert!(bool::try_from(y.get(0).isfinite().all()).unwrap());
            }
        }
    }
}

#[test]
fn empty_batches_and_zero_rows_work() {
    let (w, b) = (randn(&[40, 24]), randn(&[40]));
    let layers = [PackedLinear::f32, PackedLinear::int8].map(|pack| pack(&w, Some(&b)).unwrap());
    for layer in layers {
        let none = Tensor::zeros([0, 24], (Kind::Float, Device::Cpu));
        assert_eq!(layer.forward(&none, Epilogue::None).unwrap().size(), [0, 40]);
        let zeros = Tensor::zeros([2, 24], (Kind::Float, Device::Cpu));
        assert_close(&layer.forward(&zeros, Epilogue::None).unwrap(), &b.expand([2, 40], false), 0.0);
    }
}

#[test]
fn bad_arguments_are_errors() {
    let (w, b) = (randn(&[40, 24]), randn(&[40]));
    let layer = PackedLinear::f32(&w, Some(&b)).unwrap();
    let refused = |r: souk_native::NativeResult<Tensor>, who: &str| match r {
        Err(NativeError::Argument { name, .. }) => assert_eq!(name, who),
        other => panic!("{other:?}"),
    };
    refused(layer.forward(&randn(&[3, 25]), Epilogue::None), "x");
    refused(layer.forward(&randn(&[24]), Epilogue::None), "x");
    refused(layer.forward(&randn(&[24, 3]).tr(), Epilogue::None), "x");
    refused(layer.forward(&randn(&[3, 24]).to_kind(Kind::Double), Epilogue::None), "x");
    refused(layer.forward(&randn(&[3, 24]).to_mkldnn(), Epilogue::None), "x");
    refused(layer.forward(&Tensor::new(), Epilogue::None), "x");
    let (good, low, short) = (randn(&[3, 40]), randn(&[2, 40]), randn(&[39]));
    let norm = Norm { residual: &good, weight: &b, bias: &b, eps: 1e-5, dropout: 0.0 };
    let forward = |norm| layer.forward(&randn(&[3, 24]), Epilogue::AddNorm(norm));
    assert!(forward(norm).is_ok());
    refused(forward(Norm { residual: &low, ..norm }), "residual");
    refused(forward(Norm { weight: &short, ..norm }), "norm weight");
    refused(forward(Norm { bias: &short, ..norm }), "norm bias");
    refused(forward(Norm { dropout: 0.1, ..norm }), "dropout");
    assert!(PackedLinear::f32(&w, Some(&short)).is_err());
    assert!(PackedLinear::f32(&randn(&[40]), None).is_err());
    assert!(PackedLinear::int8(&randn(&[0, 24]), None).is_err());
}
