//! `souk embed`: one text per line in, one JSON array per line out.

use std::io::{BufWriter, Write, stdin, stdout};
use std::path::Path;
use std::time::Instant;

use clap::Args;
use souk::config::{Change, Config};
use souk::domain::TextKind;
use souk::encoder::{EncoderWorker, encode};

use crate::lines::StdinLines;
use crate::progress::ProgressDisplay;
use crate::{GlobalArgs, ModelArgs};

/// Batch size of `--explain`.
const EXPLAIN_BATCH: usize = 32;

/// Encode texts: one text per line in, one JSON array per line out
///
/// Example: echo "oak desk 120 cm" | souk embed --model sentence-transformers/all-MiniLM-L6-v2
#[derive(Args)]
pub struct EmbedCommand {
    #[command(flatten)]
    model: ModelArgs,
    /// Prompt to use: query or item (default: the model's default prompt)
    #[arg(long)]
    kind: Option<TextKind>,
    /// Matryoshka: keep the first N dimensions and normalise again
    #[arg(long, value_name = "N")]
    dimensions: Option<i64>,
    /// Print {"text", "vector"} instead of the bare vector
    #[arg(long)]
    with_text: bool,
    /// Print {"text", "rationale", "vector"}: the rationale that the model generated before encoding the text
    #[arg(long, conflicts_with_all = ["with_text", "stats"])]
    explain: bool,
    /// Print counts and throughput to standard error, as one line of JSON
    #[arg(long)]
    stats: bool,
}

impl EmbedCommand {
    #[expect(clippy::print_stderr, reason = "statistics go to standard error")]
    pub fn run(&self, globals: &GlobalArgs) -> anyhow::Result<()> {
        let mut changes = self.model.changes();
        changes.extend(self.dimensions.map(|n| Change::number("encoder.dimensions", "--dimensions", n)));
        let config = globals.load(changes)?;
        if self.explain {
            return self.explain(&config);
        }
        let worker = EncoderWorker::start(config.open_encoder()?.freeze()?, config.worker)?;
        let progress = ProgressDisplay::start("texts", None);
        let mut out = BufWriter::new(stdout().lock());
        let lines = StdinLines::new(stdin().lock(), Path::new("standard input"));
        let started = Instant::now();
        let mut num_texts = 0;
        let text_of = |(_, text): &(u64, String)| text.clone();
        let location = |(line, _): &(u64, String)| format!("standard input, line {line}");
        encode(&worker, self.kind, lines, (text_of, location), |(_, text), vector| {
            progress.add(1);
            num_texts += 1;
            // a single write, so that a closed pipe is an I/O error, not a JSON error
            let mut line = if self.with_text {
                serde_json::to_vec(&serde_json::json!({"text": text, "vector": vector}))?
            } else {
                serde_json::to_vec(&vector)?
            };
            line.push(b'\n');
            out.write_all(&line)?;
            Ok::<(), anyhow::Error>(())
        })?;
        out.flush()?;
        progress.finish();
        if self.stats {
            let seconds = started.elapsed().as_secs_f64();
            let counters = &souk::telemetry::ENCODER;
            let stats = serde_json::json!({
                "texts": num_texts, "tokens": counters.tokens.get(), "batches": counters.batches.get(),
                "seconds": seconds, "model_seconds": counters.seconds.get_sample_sum(),
                "texts_per_second": num_texts as f64 / seconds,
            });
            eprintln!("{stats}");
        }
        Ok(())
    }

    /// Prints each text with the model's rationale and vector.
    fn explain(&self, config: &Config) -> anyhow::Result<()> {
        let encoder = config.open_encoder()?;
        encoder.check_generates(true)?;
        let (reader, encoder) = (encoder.reader(), encoder.freeze()?);
        let (mut out, progress) = (BufWriter::new(stdout().lock()), ProgressDisplay::start("texts", None));
        let mut lines = StdinLines::new(stdin().lock(), Path::new("standard input")).peekable();
        while lines.peek().is_some() {
            let lines = lines.by_ref().take(EXPLAIN_BATCH).collect::<souk::Result<Vec<_>>>()?;
            let texts = lines.iter().map(|(_, text)| reader.read(text, self.kind)).collect::<souk::Result<Vec<_>>>()?;
            let explained = encoder.explain(&texts.iter().collect::<Vec<_>>())?;
            for ((_, text), (rationale, vector)) in lines.iter().zip(explained) {
                let line = serde_json::json!({"text": text, "rationale": rationale.trim(), "vector": vector});
                writeln!(out, "{line}")?;
            }
            progress.add(lines.len() as u64);
        }
        progress.finish();
        Ok(out.flush()?)
    }
}
