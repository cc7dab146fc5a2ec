//! Language modelling: −log π of every next token, averaged over tokens. It turns a decoder made from scratch into a writer of
//! catalogue text, which GRACE and GIRCSE start from. The fields of an item may stand behind its text, or behind a query that it
//! answers, so that the decoder learns to say what a text is about.

use std::ops::Range;

use serde_json::Value;
use tch::{Device, Kind, Tensor};

use super::Algorithm;
use crate::objective::{NextTokenSettings, ObjectiveSettings};
use crate::train::batch::Batch;
use crate::train::context::{Outcome, StepContext};
use crate::train::grad_cache::{autocast, in_chunks};
use souk_ingest::dataset::Pairs;
use souk_io::catalogue::Catalogue;
use souk_io::domain::{Item, TextKind};
use souk_io::error::{Error, Result};
use souk_nn::encoder::{Encoder, Reader, Text};

/// Upper bound of items that a perplexity is measured on, and tokens of one forward pass.
const MAX_MEASURED: usize = 1000;
const MEASURED_TOKENS: usize = 2048;

/// A text and the number of tokens at its start that are given, not predicted.
struct LmExample {
    ids: Vec<u32>,
    given: usize,
}

pub struct NextToken {
    settings: NextTokenSettings,
}

impl Algorithm for NextToken {
    fn step(&mut self, cx: &mut StepContext) -> Result<Outcome> {
        cx.zero_grad();
        for micro in cx.micro_batches() {
            let batch = cx.draw_batch(micro.draws);
            let examples = self.read(cx, &batch)?;
            cx.metrics.pairs += batch.pairs.len();
            cx.lap(|seconds| &mut seconds.data);
            backward(cx, &examples, micro.weight)?;
        }
        cx.optimizer_step()?;
        Ok(Outcome::Done)
    }
}

impl NextToken {
    pub fn new(settings: NextTokenSettings) -> Self {
        Self { settings }
    }

    /// This process's examples of a batch.
    fn read(&self, cx: &StepContext, batch: &Batch) -> Result<Vec<LmExample>> {
        let own: Range<usize> = cx.stage.own_pairs(batch);
        let mut examples = Vec::with_capacity(own.len());
        for (place, pair) in batch.pairs[own.clone()].iter().enumerate() {
            let item = cx.stage.catalogue.item(pair.item)?;
            if self.settings.is_held_out(&item.id) {
                continue;
            }
            // alternates between shoppers' words and sellers'
            let draw = batch.draws.start + (own.start + place) as u64;
            let brief = draw.is_multiple_of(2) && !self.settings.answer.is_empty();
            let (text, kind) = match (brief, cx.stage.pairs) {
                (true, Pairs::Examples(_) | Pairs::Judged(_)) => (pair.query, TextKind::Query),
                (true, Pairs::Items(_)) if !item.title.is_empty() => (item.title.as_str(), TextKind::Item),
                _ => (&*cx.stage.catalogue.text_of(&item), TextKind::Item),
            };
            examples.push(self.settings.example(&cx.encoder.reader(), text, kind, &item)?);
        }
        Ok(examples)
    }
}

/// Back-propagates this process's part of the batch's mean loss over tokens.
fn backward(cx: &mut StepContext, examples: &[LmExample], weight: f64) -> Result<()> {
    let (stage, encoder) = (cx.stage, cx.encoder);
    let lengths: Vec<usize> = examples.iter().map(|example| example.ids.len()).collect();
    let num_predicted: usize = examples.iter().map(|example| example.ids.len() - example.given).sum();
    cx.metrics.texts += examples.len();
    cx.metrics.tokens += lengths.iter().sum::<usize>();
    let mut all = Tensor::from_slice(&[num_predicted as f64]);
    stage.collective.all_reduce(&mut all)?;
    let all = all.double_value(&[0]).max(1.0);
    let mut loss = Tensor::zeros([1], (Kind::Float, Device::Cpu));
    for places in in_chunks(&lengths, stage.settings.chunk_tokens) {
        let texts: Vec<(&[u32], usize)> =
            places.iter().map(|place| (examples[*place].ids.as_slice(), examples[*place].given)).collect();
        let part = {
            let _autocast = autocast(stage.bf16, encoder)?;
            -encoder.log_probs(&texts, 1.0, stage.settings.dropout)?.sum(Kind::Float) * (weight / all)
        };
        part.f_backward()?;
        loss += part.detach().to_device(Device::Cpu);
    }
    cx.add_loss(&loss);
    cx.lap(|seconds| &mut seconds.backward);
    Ok(())
}

/// The perplexity, e to the mean −log π, of the tokens of the texts of held-out items.
pub fn perplexity(encoder: &Encoder, settings: &NextTokenSettings, catalogue: &Catalogue) -> Result<f64> {
    let _guard = tch::no_grad_guard();
    encoder.check_generates(settings.needs().rationales)?;
    let mut examples = Vec::new();
    for row in 0..catalogue.len() {
        let item = catalogue.item(row)?;
        if settings.is_held_out(&item.id) && examples.len() < MAX_MEASURED {
            examples.push(settings.example(&encoder.reader(), &catalogue.text_of(&item), TextKind::Item, &item)?);
        }
    }
    let lengths: Vec<usize> = examples.iter().map(|example| example.ids.len()).collect();
    let (mut sum, mut tokens) = (0.0, 0);
    for places in in_chunks(&lengths, MEASURED_TOKENS) {
        let texts: Vec<(&[u32], usize)> =
            places.iter().map(|place| (examples[*place].ids.as_slice(), examples[*place].given)).collect();
        sum -= encoder.log_probs(&texts, 1.0, false)?.sum(Kind::Double).double_value(&[]);
        tokens += texts.iter().map(|(ids, given)| ids.len() - given).sum::<usize>();
    }
    if tokens == 0 {
        let problem =
            format!("is {}, which holds out no item of this catalogue to measure on: set it higher", settings.held_out);
        return Err(Error::config("objective.held_out", problem));
    }
    Ok((sum / tokens as f64).exp())
}

impl NextTokenSettings {
    /// Whether an item is only measured, never trained on.
    fn is_held_out(&self, id: &str) -> bool {
        let share = f64::from(crc32fast::hash(id.as_bytes())) / f64::from(u32::MAX);
        share < self.held_out
    }

    /// A text, the item's answer behind it, and the end token.
    fn example(&self, reader: &Reader, text: &str, kind: TextKind, item: &Item) -> Result<LmExample> {
        let Text { mut ids, .. } = reader.read(text, Some(kind))?;
        let answer = self.answer_of(item);
        if !answer.is_empty() {
            ids.extend(reader.encode_raw(&answer)?);
        }
        // readers of texts that are continued add no end token
        ids.extend(reader.ends().first());
        Ok(LmExample { ids, given: 1 })
    }

    /// Such as `category: lamp, colour: red`.
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
