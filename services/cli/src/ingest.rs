//! `souk ingest`: a search log into training examples.

use std::path::PathBuf;

use clap::Args;
use souk::config::Change;
use souk::dataset::{EXAMPLES_FOLDER, Ingest};

use crate::Shared;
use crate::output::print;
use crate::progress::bar;
use crate::stop::{end, listen};

/// Read a search log and keep what shoppers chose as training examples
///
/// Clicks, carts and purchases are joined to their queries and written to DIR/examples, each once, however often this is
/// stopped or killed and started again: it goes on where it was. Messages that cannot be used are kept with their reason in
/// dead.jsonl beside the examples. Several of these may share a Kafka topic and a folder.
///
/// Examples:
///   souk ingest --from shop/logs.ndjson --data shop
///   souk ingest --kafka localhost:9092 --topic ubi --data shop --follow
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub struct IngestVerb {
    #[command(flatten)]
    log: LogArgs,
    /// Wait for more at the end of the log, until stopped
    #[arg(long)]
    follow: bool,
    /// Data folder; the examples go to DIR/examples
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
}

impl IngestVerb {
    pub fn run(&self, shared: &Shared) -> anyhow::Result<()> {
        let mut changes = self.log.changes();
        changes.extend(self.follow.then(|| Change::truth("log.follow", "--follow", true)));
        let config = shared.load(changes)?;
        let stop = listen(end)?;
        let open = |resume| config.log.open(resume);
        let home = self.data.join(EXAMPLES_FOLDER);
        let mut ingest = Ingest::new(&home, config.ingest.clone(), Box::new(open), stop)?;
        let bar = bar("messages", None);
        let done = ingest.run(|progress| bar.set_position(progress.counts.messages))?;
        bar.finish_and_clear();
        let counts = &done.counts;
        let text = format!(
            "{} messages: {} examples, {} queries, {} impressions, {} repeated, {} passed over, {} dead letters\n\
             {} events wait for their query; everything is in {}",
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
        print(shared, &serde_json::to_value(&done)?, &text)
    }
}

/// Where a search log comes from.
#[derive(Args)]
pub struct LogArgs {
    /// A log in UBI 1.3, one JSON object a line; may be given several times
    #[arg(long, value_name = "FILE", conflicts_with = "kafka")]
    from: Vec<String>,
    /// Kafka's brokers
    #[arg(long, value_name = "HOST:PORT,...")]
    kafka: Option<String>,
    /// A topic of UBI 1.3 messages; may be given several times, for topics that share their keys
    #[arg(long, value_name = "NAME", requires = "kafka")]
    topic: Vec<String>,
    /// The consumer group [default: souk]
    #[arg(long, value_name = "NAME", requires = "kafka")]
    group: Option<String>,
    /// Send what cannot be used to this topic as well
    #[arg(long, value_name = "NAME", requires = "kafka")]
    dead_letters: Option<String>,
}

impl LogArgs {
    pub fn changes(&self) -> Vec<Change> {
        let mut changes = Vec::new();
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
