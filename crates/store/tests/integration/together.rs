//! Concurrent writers on one database, through several connections: nothing is lost, nothing counts twice.

use std::collections::HashMap;
use std::sync::Arc;

use souk_io::address::Address;
use souk_io::catalogue_stream::Mutation;
use souk_store::{GenerationState, Ledger, MAX_PAGE, NewGeneration, NewVersion, Offset, SqlLedger, VoteVerdict};
use tokio::task::JoinSet;

use crate::ledgers::{put, vote};
use souk_testing::databases::ledger;

const WRITERS: usize = 12;
const ROUNDS: usize = 20;
const NUM_ITEMS: usize = 40;

pub async fn many_migrate(url: String) {
    let mut running = JoinSet::new();
    for _ in 0..6 {
        let address = Address::new(&url);
        running.spawn(async move { SqlLedger::migrate(&address).await.unwrap().len() });
    }
    let applied: usize = running.join_all().await.into_iter().sum();
    let there = std::fs::read_dir(souk_testing::repository().join("migrations")).unwrap().count();
    assert_eq!(applied, there);
    SqlLedger::open(&Address::new(&url)).await.unwrap();
}

pub async fn many_writers(url: String) {
    // two ledgers, like two processes
    let ledgers = [Arc::new(ledger(&url).await), Arc::new(ledger(&url).await)];
    let add = async |version: String| {
        let new = NewVersion {
            version: version.clone(),
            path: String::new(),
            fingerprint: String::new(),
            parent: None,
            metrics: serde_json::Value::Null,
        };
        ledgers[0].add_version(&new).await.unwrap();
        let (generation, manifest) = (format!("{version}-0"), serde_json::Value::Null);
        let new = NewGeneration { generation, version, path: String::new(), manifest };
        ledgers[0].add_generation(&new).await.unwrap();
    };
    let mut running = JoinSet::new();
    for writer in 0..WRITERS {
        add(format!("v{writer}")).await;
    }
    for writer in 0..WRITERS {
        running.spawn(write(ledgers[writer % 2].clone(), writer));
    }
    let reader = tokio::spawn(read_votes(ledgers[0].clone()));
    let replica = tokio::spawn(follow_changes(ledgers[1].clone()));
    running.join_all().await;
    assert_eq!(reader.await.unwrap(), WRITERS * ROUNDS, "who reads along misses none");
    let latest = ledgers[0].page_changes(0, MAX_PAGE).await.unwrap();
    let latest: HashMap<String, Mutation> =
        latest.into_iter().map(|(_, change)| (change.id().to_owned(), change)).collect();
    assert_eq!(replica.await.unwrap(), latest, "a replica that follows ends where a new one does");

    let ledger = &ledgers[0];
    let pairs = ledger.summarise_votes().await.unwrap();
    assert_eq!((pairs.len(), pairs[0].num_good), (1, (WRITERS * ROUNDS) as i64));
    let offsets = ledger.offsets("clicks").await.unwrap();
    let moved = (WRITERS * ROUNDS) as i64;
    assert_eq!(offsets, [Offset { lane: "0".into(), position: moved.to_string(), revision: moved }]);
    let served = ledger.served().await.unwrap().unwrap();
    let mut being_served = Vec::new();
    for version in ledger.page_versions(None, 100).await.unwrap() {
        let generations = ledger.page_generations(&version.version, None, 9).await.unwrap();
        being_served.extend(generations.into_iter().filter(|one| one.state == GenerationState::Served));
    }
    assert_eq!(being_served.len(), 1);
    assert_eq!(being_served[0].generation, served.generation);
}

async fn write(ledger: Arc<SqlLedger>, writer: usize) {
    ledger.promote(&format!("v{writer}"), &format!("v{writer}-0")).await.unwrap();
    for round in 0..ROUNDS {
        assert_eq!(ledger.append_votes(&[vote(&format!("{writer}/{round}"), VoteVerdict::Good)]).await.unwrap(), 1);
        // the same items, in another order for each
        let mut items: Vec<_> =
            (0..NUM_ITEMS).map(|n| put(&format!("item-{n}"), &format!("{writer}/{round}"))).collect();
        items.rotate_left((writer * 7 + round) % NUM_ITEMS);
        ledger.append_changes(&items).await.unwrap();
        loop {
            let last = ledger.offsets("clicks").await.unwrap().pop();
            let (position, revision) =
                last.map_or((0, 0), |last| (last.position.parse::<i64>().unwrap(), last.revision));
            let next = Offset { lane: "0".into(), position: (position + 1).to_string(), revision };
            if ledger.move_offsets("clicks", &[next]).await.unwrap() {
                break;
            }
        }
    }
}

/// Follows the votes by number while they are being cast.
async fn read_votes(ledger: Arc<SqlLedger>) -> usize {
    let (mut last, mut num_seen) = (0, 0);
    while num_seen < WRITERS * ROUNDS {
        let page = ledger.page_votes(last, 7).await.unwrap();
        last = page.last().map_or(last, |(number, _)| *number);
        num_seen += page.len();
        tokio::task::yield_now().await;
    }
    num_seen
}

/// Applies the catalogue changes while they are being written, as a replica does.
async fn follow_changes(ledger: Arc<SqlLedger>) -> HashMap<String, Mutation> {
    let (mut items, mut reached) = (HashMap::new(), 0);
    while reached < (WRITERS * ROUNDS * NUM_ITEMS) as u64 {
        for (position, change) in ledger.page_changes(reached, 7).await.unwrap() {
            assert!(position > reached);
            reached = position;
            items.insert(change.id().to_owned(), change);
        }
        tokio::task::yield_now().await;
    }
    items
}
