//! Dropout against plain tch with the same mask. All calls draw from libtorch's only generator, so one test runs at a time.

mod close;

use close::{LENGTHS, assert_same, by_segment_with, forced_isas, gradients, learned, randn, starts, visibilities};
use souk_native::{Activation, Norm, Scores, TrainedLinear, Visibility, attention, train_feed_forward};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tch::{Device, Kind, Tensor};

fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Which entries `[t, d]` of a product dropout keeps before a norm, as factors: the norm of one and zero tells them apart.
fn kept_before_norm(shape: [i64; 2], dropout: f64, seed: i64) -> Tensor {
    let [rows, width] = shape;
    let of = |size: &[i64], value: f64| Tensor::full(size, value, (Kind::Float, Device::Cpu));
    let layer = TrainedLinear::pack(&[&of(&[width, 1], 0.0)], &[Some(&of(&[width], 1.0))], Kind::Float)
        .expect("the shapes fit");
    let (residual, weight, bias) = (of(&shape, 0.0), of(&[width], 1.0), of(&[width], 0.0));
    let norm = Norm { residual: &residual, weight: &weight, bias: &bias, eps: 1e-5, dropout };
    tch::manual_seed(seed);
    let y = layer.forward(&of(&[rows, 1], 1.0), Some(norm)).expect("the shapes fit");
    y.gt(0.0).to_kind(Kind::Float) / (1.0 - dropout)
}

#[test]
fn dropout_before_a_norm_equals_its_formula() {
    let _alone = alone();
    let all_kept: Vec<Tensor> = forced_isas().map(|_| kept_before_norm([1100, 50], 0.3, 4)).collect();
    assert!(all_kept.iter().all(|kept| kept.equal(&all_kept[0])), "every instruction set drops the same entries");
    for _ in forced_isas() {
        for (t, d, wide) in [(3, 40, 100), (1100, 48, 96)] {
            let x = learned(randn(&[t, d]));
            let (w1, w2) = (learned(randn(&[wide, d]) / (d as f64).sqrt()), learned(randn(&[d, wide]) / 10.0));
            let (b, weight, bias) = (learned(randn(&[d])), learned(randn(&[d])), learned(randn(&[d])));
            let up = TrainedLinear::pack(&[&w1], &[None], Kind::Float).unwrap();
            let down = TrainedLinear::pack(&[&w2], &[Some(&b)], Kind::Float).unwrap();
            let kept = kept_before_norm([t, d], 0.3, 9);
            let inner = x.linear::<&Tensor>(&w1, None).relu();
            for residual in [x.shallow_clone(), learned(randn(&[t, d])), randn(&[t, d])] {
                let norm = Norm { residual: &residual, weight: &weight, bias: &bias, eps: 1e-5, dropout: 0.3 };
                let end = |y: Tensor| (y * &kept + &residual).layer_norm([d], Some(&weight), Some(&bias), 1e-5, false);
                let mut all = vec![&x, &w1, &w2, &b, &weight, &bias];
                all.extend(residual.requires_grad().then_some(&residual));
                tch::manual_seed(9);
                let ours = train_feed_forward(&x, &up, Activation::Relu, &down, Some(norm));
                assert_same(ours, &end(inner.linear(&w2, Some(&b))), &all);
                tch::manual_seed(9);
                assert_same(down.forward(&inner, Some(norm)), &end(inner.linear(&w2, Some(&b))), &all);
            }
        }
    }
}

/// Which weights of attention dropout keeps in each segment, `[heads, length, length]`, as factors: queries of zeros give all keys the
/// same weight, and values of one place each show it.
fn kept_weights(heads: i64, starts: &[i64], dropout: f64, seed: i64) -> Vec<Tensor> {
    let longest = starts.windows(2).map(|pair| pair[1] - pair[0]).max().expect("a segment");
    let places = Tensor::eye(longest, (Kind::Float, Device::Cpu));
    let values: Vec<Tensor> = starts.windows(2).map(|pair| places.narrow(0, 0, pair[1] - pair[0])).collect();
    let v = Tensor::cat(&values, 0).unsqueeze(1);
    let q = Tensor::zeros([v.size()[0], heads, longest], (Kind::Float, Device::Cpu));
    tch::manual_seed(seed);
    let scores = Scores { scale: 1.0, bias: None, dropout };
    let y = attention([&q, &v, &v], starts, Visibility::default(), scores).expect("the shapes fit");
    let y = y.unflatten(1, [heads, longest]).transpose(0, 1);
    let segment = |pair: &[i64]| y.narrow(1, pair[0], pair[1] - pair[0]).narrow(2, 0, pair[1] - pair[0]);
    starts.windows(2).map(|pair| segment(pair).gt(0.0).to_kind(Kind::Float) / (1.0 - dropout)).collect()
}

