//! The encoder's worker under load: bounded, honest when full, indifferent to callers that leave.

use souk_io::Error;
use souk_io::telemetry::ENCODER;
use souk_nn::backbone::Precision;
use souk_nn::encoder::{Encoder, Limits, Overrides, Placement, Text, Worker};
use tch::Device;

fn encoder() -> Encoder {
    let dir = souk_testing::golden("st_mean_dense");
    let placement =
        Placement { device: Device::Cpu, precision: Precision::F32, adapter: None, ignore_fields: Vec::new() };
    Encoder::open(&dir, placement, Overrides::default()).unwrap().freeze().unwrap()
}

fn worker(batch_tokens: usize, queue_texts: usize) -> Worker {
    Worker::start(encoder(), Limits { batch_tokens, queue_texts }).unwrap()
}

fn read(worker: &Worker, texts: usize) -> Vec<Text> {
    (0..texts).map(|i| worker.reader().read(&"oak desk ".repeat(1 + i % 7), None).unwrap()).collect()
}

#[test]
fn a_full_queue_refuses_at_once_and_recovers() {
    let worker = worker(32, 8);
    assert!(matches!(worker.submit(read(&worker, 9)), Err(Error::Input { .. })), "never fits: no use to try again");
    let (mut kept, mut refused) = (Vec::new(), 0);
    let texts = read(&worker, 8);
    for _ in 0..200 {
        match worker.submit(texts.clone()) {
            Ok(reply) => kept.push(reply),
            Err(Error::Busy { .. }) => refused += 1,
            Err(other) => panic!("{other}"),
        }
    }
    assert!(refused > 0, "200 requests of 8 texts never filled a queue of 8");
    for reply in kept {
        assert_eq!(reply.blocking_recv().unwrap().unwrap().len(), 8);
    }
    assert_eq!(worker.submit(read(&worker, 8)).unwrap().blocking_recv().unwrap().unwrap().len(), 8);
}

#[test]
fn limits_that_no_machine_can_keep_are_refused() {
    for (batch_tokens, queue_texts) in [(0, 8), (8, 0), (usize::MAX, 8), (8, usize::MAX)] {
        let refused = Worker::start(encoder(), Limits { batch_tokens, queue_texts }).err().unwrap();
        assert!(matches!(refused, Error::Config { .. }), "{refused}");
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
fn callers_that_leave_cost_nothing() {
    let worker = worker(16, 4096);
    let before = ENCODER.cancelled.get();
    // read before, so that the model has no time to catch up
    let texts = read(&worker, 16);
    let replies: Vec<_> = (0..200).map(|_| worker.submit(texts.clone()).unwrap()).collect();
    drop(replies);
    let last = worker.submit(read(&worker, 1)).unwrap();
    assert_eq!(last.blocking_recv().unwrap().unwrap().len(), 1);
    let dropped = ENCODER.cancelled.get() - before;
    assert!(dropped > 1600, "only {dropped} of 3200 abandoned texts were dropped unencoded");
}

#[test]
fn a_fault_in_the_model_is_an_answer_and_the_worker_lives_on() {
    let worker = worker(64, 64);
    // an id the model has no row for makes libtorch throw
    let poison = Text { ids: vec![1, 4_000_000], skip: 0 };
    let answer = worker.submit(vec![poison]).unwrap().blocking_recv().unwrap();
    let error = answer.unwrap_err();
    assert!(matches!(error, Error::Device { .. }));
    assert!(std::error::Error::source(&error).is_some(), "the cause is kept: {error:?}");
    assert_eq!(worker.submit(read(&worker, 3)).unwrap().blocking_recv().unwrap().unwrap().len(), 3);
}

#[test]
fn work_in_flight_is_finished_when_the_worker_is_dropped() {
    let worker = worker(64, 4096);
    let replies: Vec<_> = (0..50).map(|_| worker.submit(read(&worker, 16)).unwrap()).collect();
    drop(worker);
    assert!(replies.into_iter().all(|reply| reply.blocking_recv().unwrap().unwrap().len() == 16));
}
