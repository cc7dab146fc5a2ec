//! Wraps a judge and records a sample of its verdicts, missing ones included, in the ledger, from a background thread. Judging
//! never waits for the ledger: if the queue is full, audits are dropped, counted and logged.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use sha2::{Digest, Sha256};
use tokio::runtime::Runtime;

use super::{Question, RewardSource, Verdict};
use souk_io::audit::{Audit, AuditLog};
use souk_io::error::{Error, Result};
use souk_io::telemetry::REWARD;

/// Maximum number of queued audits.
const QUEUE: usize = 16_384;
/// Audits per write.
const BATCH: usize = 1000;
/// Maximum wait for unwritten audits at shutdown.
const FAREWELL: Duration = Duration::from_secs(10);
/// Pause before retrying a failed write.
const PAUSE: Duration = Duration::from_millis(500);
const MAX_QUERY_CHARS: usize = 1024;

pub struct AuditedJudge {
    source: Arc<dyn RewardSource>,
    rate: f64,
    /// `None` only while dropping, so that the thread sees the end of the queue.
    queue: Option<SyncSender<Audit>>,
    thread: Option<JoinHandle<()>>,
    dropped: Arc<Dropped>,
}

#[derive(Default)]
struct Dropped {
    number: AtomicU64,
    is_said: AtomicBool,
}

impl Dropped {
    fn add(&self, number: usize, why: &(dyn std::error::Error + 'static)) {
        REWARD.audits_dropped.inc_by(number as u64);
        self.number.fetch_add(number as u64, Ordering::Relaxed);
        if !self.is_said.swap(true, Ordering::Relaxed) {
            tracing::warn!(why, "audits cannot be written");
        }
    }
}

#[derive(Debug, thiserror::Error)]
#[error("the ledger is slower than the judge: lower the share that is audited")]
struct TooSlow;

impl AuditedJudge {
    /// `rate` is the fraction of pairs to record, 0 to 1; the choice depends on query and item only. If the ledger was opened
    /// on a runtime, the runtime must outlive this.
    pub fn start(source: Arc<dyn RewardSource>, ledger: Arc<dyn AuditLog>, rate: f64) -> Result<Self> {
        let failed = |e: std::io::Error| Error::device("cannot start the audit thread").because(e);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let (queue, audits) = sync_channel(QUEUE);
        let dropped = Arc::<Dropped>::default();
        let writer = Writer { runtime, ledger, dropped: dropped.clone() };
        let thread = std::thread::Builder::new().name("souk-audits".into());
        let thread = thread.spawn(move || writer.run(&audits)).map_err(failed)?;
        Ok(Self { source, rate, queue: Some(queue), thread: Some(thread), dropped })
    }

    /// Number of audits that were dropped.
    pub fn num_dropped(&self) -> u64 {
        self.dropped.number.load(Ordering::Relaxed)
    }

    fn note(&self, asked: &[Question<'_>], verdicts: &[Option<Verdict>]) {
        let Some(queue) = &self.queue else { return };
        let judged_at = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let judged_at = judged_at.map_or(0, |time| time.as_millis() as i64);
        let mut too_many = 0;
        for (one, verdict) in asked.iter().zip(verdicts).filter(|(one, _)| is_sampled(one, self.rate)) {
            let audit = Audit {
                query: kept(one.query),
                item: kept(one.item_id),
                text_hash: Sha256::digest(one.item).iter().map(|byte| format!("{byte:02x}")).collect(),
                source: kept(self.id()),
                score: verdict.map(|verdict| f64::from(verdict.score)),
                level: verdict.map(|verdict| verdict.level),
                judged_at,
            };
            too_many += usize::from(queue.try_send(audit).is_err());
        }
        if too_many > 0 {
            self.dropped.add(too_many, &TooSlow);
        }
    }
}

impl RewardSource for AuditedJudge {
    fn id(&self) -> &str {
        self.source.id()
    }

    fn judge(&self, asked: &[Question<'_>]) -> Result<Vec<Option<Verdict>>> {
        let verdicts = self.source.judge(asked)?;
        self.note(asked, &verdicts);
        Ok(verdicts)
    }

    fn refusal(&self, asked: &Question<'_>) -> Option<String> {
        self.source.refusal(asked)
    }

    fn trouble(&self) -> Option<String> {
        self.source.trouble()
    }
}

impl Drop for AuditedJudge {
    fn drop(&mut self) {
        self.queue = None;
        let Some(thread) = self.thread.take() else { return };
        let until = Instant::now() + FAREWELL;
        while !thread.is_finished() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
        }
        if !thread.is_finished() {
            tracing::warn!("the ledger does not respond: the last audits may be lost");
        }
        if self.num_dropped() > 0 {
            tracing::warn!(number = self.num_dropped(), "audits were dropped");
        }
    }
}

/// The background thread.
struct Writer {
    runtime: Runtime,
    ledger: Arc<dyn AuditLog>,
    dropped: Arc<Dropped>,
}

impl Writer {
    fn run(&self, audits: &Receiver<Audit>) {
        while let Ok(first) = audits.recv() {
            let mut batch = vec![first];
            let ended = loop {
                match audits.try_recv() {
                    Ok(next) => batch.push(next),
                    Err(TryRecvError::Empty) => break false,
                    Err(TryRecvError::Disconnected) => break true,
                }
                if batch.len() == BATCH {
                    break false;
                }
            };
            self.write(&batch, ended);
        }
    }