#[test]
fn dropout_of_attention_equals_its_formula() {
    let _alone = alone();
    let starts = starts();
    let tokens = starts[LENGTHS.len()];
    let mut found = Vec::new();
    for _ in forced_isas() {
        let kept = kept_weights(4, &starts, 0.3, 9);
        let drop = |pair: &[i64], weights: Tensor| {
            weights * &kept[starts.iter().rposition(|&start| start == pair[0]).expect("a segment starts here")]
        };
        for shared in [4, 2] {
            let [q, k, v] = [4, shared, shared].map(|heads| learned(randn(&[tokens, heads, 24])));
            let bias = learned(randn(&[4, 2 * 301 - 1]));
            for (seen, bias) in visibilities().into_iter().flat_map(|seen| [(seen, None), (seen, Some(&bias))]) {
                let scores = Scores { scale: 0.2, bias, dropout: 0.3 };
                let plain = by_segment_with([&q, &k, &v], &starts, seen, scores, &drop);
                let all: Vec<&Tensor> = [&q, &k, &v].into_iter().chain(bias).collect();
                tch::manual_seed(9);
                assert_same(attention([&q, &k, &v], &starts, seen, scores), &plain, &all);
            }
        }
        found.push(kept);
    }
    let same = |other: &Vec<Tensor>| other.iter().zip(&found[0]).all(|(a, b)| a.equal(b));
    assert!(found.iter().all(same), "every instruction set drops the same weights");
}

/// The share of ones is `expected`, give or take five standard deviations.
#[track_caller]
fn assert_share(ones: &Tensor, expected: f64) {
    let share = ones.to_kind(Kind::Double).mean(Kind::Double).double_value(&[]);
    let deviation = (expected * (1.0 - expected) / ones.numel() as f64).sqrt();
    assert!((share - expected).abs() < 5.0 * deviation, "{share} is not {expected} give or take {deviation}");
}

#[test]
fn dropout_drops_its_share_at_random() {
    let _alone = alone();
    for dropout in [0.1, 0.5] {
        let weights = kept_weights(8, &[0, 256], dropout, 1).remove(0);
        let others = kept_weights(8, &[0, 256], dropout, 2).remove(0);
        let rows = kept_before_norm([2000, 400], dropout, 1);
        let same = dropout * dropout + (1.0 - dropout) * (1.0 - dropout);
        assert_share(&weights.ne_tensor(&others), 1.0 - same);
        for kept in [weights, rows.unsqueeze(0)] {
            assert_share(&kept.eq(0.0), dropout);
            // neighbours, and those one vector apart, are as often equal as independent ones
            for (dim, apart) in [(0, 1), (1, 1), (1, 64), (2, 1), (2, 16), (2, 128)] {
                let left = kept.size()[dim] - apart;
                if left > 0 {
                    let dim = dim as i64;
                    assert_share(&kept.narrow(dim, 0, left).eq_tensor(&kept.narrow(dim, apart, left)), same);
                }
            }
        }
    }
}

#[test]
fn threads_do_not_change_what_is_dropped() {
    let _alone = alone();
    let (starts, x) = (starts(), learned(randn(&[starts()[LENGTHS.len()], 96])));
    let (w, weight, bias) = (learned(randn(&[96, 96]) * 0.1), learned(randn(&[96])), learned(randn(&[96])));
    let layer = TrainedLinear::pack(&[&w], &[None], Kind::Float).unwrap();
    let run = || {
        tch::manual_seed(5);
        let heads = x.unflatten(1, [4, 24]);
        let scores = Scores { scale: 0.2, bias: None, dropout: 0.2 };
        let y = attention([&heads, &heads, &heads], &starts, Visibility::default(), scores).unwrap();
        let y = layer.forward(&y, Some(Norm { residual: &x, weight: &weight, bias: &bias, eps: 1e-5, dropout: 0.2 }));
        let y = y.unwrap();
        let mut all = gradients(&y, &[&x, &w, &weight, &bias]);
        all.push(y);
        all
    };
    let expected = run();
    let threads = tch::get_num_threads();
    for other in [1, 3, 8] {
        tch::set_num_threads(other);
        assert!(run().iter().zip(&expected).all(|(a, b)| a.equal(b)), "{other} threads");
    }
    tch::set_num_threads(threads);
}

#[test]
fn dropout_is_checked() {
    let _alone = alone();
    let (w, x, b) = (randn(&[4, 4]), randn(&[3, 4]), randn(&[4]));
    let layer = TrainedLinear::pack(&[&w], &[None], Kind::Float).unwrap();
    let run = |dropout| layer.forward(&x, Some(Norm { residual: &x, weight: &b, bias: &b, eps: 1e-5, dropout }));
    let q = randn(&[3, 2, 8]);
    let attend =
        |dropout| attention([&q, &q, &q], &[0, 3], Visibility::default(), Scores { scale: 1.0, bias: None, dropout });
    assert!(run(0.99).is_ok() && attend(0.99).is_ok());
    for dropout in [1.0, -0.1, f64::NAN] {
        for error in [run(dropout).unwrap_err(), attend(dropout).unwrap_err()] {
            assert!(error.to_string().starts_with("dropout: is "), "{error}");
        }
    }
}
