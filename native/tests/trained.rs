//! Layers in training against plain tch: results, gradients, and their independence of the batch.

mod close;

use close::{
    LENGTHS, assert_close, assert_same, by_segment, forced_isas, gradients, learned, randn, starts, visibilities,
};
use souk_native::{
    Activation, Norm, Scores, TrainedLinear, Visibility, attention, joined_attention, supports_bf16, train_feed_forward,
};
use tch::{Device, Kind, Tensor};

/// Rows, inputs and outputs. Inputs and outputs of some are summed in several passes.
const SHAPES: [(i64, i64, i64); 9] = [
    (1, 24, 40),
    (7, 33, 17),
    (65, 100, 50),
    (95, 48, 36),
    (200, 384, 96),
    (513, 64, 130),
    (1100, 96, 384),
    (130, 70, 803),
    (20, 900, 10),
];

#[test]
fn linear_layers_equal_plain_torch() {
    for _ in forced_isas() {
        for (t, i, o) in SHAPES {
            let (x, w) = (learned(randn(&[t, i])), learned(randn(&[o, i]) / (i as f64).sqrt()));
            let b = learned(randn(&[o]));
            let layer = TrainedLinear::pack(&[&w], &[Some(&b)], Kind::Float).unwrap();
            let plain = x.linear(&w, Some(&b));
            assert_same(layer.forward(&x, None), &plain, &[&x, &w, &b]);
            let bare = TrainedLinear::pack(&[&w], &[None], Kind::Float).unwrap();
            assert_same(bare.forward(&x, None), &x.linear::<&Tensor>(&w, None), &[&x, &w]);
            assert_same(layer.forward(&x.detach(), None), &x.detach().linear(&w, Some(&b)), &[&w, &b]);
            let frozen = TrainedLinear::pack(&[&w.detach()], &[Some(&b.detach())], Kind::Float).unwrap();
            assert_same(frozen.forward(&x, None), &plain, &[&x]);

            let (residual, weight, bias) = (learned(randn(&[t, o])), learned(randn(&[o])), learned(randn(&[o])));
            let norm = Norm { residual: &residual, weight: &weight, bias: &bias, eps: 1e-5, dropout: 0.0 };
            let plain = (&plain + &residual).layer_norm([o], Some(&weight), Some(&bias), 1e-5, false);
            assert_same(layer.forward(&x, Some(norm)), &plain, &[&x, &w, &b, &residual, &weight, &bias]);
        }
    }
}

#[test]
fn layers_side_by_side_equal_each_alone() {
    for _ in forced_isas() {
        for (t, i) in [(3, 20), (130, 64), (600, 96)] {
            let x = learned(randn(&[t, i]));
            let weights = [70, 33, 50].map(|o| learned(randn(&[o, i])));
            let biases = [Some(learned(randn(&[70]))), None, Some(learned(randn(&[50])))];
            let of = weights.each_ref();
            let layer = TrainedLinear::pack(&of, &biases.each_ref().map(Option::as_ref), Kind::Float).unwrap();
            let alone: Vec<Tensor> = of.iter().zip(&biases).map(|(w, b)| x.linear(w, b.as_ref())).collect();
            let all: Vec<&Tensor> = [&x].into_iter().chain(of).chain(biases.iter().flatten()).collect();
            assert_same(layer.forward(&x, None), &Tensor::cat(&alone, 1), &all);
        }
    }
}

#[test]
fn feed_forward_equals_plain_torch() {
    let activations = [Activation::Gelu, Activation::GeluTanh, Activation::Relu, Activation::Silu];
    for _ in forced_isas() {
        for (n, (t, d, wide)) in [(1, 40, 100), (65, 24, 100), (515, 64, 256), (1100, 48, 96)].into_iter().enumerate() {
            let x = learned(randn(&[t, d]));
            let (w1, b1) = (learned(randn(&[wide, d]) / (d as f64).sqrt()), learned(randn(&[wide])));
            let (w2, b2) = (learned(randn(&[d, wide]) / (wide as f64).sqrt()), learned(randn(&[d])));
            let (weight, bias) = (learned(randn(&[d])), learned(randn(&[d])));
            let up = TrainedLinear::pack(&[&w1], &[Some(&b1)], Kind::Float).unwrap();
            let down = TrainedLinear::pack(&[&w2], &[Some(&b2)], Kind::Float).unwrap();
            let raw = x.linear(&w1, Some(&b1));
            let activated = match activations[n] {
                Activation::Gelu => raw.gelu("none"),
                Activation::GeluTanh => raw.gelu("tanh"),
                Activation::Relu => raw.relu(),
                Activation::Silu => raw.silu(),
            };
            let plain = activated.linear(&w2, Some(&b2));
            let all = [&x, &w1, &b1, &w2, &b2];
            assert_same(train_feed_forward(&x, &up, activations[n], &down, None), &plain, &all);
            for residual in [x.shallow_clone(), learned(randn(&[t, d])), randn(&[t, d])] {
                let norm = Norm { residual: &residual, weight: &weight, bias: &bias, eps: 1e-5, dropout: 0.0 };
                let plain = (&plain + &residual).layer_norm([d], Some(&weight), Some(&bias), 1e-5, false);
                let mut all = vec![&x, &w1, &b1, &w2, &b2, &weight, &bias];
                all.extend(residual.requires_grad().then_some(&residual));
                assert_same(train_feed_forward(&x, &up, activations[n], &down, Some(norm)), &plain, &all);
            }
        }
    }
}

