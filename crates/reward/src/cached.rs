//! Wraps a judge with a verdict cache, keyed by judge, query and item text. Missing verdicts are not cached. If the cache is
//! unreachable, every question goes to the judge.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;

use sha2::{Digest, Sha256};
use tokio::runtime::Runtime;

use super::{Question, RewardSource, Verdict};
use souk_cache::{Cache, Value};
use souk_io::domain::Level;
use souk_io::error::{Error, Result};
use souk_io::telemetry::REWARD;

/// Key prefix; change it when the entry format changes.
const PREFIX: &[u8] = b"verdict/1/";

pub struct CachedJudge {
    source: Arc<dyn RewardSource>,
    cache: Arc<dyn Cache>,
    /// `None` only while dropping. The runtime has its own thread, because connections need work between calls.
    runtime: Option<Runtime>,
    is_away: AtomicBool,
}

impl CachedJudge {
    /// Wraps a judge that reads texts, not ids.
    pub fn start(source: Arc<dyn RewardSource>, cache: Arc<dyn Cache>) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("souk-verdicts")
            .enable_all()
            .build()
            .map_err(|e| Error::device("cannot start the verdict cache's thread").because(e))?;
        Ok(Self { source, cache, runtime: Some(runtime), is_away: AtomicBool::new(false) })
    }

    /// One verdict or none per key; all none if the cache is unreachable.
    fn find(&self, keys: Vec<Vec<u8>>) -> Vec<Option<Verdict>> {
        let (cache, num) = (self.cache.clone(), keys.len());
        let found = self.ask(async move { cache.get_many(&keys).await }).filter(|found| found.len() == num);
        let found = found.unwrap_or_else(|| vec![None; num]);
        found.into_iter().map(|value| decode(&value?)).collect()
    }

    fn keep(&self, entries: Vec<(Vec<u8>, Value)>) {
        if !entries.is_empty() {
            let cache = self.cache.clone();
            self.ask(async move { cache.put_many(&entries).await });
        }
    }

    /// Blocks on the cache. Logs once when the cache becomes unreachable and once when it is back.
    fn ask<T: Send + 'static>(&self, work: impl Future<Output = Result<T>> + Send + 'static) -> Option<T> {
        let (give, take) = sync_channel(1);
        self.runtime.as_ref()?.spawn(async move { drop(give.send(work.await)) });
        match take.recv().ok()? {
            Ok(answer) => {
                if self.is_away.swap(false, Ordering::Relaxed) {
                    tracing::warn!("the verdict cache is back");
                }
                Some(answer)
            }
            Err(error) => {
                if !self.is_away.swap(true, Ordering::Relaxed) {
                    let error: &dyn std::error::Error = &error;
                    tracing::warn!(error, "the verdict cache is unreachable: asking the judge for every verdict");
                }
                None
            }
        }
    }
}

impl Drop for CachedJudge {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Also safe to drop inside an async context.
            runtime.shutdown_background();
        }
    }
}

impl RewardSource for CachedJudge {
    fn id(&self) -> &str {
        self.source.id()
    }

