//! Streams texts through the encoder: read and tokenized in chunks ahead of the model, handed on in order.

use std::collections::VecDeque;

use super::Worker;
use souk_io::domain::TextKind;
use souk_io::error::{Error, Result};

/// Texts of one request, at most, and requests in flight: enough to sort by length and to tokenize beside the model.
const CHUNK: usize = 256;
const AHEAD: usize = 4;

/// Encodes `lines` and hands each with its vector to `done`, in order; what comes before a bad line is done first.
/// `of` gives a line's text, and its place for errors.
pub fn encode<T, E: From<Error>>(
    worker: &Worker,
    kind: Option<TextKind>,
    mut lines: impl Iterator<Item = Result<T>>,
    of: (impl Fn(&T) -> String, impl Fn(&T) -> String),
    mut done: impl FnMut(T, Vec<f32>) -> std::result::Result<(), E>,
) -> std::result::Result<(), E> {
    let (text_of, place_of) = of;
    let read = |line: &T| {
        let text = worker.reader().read(&text_of(line), kind);
        text.map_err(|e| Error::input(format!("{}: cannot be encoded", place_of(line))).because(e))
    };
    let room = worker.limits().queue_texts;
    let (size, ahead) = ((room / AHEAD).clamp(1, CHUNK), room.min(AHEAD));
    let mut flying = VecDeque::new();
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
        flying.push_back((chunk, worker.submit_in_turn(texts)?));
        while flying.len() >= ahead || (ended && !flying.is_empty()) {
            if let Some((chunk, reply)) = flying.pop_front() {
                let ended = |e| Error::device("the encoder has ended").because(e);
                let vectors = reply.blocking_recv().map_err(ended)??;
                for (line, vector) in chunk.into_iter().zip(vectors) {
                    done(line, vector)?;
                }
            }
        }
    }
    bad.map_or(Ok(()), |error| Err(error.into()))
}