/// The value of `x` rounded to bf16, in f64.
fn rounded(x: &Tensor) -> Tensor {
    x.detach().to_kind(Kind::BFloat16).to_kind(Kind::Double)
}

#[test]
fn bf16_products_are_those_of_rounded_factors() {
    if !supports_bf16() {
        return;
    }
    let close = |found: &Tensor, expected: &Tensor| {
        let scale = expected.abs().max().double_value(&[]).max(1e-3);
        assert_close(&(found / scale), &(expected / scale).to_kind(Kind::Float), 1e-5);
    };
    for (_, (t, i, o)) in forced_isas().flat_map(|isa| SHAPES.map(|shape| (isa, shape))) {
        let x = learned(randn(&[t, i]));
        let (w1, w2) = (learned(randn(&[o, i]) / (i as f64).sqrt()), learned(randn(&[33, i]) / (i as f64).sqrt()));
        let b = learned(randn(&[o]));
        let layer = TrainedLinear::pack(&[&w1, &w2], &[Some(&b), None], Kind::BFloat16).unwrap();
        assert!(layer.is_current(Kind::BFloat16) && !layer.is_current(Kind::Float));
        let y = layer.forward(&x, None).unwrap();
        let weights = Tensor::cat(&[rounded(&w1), rounded(&w2)], 0);
        let bias =
            Tensor::cat(&[b.detach().to_kind(Kind::Double), Tensor::zeros([33], (Kind::Double, Device::Cpu))], 0);
        close(&y, &(rounded(&x).matmul(&weights.tr()) + bias));
        let gradient = randn(&[t, o + 33]);
        let found = Tensor::run_backward(&[(&y * &gradient).sum(Kind::Float)], &[&x, &w1, &w2, &b], false, false);
        let gradient_rounded = rounded(&gradient);
        close(&found[0], &gradient_rounded.matmul(&weights));
        let of_weights = gradient_rounded.tr().matmul(&rounded(&x));
        close(&found[1], &of_weights.narrow(0, 0, o));
        close(&found[2], &of_weights.narrow(0, o, 33));
        close(&found[3], &gradient.narrow(1, 0, o).to_kind(Kind::Double).sum_dim_intlist(0, false, Kind::Double));
    }
}

#[test]
fn attention_equals_its_formula() {
    let starts = starts();
    let tokens = starts[LENGTHS.len()];
    for _ in forced_isas() {
        for (heads, shared, dim) in [(2, 2, 32), (4, 2, 24), (3, 1, 7)] {
            let [q, k, v] = [heads, shared, shared].map(|heads| learned(randn(&[tokens, heads, dim])));
            let scale = 1.0 / (dim as f64).sqrt();
            for seen in visibilities() {
                let plain = by_segment([&q, &k, &v], &starts, seen, scale.into());
                assert_same(attention([&q, &k, &v], &starts, seen, scale), &plain, &[&q, &k, &v]);
            }
        }
    }
}

