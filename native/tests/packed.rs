//! Attention, embeddings and means over packed segments, against plain tch on each segment alone.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod close;

use close::{assert_close, forced_isas, randn};
use souk_native::{Embeddings, Visibility, attention, embed_norm, load_cuda, segment_mean, torch_version};
use tch::{Device, Kind, Tensor};

#[derive(Clone, Copy)]
struct Heads {
    query: i64,
    key_value: i64,
    dim: i64,
}

impl Heads {
    /// Views of a fused projection as queries, keys and values.
    fn split(&self, qkv: &Tensor) -> [Tensor; 3] {
        let view = |first, count| qkv.narrow(1, first * self.dim, count * self.dim).unflatten(1, [count, self.dim]);
        let (query, shared) = (self.query, self.key_value);
        [view(0, query), view(query, shared), view(query + shared, shared)]
    }
}

struct Case {
    heads: Heads,
    lengths: Vec<i64>,
    causal: bool,
    window: Option<i64>,
}

fn starts(lengths: &[i64]) -> Vec<i64> {
    let mut starts = vec![0];
    for length in lengths {
        starts.push(starts[starts.len() - 1] + length);
    }
    starts
}

/// Reference for one segment: `[l, heads, dim]` each, in f64.
fn plain(q: &Tensor, k: &Tensor, v: &Tensor, case: &Case, scale: f64) -> Tensor {
    let (l, group) = (q.size()[0], case.heads.query / case.heads.key_value);
    let double = |t: &Tensor, r: i64| t.to_kind(Kind::Double).repeat_interleave_self_int(r, 1, None).transpose(0, 1);
    let (q, k, v) = (double(q, 1), double(k, group), double(v, group));
    let at = Tensor::arange(l, (Kind::Int64, Device::Cpu));
    let apart = at.unsqueeze(1) - at.unsqueeze(0);
    let mut hidden = apart.abs().ge(case.window.unwrap_or(i64::MAX));
    if case.causal {
        hidden = hidden.logical_or(&apart.lt(0));
    }
    let scores = (q.matmul(&k.transpose(1, 2)) * scale).masked_fill(&hidden, f64::NEG_INFINITY);
    let out = scores.softmax(-1, Kind::Double).matmul(&v);
    out.transpose(0, 1).reshape([l, case.heads.query * case.heads.dim]).to_kind(Kind::Float)
}

fn check(case: &Case) {
    let Heads { query, key_value, dim } = case.heads;
    let starts = starts(&case.lengths);
    let scale = 1.0 / (dim as f64).sqrt();
    let tokens = starts[starts.len() - 1];
    let fused = randn(&[tokens, (query + 2 * key_value) * dim]) * 2.0;
    let [q, k, v] = case.heads.split(&fused);
    let parts: Vec<Tensor> = starts
        .windows(2)
        .map(|p| {
            let cut = |t: &Tensor| t.narrow(0, p[0], p[1] - p[0]);
            plain(&cut(&q), &cut(&k), &cut(&v), case, scale)
        })
        .collect();
    let want = Tensor::cat(&parts, 0);
    let visible = Visibility { causal: case.causal, window: case.window };
    for _ in forced_isas() {
        let ours = attention([&q, &k, &v], &starts, visible, scale).unwrap();
        assert_close(&ours, &want, 1e-5);
        let own = |t: &Tensor| t.contiguous();
        let ours = attention([&own(&q), &own(&k), &own(&v)], &starts, visible, scale).unwrap();
        assert_close(&ours, &want, 1e-5);
    }
}

#[test]
fn attention_equals_its_definition() {
    let lengths = [vec![1], vec![5, 1, 60, 0, 17, 33], vec![129, 2, 64], vec![300]];
    let masks = [(false, None), (true, None), (false, Some(1)), (true, Some(7)), (false, Some(40)), (true, Some(130))];
    for (query, key_value, dim) in [(12, 12, 32), (4, 2, 64), (6, 1, 128), (3, 3, 24), (2, 1, 1), (2, 2, 80)] {
        for lengths in &lengths {
            for (causal, window) in masks {
                let heads = Heads { query, key_value, dim };
                check(&Case { heads, lengths: lengths.clone(), causal, window });
            }
        }
    }
}

#[test]
fn attention_over_long_segments() {
    let heads = Heads { query: 2, key_value: 1, dim: 64 };
    for (causal, window) in [(false, None), (true, None), (false, Some(256)), (true, Some(200))] {
        check(&Case { heads, lengths: vec![2050, 700], causal, window });
    }
}

#[test]
fn attention_survives_scores_far_apart() {
    for _ in forced_isas() {
        let q = Tensor::full([200, 1, 16], 30.0, (Kind::Float, Device::Cpu));
        let k = Tensor::arange(200, (Kind::Float, Device::Cpu)).view([200, 1, 1]).expand([200, 1, 16], false);
        let v = randn(&[200, 1, 16]);
        let ours = attention([&q, &k.contiguous(), &v], &[0, 200], Visibility::default(), 1.0).unwrap();
        assert_close(&ours, &v.narrow(0, 199, 1).view([1, 16]).expand([200, 16], false), 1e-6);
    }
}

#[test]
fn a_segment_alone_equals_the_segment_in_a_batch() {
    let starts = [0, 30, 31, 200];
    let (q, k, v) = (randn(&[200, 4, 32]), randn(&[200, 4, 32]), randn(&[200, 4, 32]));
    let all = attention([&q, &k, &v], &starts, Visibility::default(), 0.2).unwrap();
    for p in starts.windows(2) {
        let (first, length) = (p[0], p[1] - p[0]);
        let cut = |t: &Tensor| t.narrow(0, first, length);
        let alone = attention([&cut(&q), &cut(&k), &cut(&v)], &[0, length], Visibility::default(), 0.2).unwrap();
        assert_close(&alone, &cut(&all), 0.0);
    }
}