    fn judge(&self, asked: &[Question<'_>]) -> Result<Vec<Option<Verdict>>> {
        let mut numbers: HashMap<Vec<u8>, usize> = HashMap::new();
        let mut firsts: Vec<(Vec<u8>, Question<'_>)> = Vec::new();
        let mut number_of = Vec::with_capacity(asked.len());
        for one in asked {
            let key = key(self.id(), one);
            let number = *numbers.entry(key.clone()).or_insert(firsts.len());
            if number == firsts.len() {
                firsts.push((key, *one));
            }
            number_of.push(number);
        }
        let mut verdicts =
            if firsts.is_empty() { Vec::new() } else { self.find(firsts.iter().map(|(key, _)| key.clone()).collect()) };
        let unknown: Vec<usize> = (0..firsts.len()).filter(|number| verdicts[*number].is_none()).collect();
        REWARD.cached.with_label_values(&["hit"]).inc_by((firsts.len() - unknown.len()) as u64);
        REWARD.cached.with_label_values(&["miss"]).inc_by(unknown.len() as u64);
        if !unknown.is_empty() || asked.is_empty() {
            let questions: Vec<Question<'_>> = unknown.iter().map(|number| firsts[*number].1).collect();
            let mut new = Vec::new();
            for (number, verdict) in unknown.into_iter().zip(self.source.judge(&questions)?) {
                verdicts[number] = verdict;
                new.extend(verdict.map(|verdict| (firsts[number].0.clone(), encode(verdict))));
            }
            self.keep(new);
        }
        Ok(number_of.into_iter().map(|number| verdicts[number]).collect())
    }

    fn refusal(&self, asked: &Question<'_>) -> Option<String> {
        self.source.refusal(asked)
    }

    fn trouble(&self) -> Option<String> {
        self.source.trouble()
    }
}

fn key(source: &str, asked: &Question<'_>) -> Vec<u8> {
    let mut hash = Sha256::new();
    for part in [source, asked.query, asked.item] {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    [PREFIX, hash.finalize().as_slice()].concat()
}

/// Level, then score.
fn encode(verdict: Verdict) -> Value {
    let [a, b, c, d] = verdict.score.to_le_bytes();
    Arc::new([verdict.level.number(), a, b, c, d])
}

/// Parses an entry; invalid entries are ignored.
fn decode(value: &[u8]) -> Option<Verdict> {
    let [level, score @ ..] = value else { return None };
    let score = f32::from_le_bytes(score.try_into().ok()?);
    let level = Level::from_number(i64::from(*level))?;
    (0.0..=1.0).contains(&score).then_some(Verdict { score, level })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;
    use crate::tests::{conforms, question};
    use souk_cache::MemoryCache;
    use souk_io::error::Answer;

    /// Scores items by the length of their text, gives no verdict on `x`, and counts its questions.
    #[derive(Default)]
    struct ByLength(AtomicUsize);

    impl RewardSource for ByLength {
        fn id(&self) -> &str {
            "by length"
        }

        fn judge(&self, asked: &[Question<'_>]) -> Result<Vec<Option<Verdict>>> {
            self.0.fetch_add(asked.len(), Ordering::Relaxed);
            let known = |one: &Question<'_>| one.item != "nothing" && one.query != "nobody";
            let level = |one: &Question<'_>| Level::from_number(one.item.len() as i64).filter(|_| known(one));
            Ok(asked.iter().map(|one| level(one).map(Verdict::of)).collect())
        }

        fn trouble(&self) -> Option<String> {
            Some("dislikes x".into())
        }
    }

    struct Away;

    impl Cache for Away {
        fn get_many<'a>(&'a self, _: &'a [Vec<u8>]) -> Answer<'a, Vec<Option<Value>>> {
            Box::pin(async { Err(Error::input("away")) })
        }

        fn put_many<'a>(&'a self, _: &'a [(Vec<u8>, Value)]) -> Answer<'a, ()> {
            Box::pin(async { Err(Error::input("away")) })
        }
    }

    #[test]
    fn a_cached_judge_is_a_judge() {
        for cache in [Arc::new(MemoryCache::new(1 << 20)) as Arc<dyn Cache>, Arc::new(Away)] {
            let source = CachedJudge::start(Arc::new(ByLength::default()), cache).unwrap();
            conforms(&source, [("q0", "abcd", Level::L4), ("q1", "a", Level::L1)]);
            assert_eq!((source.id(), source.trouble().as_deref()), ("by length", Some("dislikes x")));
        }
    }

    #[test]
    fn only_verdicts_are_kept_and_nothing_is_asked_twice() {
        let judge = Arc::new(ByLength::default());
        let cache: Arc<dyn Cache> = Arc::new(MemoryCache::new(1 << 20));
        let source = CachedJudge::start(judge.clone(), cache.clone()).unwrap();
        let asked = [question("q", "ab"), question("q", "too long"), question("r", "ab"), question("q", "ab")];
        for num_asked in [3, 4, 5] {
            let verdicts = source.judge(&asked).unwrap();
            assert_eq!(verdicts.iter().map(Option::is_some).collect::<Vec<_>>(), [true, false, true, true]);
            assert_eq!(judge.0.load(Ordering::Relaxed), num_asked, "what is missing is asked for again");
        }
        let again = CachedJudge::start(judge.clone(), cache).unwrap();
        again.judge(&asked[2..]).unwrap();
        assert_eq!(judge.0.load(Ordering::Relaxed), 5);
    }

    #[test]
    fn a_key_keeps_its_parts_apart_and_a_value_is_checked() {
        let one = |query, item| Question { query, item, query_id: "", item_id: "" };
        assert_ne!(key("s", &one("ab", "c")), key("s", &one("a", "bc")));
        assert_ne!(key("s", &one("a", "b")), key("t", &one("a", "b")));
        let verdict = Verdict { score: 0.1, level: Level::L2 };
        assert_eq!(decode(&encode(verdict)), Some(verdict));
        let nan = [&[2], f32::NAN.to_le_bytes().as_slice()].concat();
        let large = [&[2], 1.5_f32.to_le_bytes().as_slice()].concat();
        for wrong in [&[][..], &[2], &[2, 0, 0, 0], &[5, 0, 0, 0, 0], &[2, 0, 0, 0, 0, 0], &nan, &large] {
            assert_eq!(decode(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn one_that_is_dropped_in_a_runtime_does_no_harm() {
        let source = CachedJudge::start(Arc::new(ByLength::default()), Arc::new(Away)).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async move {
            assert_eq!(source.judge(&[question("q", "a")]).unwrap().len(), 1);
            drop(source);
        });
    }
}
