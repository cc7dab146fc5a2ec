//! Streams texts through the encoder: reads and tokenizes chunks ahead of the model, returns vectors in order.

use std::collections::VecDeque;

use super::EncoderWorker;
use souk_io::cores::on_all_cores;
use souk_io::domain::TextKind;
use souk_io::error::{Error, Result};

/// Tokens of a batch for each text of a request, and requests in flight: enough to sort by length and to tokenize while the model runs.
const TOKENS_PER_TEXT: usize = 4;
const AHEAD: usize = 4;

/// Encodes `lines` and calls `done` with each line and its vector, in order; lines before a bad one are finished first.
/// `of` is a pair of functions: a line's text, and its location for errors.
pub fn encode<T, E: From<Error>>(
    worker: &EncoderWorker,
    kind: Option<TextKind>,
    mut lines: impl Iterator<Item = Result<T>>,
    of: (impl Fn(&T) -> String, impl Fn(&T) -> String),
    mut done: impl FnMut(T, Vec<f32>) -> std::result::Result<(), E>,
) -> std::result::Result<(), E> {
    let (text_of, location_of) = of;
    let capacity = worker.queue_texts();
    let size = (worker.batch_tokens() / TOKENS_PER_TEXT).min(capacity / AHEAD).max(1);
    let ahead = capacity.min(AHEAD);
    let mut in_flight = VecDeque::new();
    let mut ended = false;
    let mut bad = None;
    while !ended {
        let mut chunk = Vec::with_capacity(size);
        while chunk.len() < size && !ended {
            match lines.next() {
                Some(Ok(line)) => chunk.push(line),
                Some(Err(error)) => (bad, ended) = (Some(error), true),
                None => ended = true,
            }
        }
        let texts: Vec<String> = chunk.iter().map(&text_of).collect();
        let mut read = Vec::with_capacity(size);
        for (at, text) in on_all_cores(texts.len(), |at| worker.reader().read(&texts[at], kind)).into_iter().enumerate()
        {
            match text {
                Ok(text) => read.push(text),
                Err(error) => {
                    let location = location_of(&chunk[at]);
                    (bad, ended) = (Some(Error::input(format!("{location}: cannot be encoded")).because(error)), true);
                    break;
                }
            }
        }
        chunk.truncate(read.len());
        in_flight.push_back((chunk, worker.submit_blocking(read)?));
        while in_flight.len() >= ahead || (ended && !in_flight.is_empty()) {
            if let Some((chunk, reply)) = in_flight.pop_front() {
                let ended = |e| Error::device("the encoder's thread has ended").because(e);
                let vectors = reply.blocking_recv().map_err(ended)??;
                for (line, vector) in chunk.into_iter().zip(vectors) {
                    done(line, vector)?;
                }
            }
        }
    }
    bad.map_or(Ok(()), |error| Err(error.into()))
}