#[test]
fn attention_refuses_what_does_not_fit() {
    let q = randn(&[6, 4, 8]);
    let run = |q: &Tensor, k: &Tensor, v: &Tensor, starts: &[i64], window| {
        attention([q, k, v], starts, Visibility { causal: false, window }, 1.0).map_err(|e| e.to_string())
    };
    assert!(run(&q, &q, &q, &[0, 6], None).is_ok());
    for starts in [&[][..], &[0], &[0, 5], &[1, 6], &[0, 4, 3, 6], &[0, 7, 6]] {
        assert!(run(&q, &q, &q, starts, None).unwrap_err().starts_with("starts"));
    }
    assert!(run(&q, &q, &q, &[0, 6], Some(0)).unwrap_err().starts_with("window"));
    assert!(run(&q, &randn(&[6, 3, 8]), &randn(&[6, 3, 8]), &[0, 6], None).unwrap_err().starts_with("k"));
    assert!(run(&q, &randn(&[6, 4, 9]), &q, &[0, 6], None).unwrap_err().starts_with("k"));
    assert!(run(&q, &q, &randn(&[6, 2, 8]), &[0, 6], None).unwrap_err().starts_with("v"));
    assert!(run(&randn(&[6, 8, 4]).transpose(1, 2), &q, &q, &[0, 6], None).unwrap_err().starts_with("q"));
    assert!(run(&randn(&[6, 8]), &q, &q, &[0, 6], None).unwrap_err().starts_with("q"));
}

#[test]
fn embeddings_equal_plain_torch() {
    for _ in forced_isas() {
        for (tokens, width) in [(1, 384), (77, 384), (300, 33), (0, 24), (5, 1)] {
            let (word, position, row) = (randn(&[100, width]), randn(&[64, width]), randn(&[width]));
            let (weight, bias) = (randn(&[width]), randn(&[width]));
            let ids = Tensor::randint(100, [tokens], (Kind::Int64, Device::Cpu));
            let positions = Tensor::randint(64, [tokens], (Kind::Int64, Device::Cpu));
            for token_type in [Some(&row), None] {
                let tables = Embeddings {
                    word: &word,
                    position: &position,
                    token_type,
                    weight: &weight,
                    bias: &bias,
                    eps: 1e-12,
                };
                let mut sum = word.index_select(0, &ids) + position.index_select(0, &positions);
                if let Some(row) = token_type {
                    sum += row;
                }
                let want = sum.layer_norm([width], Some(&weight), Some(&bias), 1e-12, false);
                if width > 1 {
                    assert_close(&embed_norm(&ids, &positions, &tables).unwrap(), &want, 2e-6);
                }
            }
        }
    }
}

#[test]
fn embeddings_refuse_what_is_outside_the_tables() {
    let (table, row) = (randn(&[10, 8]), randn(&[8]));
    let tables = Embeddings { word: &table, position: &table, token_type: None, weight: &row, bias: &row, eps: 1e-5 };
    let index = |i: i64| Tensor::from_slice(&[0, i]);
    assert!(embed_norm(&index(9), &index(9), &tables).is_ok());
    for bad in [-1, 10] {
        assert!(embed_norm(&index(bad), &index(0), &tables).unwrap_err().to_string().contains("token id"));
        assert!(embed_norm(&index(0), &index(bad), &tables).unwrap_err().to_string().contains("position"));
    }
    assert!(embed_norm(&index(0).to_kind(Kind::Int), &index(0), &tables).is_err());
    assert!(embed_norm(&index(0), &Tensor::from_slice(&[0i64]), &tables).is_err());
    assert!(embed_norm(&index(0), &index(0), &Embeddings { weight: &randn(&[7]), ..tables }).is_err());
}

#[test]
fn means_by_hand() {
    let x = Tensor::arange(12, (Kind::Float, Device::Cpu)).view([6, 2]);
    for _ in forced_isas() {
        let ours = segment_mean(&x, &[0, 3, 3, 6], &[1, 0, 3]).unwrap();
        assert_close(&ours, &Tensor::from_slice(&[3.0f32, 4.0, 0.0, 0.0, 0.0, 0.0]).view([3, 2]), 0.0);
        let wide = randn(&[50, 37]);
        let want = Tensor::stack(
            &[
                wide.narrow(0, 2, 28).mean_dim(0, false, Kind::Float),
                wide.narrow(0, 30, 20).mean_dim(0, false, Kind::Float),
            ],
            0,
        );
        assert_close(&segment_mean(&wide, &[0, 30, 50], &[2, 0]).unwrap(), &want, 1e-6);
    }
    assert!(segment_mean(&x, &[0, 6], &[7]).is_err());
    assert!(segment_mean(&x, &[0, 6], &[-1]).is_err());
    assert!(segment_mean(&x, &[0, 6], &[0, 0]).is_err());
}

#[test]
fn the_loaded_libtorch_says_what_it_is() {
    assert_eq!(torch_version(), "2.11.0");
    let error = load_cuda().err().map(|e| e.to_string());
    assert!(error.is_none_or(|e| e.contains("libtorch_cuda.so")));
}

#[test]
fn one_openmp_runtime_serves_everything() {
    let _ = segment_mean(&randn(&[4, 4]), &[0, 4], &[0]).unwrap();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let files = maps.lines().filter_map(|line| line.split_whitespace().nth(5)).filter(|file| file.contains("omp"));
    let files: std::collections::BTreeSet<_> = files.filter(|file| file.contains(".so")).collect();
    assert_eq!(files.len(), 1, "{files:?}");
}
