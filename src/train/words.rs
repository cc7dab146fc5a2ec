//! Language modelling, one step: texts of this process's items, the loss of every next token, one update. What an item's fields say
//! may stand behind its text, or behind a query that it answers: so a decoder from nothing learns to say what a text is about.

use std::time::Instant;

use serde_json::Value;
use tch::{Device, Kind, Tensor};

use super::share::{autocast, in_chunks};
use super::step::{Parts, Stepped};
use crate::dataset::{Catalogue, Pairs};
use crate::domain::{Item, TextKind};
use crate::encoder::{Encoder, Reader, Text};
use crate::error::{Error, Result};
use crate::objective::NextToken;
use crate::optimizer::Optimizer;

/// Items that a perplexity is taken of, at most, and tokens of one pass.
const MOST_MEASURED: usize = 1000;
const MEASURED_TOKENS: usize = 2048;

/// A text to be learned from, and what it is an answer to.
struct Lesson {
    ids: Vec<u32>,
    /// Tokens at its head that nothing is learned of.
    given: usize,
}

pub struct Words {
    rule: NextToken,
}

impl Words {
    pub fn new(rule: NextToken) -> Self {
        Self { rule }
    }

    pub fn step(
        &self,
        parts: &Parts,
        (encoder, optimizer): (&Encoder, &mut Optimizer),
        at: u64,
        (rate, stop): (f64, bool),
    ) -> Result<Stepped> {
        let mut stepped = Stepped::default();
        optimizer.zero();
        let mut loss = Tensor::zeros([1], (Kind::Float, Device::Cpu));
        for ((from, to), share) in parts.settings.batches(parts.draws(at)) {
            let mut clock = Instant::now();
            let batch = parts.draw(from, to);
            let (own, _) = parts.own(&batch);
            let mut lessons = Vec::with_capacity(own.len());
            for (place, pair) in batch.pairs[own.clone()].iter().enumerate() {
                let item = parts.catalogue.item(pair.item)?;
                if !self.rule.keeps_aside(&item.id) {
                    // by turns as shoppers write, and as sellers do
                    let brief = (from + (own.start + place) as u64).is_multiple_of(2) && !self.rule.answer.is_empty();
                    let asked = match (brief, parts.pairs) {
                        (true, Pairs::Examples(_) | Pairs::Judged(_)) => (pair.query, TextKind::Query),
                        (true, Pairs::Alone(_)) if !item.title.is_empty() => (item.title.as_str(), TextKind::Item),
                        _ => (&*item.passage(), TextKind::Item),
                    };
                    lessons.push(self.rule.lesson(&encoder.reader(), asked, &item)?);
                }
            }
            stepped.pairs += batch.pairs.len();
            parts.lap(&mut clock, &mut stepped.seconds.data);
            loss += learn(parts, encoder, (&lessons, share), &mut stepped)?;
        }
        parts.update(optimizer, &loss, (rate, stop), &mut stepped)?;
        Ok(stepped)
    }
}

/// This process's part of the batch's mean loss.
fn learn(
    parts: &Parts,
    encoder: &Encoder,
    (lessons, share): (&[Lesson], f64),
    stepped: &mut Stepped,
) -> Result<Tensor> {
    let mut clock = Instant::now();
    let lengths: Vec<usize> = lessons.iter().map(|lesson| lesson.ids.len()).collect();
    let tokens: usize = lessons.iter().map(|lesson| lesson.ids.len() - lesson.given).sum();
    stepped.texts += lessons.len();
    stepped.tokens += lengths.iter().sum::<usize>();
    let mut all = Tensor::from_slice(&[tokens as f64]);
    parts.collective.all_reduce(&mut all)?;
    let all = all.double_value(&[0]).max(1.0);
    let mut loss = Tensor::zeros([1], (Kind::Float, Device::Cpu));
    for places in in_chunks(&lengths, parts.settings.chunk_tokens) {
        let texts: Vec<(&[u32], usize)> =
            places.iter().map(|place| (lessons[*place].ids.as_slice(), lessons[*place].given)).collect();
        let part = {
            let _autocast = autocast(parts.bf16, encoder)?;
            -encoder.log_probs(&texts, 1.0, parts.settings.dropout)?.sum(Kind::Float) * (share / all)
        };
        part.f_backward()?;
        loss += part.detach().to_device(Device::Cpu);
    }
    parts.lap(&mut clock, &mut stepped.seconds.backward);
    Ok(loss)
}

/// e to the mean −log π of the tokens of items that were kept aside, title with text.
pub fn perplexity(encoder: &Encoder, rule: &NextToken, catalogue: &Catalogue) -> Result<f64> {
    let _guard = tch::no_grad_guard();
    encoder.check_writes(rule.needs().rationales)?;
    let mut lessons = Vec::new();
    for row in 0..catalogue.len() {
        let item = catalogue.item(row)?;
        if rule.keeps_aside(&item.id) && lessons.len() < MOST_MEASURED {
            lessons.push(rule.lesson(&encoder.reader(), (&item.passage(), TextKind::Item), &item)?);
        }
    }
    let lengths: Vec<usize> = lessons.iter().map(|lesson| lesson.ids.len()).collect();
    let (mut sum, mut tokens) = (0.0, 0);
    for places in in_chunks(&lengths, MEASURED_TOKENS) {
        let texts: Vec<(&[u32], usize)> =
            places.iter().map(|place| (lessons[*place].ids.as_slice(), lessons[*place].given)).collect();
        sum -= encoder.log_probs(&texts, 1.0, false)?.sum(Kind::Double).double_value(&[]);
        tokens += texts.iter().map(|(ids, given)| ids.len() - given).sum::<usize>();
    }
    if tokens == 0 {
        let problem =
            format!("is {}, which keeps no item of this catalogue aside to measure on: say more", rule.held_out);
        return Err(Error::config("objective.held_out", problem));
    }
    Ok((sum / tokens as f64).exp())
}

impl NextToken {
    /// Whether an item is one of those that are only measured.
    fn keeps_aside(&self, id: &str) -> bool {
        let share = f64::from(crc32fast::hash(id.as_bytes())) / f64::from(u32::MAX);
        share < self.held_out
    }

    /// An item as it is learned: a text that may ask for it, the answer, and the end.
    fn lesson(&self, reader: &Reader, (text, kind): (&str, TextKind), item: &Item) -> Result<Lesson> {
        let Text { mut ids, .. } = reader.read(text, Some(kind))?;
        let answer = self.answer_of(item);
        if !answer.is_empty() {
            ids.extend(reader.plain(&answer)?);
        }
        // a reader that leaves texts open does not close them
        ids.extend(reader.ends().first());
        Ok(Lesson { ids, given: 1 })
    }

    /// As `category: lamp, colour: red`.
    fn answer_of(&self, item: &Item) -> String {
        let title = Value::from(item.title.as_str());
        let said = self.answer.iter().filter_map(|name| match name.as_str() {
            "title" if !item.title.is_empty() => Some((name, &title)),
            field => Some((name, item.fields.get(field)?)),
        });
        let words = said.flat_map(|(name, value)| match value {
            Value::Object(fields) => fields.iter().map(|(name, value)| word(name, value)).collect(),
            value => vec![word(name, value)],
        });
        words.collect::<Vec<_>>().join(", ")
    }
}

fn word(name: &str, value: &Value) -> String {
    match value {
        Value::String(text) => format!("{name}: {text}"),
        other => format!("{name}: {other}"),
    }
}
