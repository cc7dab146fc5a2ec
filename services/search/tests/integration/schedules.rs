//! Seeded schedules of two replicas with one ledger: writes, reads of the stream, promotions, rollbacks and rebuilds in random order, with
//! crashes at random awaits of any of them. What must hold:
//!
//! 1. A position that a replica has reached is never lost, not even in a crash.
//! 2. In the end both replicas have the same items: of each id the last acknowledged state, or one that a crash left open after it.
//! 3. Both serve the version that the ledger names, from an index of that version's model.
//! 4. A version that was rolled back is never served again.
//!
//! SOUK_SCHEDULES sets their number. A failure names its seed; SOUK_SEED runs that one alone.

use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use serde_json::{Value, json};
use souk::catalogue_stream::Mutation;
use souk::config::Config;
use souk::domain::Item;
use souk::store::NewVersion;
use souk_http::Keys;
use souk_search::SearchService;
use tokio::time::{sleep, timeout};

use crate::client::{config, golden};

const STEPS: u64 = 14;
const IDS: u64 = 4;
/// Time that a read of the stream waits for news.
const NEWS: Duration = Duration::from_millis(3);
/// Time limit of a schedule.
const LONG: Duration = Duration::from_secs(60);

/// Random numbers of one seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

struct Replica {
    config: Config,
    service: Arc<SearchService>,
    /// Highest position that it had.
    position: u64,
}

/// States that an item may have; None: it is deleted.
type States = Vec<Option<String>>;

struct Schedule {
    dice: Dice,
    replicas: Vec<Replica>,
    items: BTreeMap<String, States>,
    /// Versions that may be promoted, and those that were rolled back.
    num_versions: u64,
    rolled_back: BTreeSet<String>,
    log: Vec<String>,
}

/// Runs work, but at most so many polls of it: the process crashes then.
async fn until_crash<T>(work: impl Future<Output = T>, num_polls: Option<u64>) -> Option<T> {
    let (mut work, mut left) = (pin!(work), num_polls);
    poll_fn(move |context| match work.as_mut().poll(context) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending => match &mut left {
            Some(left) if *left <= 1 => Poll::Ready(None),
            Some(left) => {
                *left -= 1;
                Poll::Pending
            }
            None => Poll::Pending,
        },
    })
    .await
}

async fn open(config: &Config) -> Arc<SearchService> {
    loop {
        match SearchService::open(config, Keys::default(), |_| ()).await {
            Ok(service) => return service,
            // a build of the crashed process goes on in a thread of this one
            Err(error) if format!("{error:#}").contains("another process serves") => sleep(NEWS).await,
            Err(error) => panic!("{error:#}"),
        }
    }
}

fn item(id: &str, title: &str) -> Mutation {
    let (id, title) = (id.into(), title.into());
    Mutation::Put(Item { id, title, text: String::new(), fields: serde_json::Map::new() })
}

impl Schedule {
    async fn new(home: &Path, seed: u64) -> Self {
        let corpus: String =
            (0..5).map(|n| format!("{}\n", json!({"_id": format!("i{n}"), "title": "lamp"}))).collect();
        std::fs::create_dir(home.join("data")).unwrap();
        std::fs::write(home.join("data/corpus.jsonl"), corpus).unwrap();
        let mut replicas = Vec::new();
        for number in 0..2 {
            let state = format!("search.state={}", home.join(format!("state-{number}")).display());
            let mut config = config(home, &[&state, "search.free_bytes=0", "index.type=exact"]);
            config.search.lexical = None;
            replicas.push(Replica { service: open(&config).await, config, position: 0 });
        }
        let (items, rolled_back) = (BTreeMap::new(), BTreeSet::new());
        Self { dice: Dice(seed), replicas, items, num_versions: 0, rolled_back, log: Vec::new() }
    }

    async fn step(&mut self) {
        let at = self.dice.below(2) as usize;
        let crash = (self.dice.below(4) == 0).then(|| 1 + self.dice.below(30));
        let service = self.replicas[at].service.clone();
        let kind = self.dice.below(10);
        self.log.push(format!("{kind} on {at}, crash {crash:?}"));
        let is_done = match kind {
            0..4 => self.write(&service, crash).await,
            4..7 => until_crash(timeout(NEWS, service.serving.follow_stream()), crash).await.is_some(),
            7 => self.promote(&service, crash).await,
            8 => self.roll_back(&service, crash).await,
            _ => until_crash(service.registry.follow(&service.serving), crash).await.map(Result::unwrap).is_some(),
        };
        let replica = &mut self.replicas[at];
        replica.position = replica.position.max(service.serving.stream_lag().position);
        drop(service);
        if !is_done {
            self.crash(at).await;
        }
        self.check(at);
    }

    async fn write(&mut self, service: &SearchService, crash: Option<u64>) -> bool {
        let (id, number) = (format!("w{}", self.dice.below(IDS)), self.log.len());
        let state = (self.dice.below(3) > 0).then(|| format!("title {number}"));
        let mutation = state.as_ref().map_or(Mutation::Delete(id.clone()), |title| item(&id, title));
        let follow = async {
            loop {
                service.serving.follow_stream().await.unwrap();
            }
        };
        let written = async {
            tokio::select! {
                written = service.serving.apply(vec![mutation], None) => written.unwrap().is_some(),
                () = follow => unreachable!("it never ends"),
            }
        };
        let is_done = until_crash(written, crash).await.is_some();
        let states = self.items.entry(id).or_insert_with(|| vec![None]);
        if is_done {
            states.clear();
        }
        states.push(state);
        is_done
    }

