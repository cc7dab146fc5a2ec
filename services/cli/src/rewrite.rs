//! `souk rewrite`: queries in sellers' words, by a decoder or a chat model, so that BM25 finds more.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use clap::Args;
use sha2::{Digest, Sha256};
use souk::address::Address;
use souk::atomic_dir::write_atomic;
use souk::beir::{DataFolder, lines};
use souk::config::Config;
use souk::domain::{Query, TextKind};
use souk::error::{Error, Result};
use souk::reward::{Rewriter, RewriterSettings};

use crate::output::print;
use crate::progress::ProgressDisplay;
use crate::{GlobalArgs, ModelArgs};

/// Queries that a decoder writes for at once.
const BATCH: usize = 64;

/// Rewrite queries into the words of sellers, by a language model
///
/// The model is a chat model behind an OpenAI-compatible server (--url), or a decoder that answers queries (--model; see
/// encoder.rationale). A query that the model refuses keeps its words.
///
/// Example: souk rewrite --data SHOP --split test --url http://127.0.0.1:8000/v1 --name qwen --out rewrites.jsonl
#[derive(Args)]
pub struct RewriteCommand {
    #[command(flatten)]
    model: ModelArgs,
    /// Folder in BEIR format
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Split whose queries are rewritten
    #[arg(long, default_value = "test")]
    split: String,
    /// File to write: one {"_id", "text"} per line
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Write the query's own words before the rewrite
    #[arg(long)]
    keep_query: bool,
    /// Address of a chat model behind OpenAI's /chat/completions
    #[arg(long, requires = "name", conflicts_with = "model")]
    url: Option<String>,
    /// Name of the model on that server
    #[arg(long, requires = "url")]
    name: Option<String>,
    /// Environment variable with the server's key
    #[arg(long, value_name = "VARIABLE", requires = "url")]
    key_env: Option<String>,
    /// File with a prompt that has {data} where the query is to stand (default: the built-in one)
    #[arg(long, value_name = "FILE", requires = "url")]
    prompt: Option<PathBuf>,
    /// Maximum tokens of an answer, with those of its thinking; 0: the server's default
    #[arg(long, default_value_t = 0, requires = "url")]
    max_tokens: u32,
    /// Requests at the same time
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u8).range(1..))]
    concurrency: u8,
    /// Seconds after which a request is repeated
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    timeout_seconds: u64,
}

/// Rewrites by id of the query, and why some queries have none.
#[derive(Default)]
struct Rewrites {
    texts: BTreeMap<String, String>,
    refused: usize,
    problem: Option<String>,
}

impl RewriteCommand {
    pub fn run(&self, globals: &GlobalArgs) -> anyhow::Result<()> {
        if self.out.exists() {
            return Err(Error::input(format!("--out {}: exists: name a new file", self.out.display())).into());
        }
        let config = globals.load(self.model.changes())?;
        if self.url.is_none() && config.model.path.is_none() {
            return Err(
                Error::input("name a language model: --url URL --name MODEL, or --model DIR for a decoder").into()
            );
        }
        let queries = self.queries()?;
        let progress = ProgressDisplay::start("queries", Some(queries.len() as u64));
        let rewrites = match (&self.url, &self.name) {
            (Some(url), Some(name)) => self.by_server(url, name, &queries, &progress)?,
            _ => by_decoder(&config, &queries, &progress)?,
        };
        progress.finish();
        let mut file = String::new();
        for Query { id, text } in &queries {
            let Some(rewrite) = rewrites.texts.get(id) else { continue };
            let text = if self.keep_query { format!("{text} {rewrite}") } else { rewrite.clone() };
            file += &format!("{}\n", serde_json::json!({"_id": id, "text": text}));
        }
        write_atomic(&self.out, file.as_bytes())?;
        let (rewritten, refused) = (rewrites.texts.len(), rewrites.refused);
        let mut text = format!("rewrote {rewritten} of {} queries: {}", queries.len(), self.out.display());
        if let Some(problem) = &rewrites.problem {
            text += &format!("\n{refused} keep their words; the model said of one of them: {problem}");
        }
        print(
            globals,
            &serde_json::json!({"queries": queries.len(), "rewritten": rewritten, "refused": refused}),
            &text,
        )
    }

