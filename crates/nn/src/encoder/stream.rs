//! Streams texts through the encoder: reads and tokenizes chunks ahead of the model, returns vectors in order.

use std::collections::VecDeque;

use super::EncoderWorker;
use souk_io::domain::TextKind;
use souk_io::error::{Error, Result};

/// Maximum texts per request, and requests in flight: enough to sort by length and to tokenize while the model runs.
const CHUNK: usize = 256;
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
    let read = |line: &T| {
        let text = worker.reader().read(&text_of(line), kind);
        text.map_err(|e| Error::input(format!("{}: cannot be encoded", location_of(line))).because(e))
    };
    let capacity = worker.limits().queue_texts;
    let (size, ahead) = ((capacity / AHEAD).clamp(1, CHUNK), capacity.min(AHEAD));
    let mut in_flight = VecDeque::new();
    let mut ended = false;
    let mut bad = None;
    while !ended {
        let (mut chunk, mut texts) = (Vec::with_capacity(size), Vec::with_capacity(size));
        while chunk.len() < size && !ended {
            match lines.next().map(|line| line.and_then(|line| Ok((read(&line)?, line)))) {
                Some(Ok((text, line))) => {
                    texts.push(text);
                    chunk.push(line);
                }
                Some(Err(error)) => (bad, ended) = (Some(error), true),
                None => ended = true,
            }
        }
        in_flight.push_back((chunk, worker.submit_blocking(texts)?));
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
