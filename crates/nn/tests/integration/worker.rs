//! The encoder's worker under load: bounded queue, errors when full, cancelled requests.

use souk_io::Error;
use souk_io::telemetry::ENCODER;
use souk_nn::backbone::Precision;
use souk_nn::encoder::{Encoder, EncoderWorker, Limits, Overrides, Placement, Text};
use tch::Device;

fn encoder() -> Encoder {
    let dir = souk_testing::golden("st_mean_dense");
    let placement =
        Placement { device: Device::Cpu, precision: Precision::F32, adapter: None, ignore_fields: Vec::new() };
    Encoder::open(&dir, placement, Overrides::default()).unwrap().freeze().unwrap()
}

fn worker(batch_tokens: usize, queue_texts: usize) -> EncoderWorker {
    EncoderWorker::start(encoder(), Limits { batch_tokens: Some(batch_tokens), queue_texts }).unwrap()
}

fn read(worker: &EncoderWorker, texts: usize) -> Vec<Text> {
    (0..texts).map(|i| worker.reader().read(&"oak desk ".repeat(1 + i % 7), None).unwrap()).collect()
}

#[test]
fn a_full_queue_is_an_immediate_error_and_recovers() {
    let worker = worker(32, 8);
    assert!(
        matches!(worker.submit(read(&worker, 9)), Err(Error::Input { .. })),
        "larger than the queue: not retryable"
    );
    let (mut replies, mut num_busy) = (Vec::new(), 0);
    let texts = read(&worker, 8);
    for _ in 0..200 {
        match worker.submit(texts.clone()) {
            Ok(reply) => replies.push(reply),
            Err(Error::Busy { .. }) => num_busy += 1,
            Err(other) => panic!("{other}"),
        }
    }
    assert!(num_busy > 0, "200 requests of 8 texts never filled a queue of 8");
    for reply in replies {
        assert_eq!(reply.blocking_recv().unwrap().unwrap().len(), 8);
    }
    assert_eq!(worker.submit(read(&worker, 8)).unwrap().blocking_recv().unwrap().unwrap().len(), 8);
}

#[test]
fn rejects_limits_out_of_range() {
    for (batch_tokens, queue_texts) in [(0, 8), (8, 0), (usize::MAX, 8), (8, usize::MAX)] {
        let error =
            EncoderWorker::start(encoder(), Limits { batch_tokens: Some(batch_tokens), queue_texts }).err().unwrap();
        assert!(matches!(error, Error::Config { .. }), "{error}");
    }
}

#[test]
fn a_request_without_texts_is_answered() {
    assert!(worker(32, 8).submit(Vec::new()).unwrap().blocking_recv().unwrap().unwrap().is_empty());
}

#[test]
fn a_text_longer_than_a_batch_is_a_batch_of_its_own() {
    let worker = worker(4, 8);
    let alone = encoder();
    let texts = read(&worker, 8);
    assert!(texts.iter().any(|text| text.ids.len() > 4));
    let vectors = worker.submit(texts.clone()).unwrap().blocking_recv().unwrap().unwrap();
    for (text, vector) in texts.iter().zip(vectors) {
        let expected = alone.vectors(&[text]).unwrap().remove(0);
        assert!(vector.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-5));
    }
}

#[test]
fn cancelled_requests_are_not_encoded() {
    let worker = worker(16, 4096);
    let before = ENCODER.cancelled.get();
    // tokenized in advance, so that the model cannot catch up
    let texts = read(&worker, 16);
    let replies: Vec<_> = (0..200).map(|_| worker.submit(texts.clone()).unwrap()).collect();
    drop(replies);
    let last = worker.submit(read(&worker, 1)).unwrap();
    assert_eq!(last.blocking_recv().unwrap().unwrap().len(), 1);
    let dropped = ENCODER.cancelled.get() - before;
    assert!(dropped > 1600, "only {dropped} of 3200 cancelled texts were dropped unencoded");
}

#[test]
fn a_panic_in_the_model_is_an_error_and_the_worker_survives() {
    let worker = worker(64, 64);
    // libtorch throws on an id above the vocabulary
    let poison = Text::new(vec![1, 4_000_000], 0);
    let answer = worker.submit(vec![poison]).unwrap().blocking_recv().unwrap();
    let error = answer.unwrap_err();
    assert!(matches!(error, Error::Device { .. }));
    assert!(std::error::Error::source(&error).is_some(), "the error has no source: {error:?}");
    assert_eq!(worker.submit(read(&worker, 3)).unwrap().blocking_recv().unwrap().unwrap().len(), 3);
}

#[test]
fn dropping_the_worker_finishes_queued_requests() {
    let worker = worker(64, 4096);
    let replies: Vec<_> = (0..50).map(|_| worker.submit(read(&worker, 16)).unwrap()).collect();
    drop(worker);
    assert!(replies.into_iter().all(|reply| reply.blocking_recv().unwrap().unwrap().len() == 16));
}