#[test]
fn attention_with_a_bias_equals_its_formula() {
    let starts = starts();
    let tokens = starts[LENGTHS.len()];
    for _ in forced_isas() {
        for (heads, shared, dim) in [(2, 2, 32), (4, 2, 24)] {
            let [q, k, v] = [heads, shared, shared].map(|heads| learned(randn(&[tokens, heads, dim])));
            // one longer than the longest text
            let bias = learned(randn(&[heads, 2 * 302 - 1]));
            for seen in visibilities() {
                let scores = Scores { scale: 0.2, bias: Some(&bias), dropout: 0.0 };
                let plain = by_segment([&q, &k, &v], &starts, seen, scores);
                assert_same(attention([&q, &k, &v], &starts, seen, scores), &plain, &[&q, &k, &v, &bias]);
            }
        }
    }
    let qkv = randn(&[5, 3 * 2 * 8]);
    let joined = |bias: &Tensor| {
        joined_attention(
            &qkv,
            [2, 2],
            &[0, 5],
            Visibility::default(),
            Scores { scale: 0.2, bias: Some(bias), dropout: 0.0 },
        )
    };
    assert!(joined(&randn(&[2, 9])).is_ok());
    for (heads, width) in [(1, 9), (2, 7), (2, 10)] {
        assert!(joined(&randn(&[heads, width])).unwrap_err().to_string().starts_with("bias"), "{heads} x {width}");
    }
}

#[test]
fn joined_attention_equals_that_of_its_parts() {
    let starts = starts();
    let qkv = learned(randn(&[starts[LENGTHS.len()], 8 * 24]));
    let split = |first: i64, heads: i64| qkv.narrow(1, first * 24, heads * 24).unflatten(1, [heads, 24]);
    let (q, k, v) = (split(0, 4), split(4, 2), split(6, 2));
    for seen in visibilities() {
        let parts = attention([&q, &k, &v], &starts, seen, 0.2).unwrap();
        let joined = joined_attention(&qkv, [4, 2], &starts, seen, 0.2).unwrap();
        assert!(joined.equal(&parts));
        assert!(gradients(&joined, &[&qkv])[0].equal(&gradients(&parts, &[&qkv])[0]));
        let bias = learned(randn(&[4, 2 * 301 - 1]));
        let scores = Scores { scale: 0.2, bias: Some(&bias), dropout: 0.0 };
        let parts = attention([&q, &k, &v], &starts, seen, scores).unwrap();
        let joined = joined_attention(&qkv, [4, 2], &starts, seen, scores).unwrap();
        assert!(joined.equal(&parts));
        let [joined, parts] = [joined, parts].map(|y| gradients(&y, &[&qkv, &bias]));
        assert!(joined.iter().zip(&parts).all(|(joined, parts)| joined.equal(parts)));
    }
    assert!(joined_attention(&qkv, [4, 3], &starts, Visibility::default(), 0.2).is_err());
}

#[test]
fn rows_and_threads_do_not_change_a_bit() {
    let (w1, w2) = (learned(randn(&[300, 96]) * 0.1), learned(randn(&[96, 300]) * 0.1));
    let (weight, bias) = (learned(randn(&[96])), learned(randn(&[96])));
    let (up, down) = (
        TrainedLinear::pack(&[&w1], &[None], Kind::Float).unwrap(),
        TrainedLinear::pack(&[&w2], &[None], Kind::Float).unwrap(),
    );
    let x = learned(randn(&[1300, 96]));
    let run = |x: &Tensor| {
        let norm = Norm { residual: x, weight: &weight, bias: &bias, eps: 1e-5, dropout: 0.0 };
        train_feed_forward(x, &up, Activation::Gelu, &down, Some(norm)).unwrap()
    };
    let whole = run(&x);
    let part = run(&x.narrow(0, 600, 77));
    assert!(part.equal(&whole.narrow(0, 600, 77)));
    let all = gradients(&whole, &[&x, &w1, &w2, &weight]);
    let threads = tch::get_num_threads();
    for other in [1, 3, 8] {
        tch::set_num_threads(other);
        let again = gradients(&run(&x), &[&x, &w1, &w2, &weight]);
        assert!(all.iter().zip(&again).all(|(a, b)| a.equal(b)), "{other} threads");
    }
    tch::set_num_threads(threads);
}

#[test]
fn changed_parameters_are_noticed() {
    let (w, b) = (randn(&[8, 4]), randn(&[8]));
    let layer = TrainedLinear::pack(&[&w], &[Some(&b)], Kind::Float).unwrap();
    assert!(layer.is_current(Kind::Float));
    let _ = b.shallow_clone().fill_(0.0);
    assert!(!layer.is_current(Kind::Float));
    assert!(TrainedLinear::pack(&[&w, &randn(&[8, 5])], &[None, None], Kind::Float).is_err());
    assert!(TrainedLinear::pack(&[], &[], Kind::Float).is_err());
    assert!(layer.forward(&randn(&[3, 5]), None).is_err());
}
