//! Pre-trained models: all-MiniLM-L6-v2 (downloaded by `make setup`) against sentence-transformers on 1,000 texts, independence of a
//! text's vector from the rest of its batch, and the models of `scripts/setup.sh models` against the ONNX runtime.

use std::path::PathBuf;

use souk_io::domain::TextKind;
use souk_nn::backbone::Precision;
use souk_nn::backbone::weights::read_tensors;
use souk_nn::encoder::{Encoder, EncoderWorker, Limits, Overrides, Placement, Text};
use souk_testing::MINILM;
use tch::{Device, Tensor};

fn golden() -> PathBuf {
    let committed = souk_testing::golden("");
    std::env::var_os("SOUK_GOLDEN").map_or(committed, PathBuf::from).join("minilm")
}

fn encoder(precision: Precision) -> Encoder {
    open(MINILM, precision)
}

fn open(model: &str, precision: Precision) -> Encoder {
    let placement = Placement { device: Device::Cpu, precision, adapter: None, ignore_fields: Vec::new() };
    Encoder::open(&souk_testing::model(model), placement, Overrides::default())
        .expect("scripts/setup.sh downloads the model")
}

fn texts(encoder: &Encoder) -> Vec<Text> {
    let texts: Vec<String> = serde_json::from_slice(&std::fs::read(golden().join("texts.json")).unwrap()).unwrap();
    assert_eq!(texts.len(), 1000);
    texts.iter().map(|text| encoder.reader().read(text, None).unwrap()).collect()
}

fn expected() -> Tensor {
    read_tensors(&golden().join("expected.safetensors")).unwrap().remove("vectors").unwrap()
}

fn largest_difference(found: &[Vec<f32>], expected: &Tensor) -> f64 {
    (Tensor::from_slice2(found) - expected).abs().max().double_value(&[])
}

/// Also covers the conversion from ONNX (`scripts/onnx_bert.py`) and the prompts.
#[test]
fn vectors_equal_the_onnx_runtime() {
    let folder = souk_testing::golden("onnx");
    let texts: Vec<String> = serde_json::from_slice(&std::fs::read(folder.join("texts.json")).unwrap()).unwrap();
    for model in ["e5-small-v2", "bge-small-en-v1.5"] {
        if !souk_testing::model(model).exists() {
            souk_testing::skip("vectors_equal_the_onnx_runtime", &format!("`scripts/setup.sh models {model}` failed"));
            return;
        }
        let encoder = open(model, Precision::F32).freeze().unwrap();
        let expected = read_tensors(&folder.join(format!("{model}.safetensors"))).unwrap();
        for (kind, name) in [(TextKind::Query, "query"), (TextKind::Item, "item")] {
            let read: Vec<Text> = texts.iter().map(|text| encoder.reader().read(text, Some(kind)).unwrap()).collect();
            let found = encoder.vectors(&read.iter().collect::<Vec<_>>()).unwrap();
            let difference = largest_difference(&found, &expected[name]);
            assert!(difference <= 1e-5, "{model}, {name}: {difference}");
        }
    }
}

#[test]
fn vectors_equal_sentence_transformers_batched_and_alone() {
    let encoder = encoder(Precision::F32).freeze().unwrap();
    let texts = texts(&encoder);
    let expected = expected();
    let batched: Vec<Vec<f32>> =
        texts.chunks(64).flat_map(|chunk| encoder.vectors(&chunk.iter().collect::<Vec<_>>()).unwrap()).collect();
    assert!(largest_difference(&batched, &expected) <= 1e-5);
    let alone: Vec<Vec<f32>> = texts.iter().flat_map(|text| encoder.vectors(&[text]).unwrap()).collect();
    assert!(encoder.is_exact_in_any_batch());
    assert_eq!(alone, batched, "to the bit");
}

#[test]
fn the_worker_returns_the_same_vectors_in_order() {
    let encoder = encoder(Precision::F32).freeze().unwrap();
    let texts = texts(&encoder);
    let worker = EncoderWorker::start(encoder, Limits::default()).unwrap();
    let replies: Vec<_> = texts.chunks(37).map(|chunk| worker.submit(chunk.to_vec()).unwrap()).collect();
    let found: Vec<Vec<f32>> = replies.into_iter().flat_map(|reply| reply.blocking_recv().unwrap().unwrap()).collect();
    assert!(largest_difference(&found, &expected()) <= 1e-5);
}

#[test]
fn int8_vectors_are_independent_of_the_batch_and_close_to_f32() {
    let encoder = encoder(Precision::Int8).freeze().unwrap();
    let texts = texts(&encoder);
    let some: Vec<&Text> = texts.iter().take(200).collect();
    let batched = encoder.vectors(&some).unwrap();
    let alone: Vec<Vec<f32>> = some.iter().flat_map(|text| encoder.vectors(&[text]).unwrap()).collect();
    assert_eq!(alone, batched, "to the bit");
    let alone = Tensor::from_slice2(&alone);
    let cosine = (alone * expected().narrow(0, 0, 200)).sum_dim_intlist(1, false, tch::Kind::Float);
    assert!(cosine.min().double_value(&[]) > 0.98, "lowest cosine {}", cosine.min().double_value(&[]));
}
