//! Streams lines through the encoder: read and tokenized in chunks ahead of the model, handed on in order.

use std::collections::VecDeque;
use std::io::BufRead;
use std::path::Path;

use souk::domain::TextKind;
use souk::encoder::{Text, Worker};
use souk::error::{Error, Result};

/// Texts of one request, at most, and requests in flight: enough to sort by length and to tokenize beside the model.
const CHUNK: usize = 256;
const AHEAD: usize = 4;

/// One line of a file, with its number.
pub struct Lines<R> {
    input: R,
    file: std::path::PathBuf,
    number: u64,
}

impl<R: BufRead> Lines<R> {
    pub fn new(input: R, file: &Path) -> Self {
        Self { input, file: file.into(), number: 0 }
    }
}

impl<R: BufRead> Iterator for Lines<R> {
    type Item = Result<(u64, String)>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut bytes = Vec::new();
        let read = self.input.read_until(b'\n', &mut bytes);
        self.number += 1;
        match read {
            Err(e) => return Some(Err(Error::store(&self.file, "read it")(e))),
            Ok(0) => return None,
            Ok(_) => {}
        }
        while bytes.last().is_some_and(|b| *b == b'\n' || *b == b'\r') {
            bytes.pop();
        }
        let number = self.number;
        let not_text = |e| Error::data(&self.file, Some(number), "not valid UTF-8: convert it first").because(e);
        Some(String::from_utf8(bytes).map_err(not_text).map(|text| (number, text)))
    }
}

/// Encodes `lines` and hands each with its vector to `done`, in order. `text_of` gives what is encoded.
pub fn encode<T>(
    worker: &Worker,
    kind: Option<TextKind>,
    lines: impl Iterator<Item = Result<T>>,
    text_of: impl Fn(&T) -> String,
    mut done: impl FnMut(T, Vec<f32>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let room = worker.limits().queue_texts;
    let (size, ahead) = ((room / AHEAD).clamp(1, CHUNK), room.min(AHEAD));
    let mut lines = lines.enumerate();
    let mut flying = VecDeque::new();
    loop {
        let mut chunk: Vec<T> = Vec::with_capacity(size);
        let mut texts: Vec<Text> = Vec::with_capacity(size);
        for (at, line) in lines.by_ref().take(size) {
            let line = line?;
            let read = worker.reader().read(&text_of(&line), kind);
            texts.push(read.map_err(|e| Error::input(format!("text {}: it cannot be encoded", at + 1)).because(e))?);
            chunk.push(line);
        }
        let ended = chunk.len() < size;
        if !chunk.is_empty() {
            flying.push_back((chunk, worker.submit(texts)?));
        }
        while flying.len() >= ahead || (ended && !flying.is_empty()) {
            if let Some((chunk, reply)) = flying.pop_front() {
                let vectors =
                    reply.blocking_recv().map_err(|e| Error::device("the encoder has ended").because(e))??;
                for (line, vector) in chunk.into_iter().zip(vectors) {
                    done(line, vector)?;
                }
            }
        }
        if ended {
            return Ok(());
        }
    }
}