    /// Retries a write once after a transient error, except at shutdown.
    fn write(&self, batch: &[Audit], is_last: bool) {
        let append = || self.runtime.block_on(self.ledger.append_audits(batch));
        let outcome = match append() {
            Err(Error::Upstream { retryable: true, .. }) if !is_last => {
                std::thread::sleep(PAUSE);
                append()
            }
            outcome => outcome,
        };
        match outcome {
            Ok(()) => self.dropped.is_said.store(false, Ordering::Relaxed),
            Err(error) => self.dropped.add(batch.len(), &error),
        }
    }
}

/// True for a fixed sample of all pairs.
fn is_sampled(asked: &Question<'_>, rate: f64) -> bool {
    let mut hash = Sha256::new();
    for part in [asked.query, asked.item_id] {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    let drawn = hash.finalize().iter().take(6).fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
    (drawn as f64) < rate * (1_u64 << 48) as f64
}

/// Text as the ledger stores it: without NUL, and truncated.
fn kept(text: &str) -> String {
    text.chars().take(MAX_QUERY_CHARS).map(|c| if c == '\0' { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Judgements;
    use crate::tests::{conforms, question};
    use souk_io::address::Address;
    use souk_io::domain::{Judgement, Level};
    use souk_store::{AuditMark, Ledger, SqlLedger};

    fn judge() -> Arc<Judgements> {
        let row = |query: &str, item: &str, level| Ok(Judgement { query: query.into(), item: item.into(), level });
        Arc::new(Judgements::gather("qrels", [row("q", "a", Level::L4), row("r", "b", Level::L2)].into_iter()).unwrap())
    }

    /// Audits that `work` left in a new ledger.
    fn audits(rate: f64, work: impl FnOnce(&AuditedJudge)) -> Vec<Audit> {
        let folder = tempfile::tempdir().unwrap();
        let address = Address::new(format!("sqlite:{}", folder.path().join("shop.db").display()));
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.block_on(SqlLedger::migrate(&address)).unwrap();
        let ledger = Arc::new(runtime.block_on(SqlLedger::open(&address)).unwrap());
        let source = AuditedJudge::start(judge(), ledger.clone(), rate).unwrap();
        work(&source);
        assert_eq!(source.num_dropped(), 0);
        drop(source);
        let page = runtime.block_on(ledger.page_audits(AuditMark::at(i64::MIN), i64::MAX, 5000)).unwrap();
        page.into_iter().map(|(_, audit)| audit).collect()
    }

    #[test]
    fn every_judgement_is_written_down_missing_ones_too() {
        let written = audits(1.0, |source| {
            conforms(source, [("q", "a", Level::L4), ("r", "b", Level::L2)]);
            source.judge(&[Question { query_id: "q", query: "\0", item_id: "\0", item: "\0" }]).unwrap();
        });
        assert_eq!(written.len(), 4 + 4 + 1);
        let first = &written[0];
        assert_eq!((first.query.as_str(), first.item.as_str(), first.source.as_str()), ("q", "a", "qrels"));
        assert_eq!((first.score, first.level), (Some(1.0), Some(Level::L4)));
        assert_eq!(first.text_hash.len(), 64);
        assert_eq!((written[1].score, written[1].level), (None, None));
        assert_eq!(written[8].query, "\u{fffd}");
    }

    #[test]
    fn a_share_is_the_same_share_every_time() {
        let items: Vec<String> = (0..1000).map(|n| format!("item-{n}")).collect();
        let asked: Vec<Question<'_>> = items.iter().map(|item| question("q", item)).collect();
        let written = audits(0.1, |source| {
            source.judge(&asked).unwrap();
            source.judge(&asked).unwrap();
        });
        assert!((140..260).contains(&written.len()), "{}", written.len());
        let (first, second) = written.split_at(written.len() / 2);
        assert!(first.iter().zip(second).all(|(first, second)| first.item == second.item));
        let none = |rate| asked.iter().filter(|one| is_sampled(one, rate)).count();
        assert_eq!((none(0.0), none(1.0)), (0, 1000));
    }
}