    /// The queries of the split.
    fn queries(&self) -> Result<Vec<Query>> {
        let data = DataFolder::open(&self.data)?;
        let judged = data.judgements(&self.split)?.map(|judgement| Ok(judgement?.query));
        let judged = judged.collect::<Result<BTreeSet<String>>>()?;
        data.queries()?.filter(|query| query.as_ref().map_or(true, |query| judged.contains(&query.id))).collect()
    }

    fn by_server(
        &self,
        url: &str,
        name: &str,
        queries: &[Query],
        progress: &ProgressDisplay,
    ) -> anyhow::Result<Rewrites> {
        let timeout = Duration::from_secs(self.timeout_seconds);
        let rewriter = Rewriter::open(RewriterSettings {
            url: Address::new(url),
            model: name.into(),
            key_env: self.key_env.clone(),
            prompt: self.prompt.clone(),
            max_tokens: self.max_tokens,
            timeout,
            patience: 10 * timeout,
        })?;
        let digest = Sha256::digest(rewriter.id());
        let mark: String = digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
        let unfinished = self.out.with_extension(format!("{mark}.part"));
        let known = read_unfinished(&unfinished)?;
        progress.add(known.len() as u64);
        let file = File::options().create(true).append(true).open(&unfinished);
        let file = Mutex::new(file.map_err(Error::store(&unfinished, "write it"))?);
        let open: Vec<&Query> = queries.iter().filter(|query| !known.contains_key(&query.id)).collect();
        let found = Mutex::new(Rewrites { texts: known, ..Rewrites::default() });
        let (next, failed) = (AtomicUsize::new(0), OnceLock::new());
        let work = || {
            while let (None, Some(query)) = (failed.get(), open.get(next.fetch_add(1, Ordering::Relaxed))) {
                let kept = rewriter.rewrite(&query.text).and_then(|answer| {
                    if let Ok(text) = &answer {
                        let line = format!("{}\n", serde_json::json!({"_id": query.id, "text": text}));
                        let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
                        file.write_all(line.as_bytes()).map_err(Error::store(&unfinished, "write it"))?;
                    }
                    found.lock().unwrap_or_else(PoisonError::into_inner).add(query, answer);
                    Ok(())
                });
                match kept {
                    Ok(()) => progress.add(1),
                    // the first error is reported
                    Err(error) => drop(failed.set(error)),
                }
            }
        };
        thread::scope(|scope| (0..self.concurrency).for_each(|_| drop(scope.spawn(work))));
        if let Some(error) = failed.into_inner() {
            let hint = format!("rewrites so far are in {}: run the same command again", unfinished.display());
            return Err(anyhow::Error::from(error).context(hint));
        }
        fs::remove_file(&unfinished).map_err(Error::store(&unfinished, "remove it"))?;
        Ok(found.into_inner().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Rewrites {
    fn add(&mut self, query: &Query, answer: std::result::Result<String, String>) {
        match answer {
            Ok(text) => drop(self.texts.insert(query.id.clone(), text)),
            Err(problem) => {
                self.refused += 1;
                self.problem.get_or_insert(problem);
            }
        }
    }
}

/// Rewrites of a command that was cut short.
fn read_unfinished(file: &Path) -> Result<BTreeMap<String, String>> {
    if !file.exists() {
        return Ok(BTreeMap::new());
    }
    let mut known = BTreeMap::new();
    for line in lines(file)? {
        // the last line may have been cut
        if let Ok(query) = serde_json::from_slice::<Query>(&line?.1) {
            known.insert(query.id, query.text);
        }
    }
    Ok(known)
}

/// A decoder's answer to each query.
fn by_decoder(config: &Config, queries: &[Query], progress: &ProgressDisplay) -> Result<Rewrites> {
    let encoder = config.open_encoder()?;
    encoder.check_generates(true)?;
    let (reader, encoder) = (encoder.reader(), encoder.freeze()?);
    let mut rewrites = Rewrites::default();
    for queries in queries.chunks(BATCH) {
        let read = |query: &Query| reader.read(&query.text, Some(TextKind::Query));
        let texts = queries.iter().map(read).collect::<Result<Vec<_>>>()?;
        let explained = encoder.explain(&texts.iter().collect::<Vec<_>>())?;
        for (query, (text, _)) in queries.iter().zip(explained) {
            let text = text.trim();
            let answer = if text.is_empty() { Err("an empty answer".into()) } else { Ok(text.to_owned()) };
            rewrites.add(query, answer);
        }
        progress.add(queries.len() as u64);
    }
    Ok(rewrites)
}
