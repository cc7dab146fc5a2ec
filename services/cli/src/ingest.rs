//! `souk ingest`: reads a search log and writes training examples.

use std::path::PathBuf;

use clap::Args;
use souk::config::Change;
use souk::dataset::{EXAMPLES_FOLDER, Ingest};

use crate::GlobalArgs;
use crate::output::print;
use crate::progress::ProgressDisplay;
use crate::stop::{end, listen};

/// Turn a search log into training examples
///
/// Joins clicks, carts and purchases to their queries and writes them to DIR/examples, exactly
/// once: after a stop or a crash, the same command continues where it left off. Invalid messages go
/// to dead.jsonl next to the examples, with the reason. Several processes may share a Kafka topic
/// and a folder.
///
/// Examples:
///   souk ingest --from shop/logs.ndjson --data shop
///   souk ingest --kafka localhost:9092 --topic ubi --data shop --follow
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub struct IngestCommand {
    #[command(flatten)]
    log: LogArgs,
    /// Keep reading new messages until stopped
    #[arg(long)]
    follow: bool,
    /// Data folder; examples are written to DIR/examples
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
}

impl IngestCommand {
    pub fn run(&self, globals: &GlobalArgs) -> anyhow::Result<()> {
        let mut changes = self.log.changes();
        changes.extend(self.follow.then(|| Change::truth("log.follow", "--follow", true)));
        let config = globals.load(changes)?;
        let stop = listen(end)?;
        let open = |resume| config.log.open(resume);
        let home = self.data.join(EXAMPLES_FOLDER);
        let mut ingest = Ingest::new(&home, config.ingest.clone(), Box::new(open), stop)?;
        let shown = ProgressDisplay::start("messages", None);
        let done = ingest.run(|progress| shown.set(progress.counts.messages))?;
        shown.finish();
        let counts = &done.counts;
        let text = format!(
            "{} messages: {} examples, {} queries, {} impressions, {} duplicates, {} skipped, {} dead letters\n\
             {} events are waiting for their query; output in {}",
            counts.messages,
            counts.examples,
            counts.queries,
            counts.impressions,
            counts.repeated,
            counts.passed_over,
            counts.dead,
            done.waiting,
            home.display(),
        );
        print(globals, &serde_json::to_value(&done)?, &text)
    }
}

/// Source of the search log: files or Kafka.
#[derive(Args)]
pub struct LogArgs {
    /// Log file in UBI 1.3, one JSON object per line; repeatable
    #[arg(long, value_name = "FILE", conflicts_with = "kafka")]
    from: Vec<String>,
    /// Kafka brokers
    #[arg(long, value_name = "HOST:PORT,...")]
    kafka: Option<String>,
    /// Kafka topic of UBI 1.3 messages; repeatable, for topics with the same message keys
    #[arg(long, value_name = "NAME", requires = "kafka")]
    topic: Vec<String>,
    /// Kafka consumer group (default: souk)
    #[arg(long, value_name = "NAME", requires = "kafka")]
    group: Option<String>,
    /// Dead-letter topic: also send invalid messages there
    #[arg(long, value_name = "NAME", requires = "kafka")]
    dead_letters: Option<String>,
}

impl LogArgs {
    /// Files or Kafka on the command line take the place of either in the configuration.
    pub fn changes(&self) -> Vec<Change> {
        let mut changes = Vec::new();
        if self.kafka.is_some() {
            changes.push(Change::texts("log.paths", "--kafka", &[]));
        }
        if !self.from.is_empty() {
            changes.push(Change::text("log.brokers", "--from", ""));
        }
        let texts = [("log.paths", "--from", &self.from), ("log.topics", "--topic", &self.topic)];
        let given = texts.into_iter().filter(|(_, _, texts)| !texts.is_empty());
        changes.extend(given.map(|(path, flag, texts)| Change::texts(path, flag, texts)));
        let one = [
            ("log.brokers", "--kafka", &self.kafka),
            ("log.group", "--group", &self.group),
            ("log.dead_letter_topic", "--dead-letters", &self.dead_letters),
        ];
        changes.extend(one.into_iter().filter_map(|(path, flag, text)| Some(Change::text(path, flag, text.as_ref()?))));
        changes
    }
}
