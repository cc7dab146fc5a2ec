//! `souk embed`: a text per line in, a JSON array per line out.

use std::io::{BufWriter, Write, stdin, stdout};
use std::path::Path;
use std::time::Instant;

use clap::Args;
use souk::config::{Change, Config};
use souk::domain::TextKind;
use souk::encoder::{EncoderWorker, encode};

use crate::lines::Lines;
use crate::progress::bar;
use crate::{ModelArgs, Shared};

/// Texts that are explained at a time.
const AT_ONCE: usize = 32;

/// Turn texts into vectors: one text per line in, one JSON array per line out
///
/// Example: echo "oak desk 120 cm" | souk embed --model sentence-transformers/all-MiniLM-L6-v2
#[derive(Args)]
pub struct Embed {
    #[command(flatten)]
    model: ModelArgs,
    /// query or item: chooses the model's prompt; without it, the model's default prompt
    #[arg(long)]
    kind: Option<TextKind>,
    /// Keep the first N entries of each vector, normalised again (Matryoshka models)
    #[arg(long, value_name = "N")]
    dimensions: Option<i64>,
    /// Print {"text", "vector"} instead of the bare vector
    #[arg(long)]
    with_text: bool,
    /// Print {"text", "rationale", "vector"}: what a model with rationales wrote of each text before it encoded it
    #[arg(long, conflicts_with_all = ["with_text", "stats"])]
    explain: bool,
    /// Print what was done and how fast to standard error, as one line of JSON
    #[arg(long)]
    stats: bool,
}

impl Embed {
    #[expect(clippy::print_stderr, reason = "statistics stay out of the vectors' way")]
    pub fn run(&self, shared: &Shared) -> anyhow::Result<()> {
        let mut changes = self.model.changes();
        changes.extend(self.dimensions.map(|n| Change::number("encoder.dimensions", "--dimensions", n)));
        let config = shared.load(changes)?;
        if self.explain {
            return self.explain(&config);
        }
        let worker = EncoderWorker::start(config.open_encoder()?.freeze()?, config.worker)?;
        let progress = bar("texts", None);
        let mut out = BufWriter::new(stdout().lock());
        let lines = Lines::new(stdin().lock(), Path::new("standard input"));
        let started = Instant::now();
        let mut num_texts = 0;
        let text_of = |(_, text): &(u64, String)| text.clone();
        let place = |(line, _): &(u64, String)| format!("standard input, line {line}");
        encode(&worker, self.kind, lines, (text_of, place), |(_, text), vector| {
            progress.inc(1);
            num_texts += 1;
            // written in one go, so that a reader who leaves is an error of the pipe, not of the JSON
            let mut line = match self.with_text {
                true => serde_json::to_vec(&serde_json::json!({"text": text, "vector": vector}))?,
                false => serde_json::to_vec(&vector)?,
            };
            line.push(b'\n');
            out.write_all(&line)?;
            Ok::<(), anyhow::Error>(())
        })?;
        out.flush()?;
        progress.finish_and_clear();
        if self.stats {
            let seconds = started.elapsed().as_secs_f64();
            let counted = &souk::telemetry::ENCODER;
            let stats = serde_json::json!({
                "texts": num_texts, "tokens": counted.tokens.get(), "batches": counted.batches.get(),
                "seconds": seconds, "model_seconds": counted.seconds.get_sample_sum(),
                "texts_per_second": num_texts as f64 / seconds,
            });
            eprintln!("{stats}");
        }
        Ok(())
    }

    /// A few texts at a time, each with what the model makes of it.
    fn explain(&self, config: &Config) -> anyhow::Result<()> {
        let encoder = config.open_encoder()?;
        encoder.check_generates(true)?;
        let (reader, encoder) = (encoder.reader(), encoder.freeze()?);
        let (mut out, progress) = (BufWriter::new(stdout().lock()), bar("texts", None));
        let mut lines = Lines::new(stdin().lock(), Path::new("standard input")).peekable();
        while lines.peek().is_some() {
            let lines = lines.by_ref().take(AT_ONCE).collect::<souk::Result<Vec<_>>>()?;
            let texts = lines.iter().map(|(_, text)| reader.read(text, self.kind)).collect::<souk::Result<Vec<_>>>()?;
            let explained = encoder.explain(&texts.iter().collect::<Vec<_>>())?;
            for ((_, text), (rationale, vector)) in lines.iter().zip(explained) {
                let line = serde_json::json!({"text": text, "rationale": rationale.trim(), "vector": vector});
                writeln!(out, "{line}")?;
            }
            progress.inc(lines.len() as u64);
        }
        progress.finish_and_clear();
        Ok(out.flush()?)
    }
}