    async fn promote(&mut self, service: &SearchService, crash: Option<u64>) -> bool {
        self.num_versions += 1;
        let name = format!("v{}", self.num_versions);
        let path = golden(if self.num_versions.is_multiple_of(2) { "st_cls" } else { "st_max" }).display().to_string();
        let fingerprint = service.serving.fingerprint(&path).unwrap();
        let ledger = service.registry.ledger().await.unwrap();
        let new = NewVersion { version: name.clone(), path, fingerprint, parent: None, metrics: Value::Null };
        ledger.add_version(&new).await.unwrap();
        let version = ledger.version(&name).await.unwrap().unwrap();
        let permit = service.registry.try_start_promotion().unwrap();
        let promoted = until_crash(service.registry.promote(&service.serving, &version, permit), crash).await;
        promoted.map(Result::unwrap).is_some()
    }

    async fn roll_back(&mut self, service: &SearchService, crash: Option<u64>) -> bool {
        let ledger = service.registry.ledger().await.unwrap();
        let [served, _] = &ledger.served_versions(2).await.unwrap()[..] else { return true };
        let rolled = until_crash(service.registry.roll_back(&service.serving, &served.version), crash).await;
        // the ledger tells whether a crash came before or after it
        if ledger.served().await.unwrap().unwrap().version != served.version {
            self.rolled_back.insert(served.version.clone());
        }
        rolled.map(Result::unwrap).is_some()
    }

    async fn crash(&mut self, at: usize) {
        let config = self.replicas[at].config.clone();
        // the old service goes first: two cannot have one state folder
        let other = self.replicas[1 - at].service.clone();
        self.replicas[at].service = other;
        self.replicas[at].service = open(&config).await;
    }

    /// Invariants 1, 3 and 4, of one replica at any time.
    fn check(&self, at: usize) {
        let Replica { service, position, .. } = &self.replicas[at];
        let (lag, served) = (service.serving.stream_lag(), service.serving.served());
        assert!(
            lag.position >= *position,
            "replica {at} went back from {position} to {}: {:#?}",
            lag.position,
            self.log
        );
        let record = served.record();
        assert!(record.generation.starts_with(&record.version), "{record:?}");
    }

    /// Lets both replicas come to rest, and checks what they have.
    async fn end(mut self) {
        let ledger = self.replicas[0].service.registry.ledger().await.unwrap().clone();
        let (last, live) = (ledger.last_change().await.unwrap(), ledger.served().await.unwrap().unwrap().version);
        assert!(!self.rolled_back.contains(&live), "{live} was rolled back and is live: {:#?}", self.log);
        let mut found: Vec<BTreeMap<String, String>> = Vec::new();
        for at in 0..2 {
            let service = self.replicas[at].service.clone();
            let rest = async {
                while service.serving.stream_lag().position < last {
                    drop(timeout(NEWS, service.serving.follow_stream()).await);
                }
                service.registry.follow(&service.serving).await.unwrap();
            };
            timeout(LONG, rest).await.unwrap_or_else(|_| panic!("replica {at} does not come to rest: {:#?}", self.log));
            let served = service.serving.served();
            let version = ledger.version(&live).await.unwrap().unwrap();
            assert_eq!(
                (&served.record().version, &served.record().model),
                (&live, &version.fingerprint),
                "{:#?}",
                self.log
            );
            service.serving.catch_up().await.unwrap();
            let page = served.index().page(None, 100).await.unwrap();
            found.push(page.items.into_iter().map(|(item, _)| (item.id, item.title)).collect());
            self.check(at);
        }
        assert_eq!(found[0], found[1], "{:#?}", self.log);
        for (id, states) in std::mem::take(&mut self.items) {
            let title = found[0].get(&id).cloned();
            assert!(states.contains(&title), "{id} is {title:?}, not one of {states:?}: {:#?}", self.log);
        }
        assert_eq!(found[0].keys().filter(|id| id.starts_with('i')).count(), 5, "{:#?}", self.log);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_schedule_keeps_the_invariants() {
    let number = |variable: &str| std::env::var(variable).ok().and_then(|text| text.parse::<u64>().ok());
    let seeds = match number("SOUK_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SOUK_SCHEDULES").unwrap_or(60),
    };
    for seed in seeds {
        let run = async move {
            // synced files cost nothing there
            let home = tempfile::tempdir_in("/dev/shm").unwrap();
            let mut schedule = Schedule::new(home.path(), seed).await;
            for _ in 0..STEPS {
                schedule.step().await;
            }
            schedule.end().await;
        };
        let ended =
            timeout(LONG, tokio::spawn(run)).await.unwrap_or_else(|_| panic!("SOUK_SEED={seed}: it does not end"));
        ended.unwrap_or_else(|error| panic!("SOUK_SEED={seed}: {error}"));
    }
}
