//! AdamW against its formula, the autocast switches, and collectives.

mod close;

use close::{assert_close, largest, randn};
use souk_native::{AdamW, Autocast, GroupPosition, Moments, Network, ProcessGroup, Store, fused_adamw};
use std::net::TcpListener;
use std::time::Duration;
use tch::{Device, Kind, Tensor};

const CPU: Device = Device::Cpu;

/// One step of one parameter by the formula, in f64.
fn by_hand(p: &Tensor, g: &Tensor, [m, v]: [&Tensor; 2], step: i32, s: &AdamW) -> [Tensor; 3] {
    let m = m * s.beta1 + g * (1.0 - s.beta1);
    let v = v * s.beta2 + g * g * (1.0 - s.beta2);
    let p = p - p * (s.rate * s.weight_decay);
    let (mean, square) = (&m / (1.0 - s.beta1.powi(step)), &v / (1.0 - s.beta2.powi(step)));
    [p - mean * s.rate / (square.sqrt() + s.eps), m, v]
}

fn zeros(like: &[Tensor]) -> Vec<Tensor> {
    like.iter().map(Tensor::zeros_like).collect()
}

#[test]
fn fused_adamw_equals_the_formula_over_several_steps() {
    let settings = AdamW { rate: 0.01, beta1: 0.9, beta2: 0.98, eps: 1e-8, weight_decay: 0.3 };
    let shapes: [&[i64]; 4] = [&[7, 33], &[130], &[], &[0, 4]];
    let parameters: Vec<Tensor> = shapes.iter().map(|shape| randn(shape).set_requires_grad(true)).collect();
    let (first, second) = (zeros(&parameters), zeros(&parameters));
    let double = |t: &Tensor| t.detach().copy().to_kind(Kind::Double);
    let mut want: Vec<[Tensor; 3]> =
        parameters.iter().map(|p| [double(p), double(p).zeros_like(), double(p).zeros_like()]).collect();
    for step in 1..=5 {
        let gradients: Vec<Tensor> = shapes.iter().map(|shape| randn(shape) * f64::from(step)).collect();
        // the last parameter joins three steps later
        let steps: Vec<i64> = vec![step.into(), step.into(), step.into(), i64::from(step) + 3];
        let moments = Moments { first: &first, second: &second, steps: &steps };
        fused_adamw(&parameters, &gradients, moments, &settings).unwrap();
        for (i, [p, m, v]) in want.iter_mut().enumerate() {
            [*p, *m, *v] = by_hand(p, &double(&gradients[i]), [m, v], steps[i] as i32, &settings);
            assert_close(&double(&parameters[i]), p, 1e-6);
            assert_close(&double(&first[i]), m, 1e-6);
            assert_close(&double(&second[i]), v, 1e-6);
        }
    }
}

#[test]
fn fused_adamw_refuses_what_its_kernel_would_misread() {
    let settings = AdamW { rate: 0.01, beta1: 0.9, beta2: 0.99, eps: 1e-8, weight_decay: 0.0 };
    let (p, good) = ([randn(&[4, 3])], [randn(&[4, 3])]);
    let state = || [Tensor::zeros([4, 3], (Kind::Float, CPU))];
    let run = |gradient: &[Tensor], steps: &[i64]| {
        let moments = Moments { first: &state(), second: &state(), steps };
        fused_adamw(&p, gradient, moments, &settings).map_err(|error| error.to_string())
    };
    assert!(run(&good, &[1]).is_ok());
    for (gradient, problem) in [
        (randn(&[3, 4]).transpose(0, 1), "contiguous"),
        (randn(&[4, 2]), "shape"),
        (randn(&[4, 3]).to_kind(Kind::BFloat16), "BFloat16"),
        (Tensor::new(), "undefined"),
    ] {
        let message = run(&[gradient], &[1]).unwrap_err();
        assert!(message.starts_with("gradients: number 0") && message.contains(problem), "{message}");
    }
    assert!(run(&[], &[1]).unwrap_err().contains("one for each parameter"));
    assert!(run(&good, &[0]).unwrap_err().contains("count from 1"));
}

#[test]
fn autocast_computes_in_bf16_inside_the_guard_only() {
    let (x, w) = (randn(&[5, 8]), randn(&[3, 8]).set_requires_grad(true));
    let product = || x.linear::<&Tensor>(&w, None);
    assert_eq!(product().kind(), Kind::Float);
    assert!(!Autocast::is_on(CPU));
    {
        let _outer = Autocast::start(CPU).unwrap();
        drop(Autocast::start(CPU).unwrap());
        assert!(Autocast::is_on(CPU) && !Autocast::is_on(Device::Cuda(0)));
        assert_eq!(product().kind(), Kind::BFloat16, "an inner guard ends nothing but itself");
        product().to_kind(Kind::Float).square().sum(Kind::Float).backward();
    }
    let plain = product();
    assert_eq!(plain.kind(), Kind::Float);
    assert!(!Autocast::is_on(CPU));
    assert_eq!(w.grad().kind(), Kind::Float);
    let want = plain.transpose(0, 1).matmul(&x) * 2.0;
    assert!(largest(&(w.grad() - &want)) < 0.05 * largest(&want), "bf16 has 8 bits");
}

#[test]
fn autocast_forgets_its_casts_with_the_guard() {
    let x = Tensor::ones([1, 4], (Kind::Float, CPU));
    let mut w = Tensor::ones([1, 4], (Kind::Float, CPU)).set_requires_grad(true);
    let sum = |w: &Tensor| {
        let _cast = Autocast::start(CPU).unwrap();
        x.linear::<&Tensor>(w, None).to_kind(Kind::Float).double_value(&[0, 0])
    };
    assert_eq!(sum(&w), 4.0);
    {
        let _no_grad = tch::no_grad_guard();
        let _ = w.fill_(2.0);
    }
    assert_eq!(sum(&w), 8.0);
}

#[test]
fn a_store_and_a_group_of_one_do_what_they_say() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let time = Duration::from_secs(20);
    let store = Store::open("127.0.0.1", port, true, time).unwrap();
    let other = Store::open("127.0.0.1", port, false, time).unwrap();
    assert_eq!(other.get("word").unwrap(), None);
    store.set("word", b"a\0b").unwrap();
    for reader in [&store, &other] {
        assert_eq!(reader.get("word").unwrap().unwrap(), b"a\0b");
    }
    assert_eq!(store.set_if_absent("verdict", b"first").unwrap(), b"first");
    assert_eq!(other.set_if_absent("verdict", b"second").unwrap(), b"first");
    assert!(store.set("a\0b", b"").is_err());

    assert!(ProcessGroup::connect(&store, "g", GroupPosition { rank: 1, size: 1 }, Network::Default, time).is_err());
    let group =
        ProcessGroup::connect(&store, "g", GroupPosition { rank: 0, size: 1 }, Network::Address("127.0.0.1"), time)
            .unwrap();
    let x = randn(&[3, 2]);
    assert!(group.all_gather(&x).unwrap().equal(&x.unsqueeze(0)));
    assert!(group.reduce_scatter(&x).unwrap().equal(&x));
    assert!(group.all_gather(&x.transpose(0, 1)).unwrap_err().to_string().contains("contiguous"));
    assert!(group.broadcast(&mut x.copy(), 1).is_err());
    group.barrier().unwrap();
}
