//! A remote judge with its stores: verdicts cached in a real Redis, audits in a real ledger.

use std::sync::Arc;

use serde_json::json;
use souk_cache::{Cache, RedisCache};
use souk_io::address::Address;
use souk_io::audit::AuditLog;
use souk_io::beir::DataFolder;
use souk_io::domain::Level;
use souk_reward::{Judge, Question, RewardSource, Verdict, open};
use souk_store::{AuditMark, Ledger};

use souk_testing::databases::{ledger, runtime, server_url, unique};
use souk_testing::fake_judge::{FakeJudge, JudgeReply};

/// Gives every item L3, and no level to one called `nothing`.
fn server() -> FakeJudge {
    FakeJudge::start(|_, seen| {
        let known = |item: &serde_json::Value| item["text"] != "nothing";
        let items = seen.body["items"].as_array().unwrap();
        let scores: Vec<_> = items.iter().map(|item| known(item).then_some(0.75)).collect();
        JudgeReply::Json(json!({ "model": "cross", "scores": scores, "levels": vec![3; items.len()] }))
    })
}

fn judge(url: &str, cache: Option<Arc<dyn Cache>>, ledger: Option<Arc<dyn AuditLog>>) -> Arc<dyn RewardSource> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("corpus.jsonl"), "").unwrap();
    let judge = json!({ "type": "souk", "url": url, "model": "cross", "limits": { "retries": 0 } });
    let judge: Judge = serde_json::from_value(judge).unwrap();
    let ledger = ledger.map(|ledger| (ledger, 1.0));
    open(&judge, &DataFolder::open(folder.path()).unwrap(), |_| unreachable!(), cache, ledger).unwrap()
}

fn question(item: &str) -> Question<'_> {
    Question { query_id: "q", query: "oak desk", item_id: item, item }
}

const GOOD: Option<Verdict> = Some(Verdict { score: 0.75, level: Level::L3 });

#[test]
fn redis_keeps_verdicts_for_the_next_process() {
    let name = "redis_keeps_verdicts_for_the_next_process";
    let Some(url) = server_url("REDIS_URL", name, |url| url.starts_with("redis")) else { return };
    let prefix = unique("souk-test") + ":";
    // each opens its own, like separate processes
    let cache = || Some(Arc::new(RedisCache::open(&Address::new(&url), &prefix, None).unwrap()) as Arc<dyn Cache>);
    let server = server();
    let asked = [question("a"), question("nothing"), question("b")];
    for num_requests in [1, 2, 3] {
        let source = judge(&server.url(), cache(), None);
        assert_eq!(source.judge(&asked).unwrap(), [GOOD, None, GOOD]);
        assert_eq!(server.seen().len(), num_requests);
        let num_items = server.seen().last().unwrap().body["items"].as_array().unwrap().len();
        assert_eq!(num_items, if num_requests == 1 { 3 } else { 1 }, "only what is missing is asked again");
    }
    let mut connection = redis::Client::open(url.as_str()).unwrap().get_connection().unwrap();
    let keys: Vec<Vec<u8>> = redis::cmd("KEYS").arg(format!("{prefix}*")).query(&mut connection).unwrap();
    assert_eq!(keys.len(), 2);
    for key in keys {
        let _: () = redis::cmd("SET").arg(&key).arg("rubbish").query(&mut connection).unwrap();
        assert_eq!(judge(&server.url(), cache(), None).judge(&asked).unwrap(), [GOOD, None, GOOD]);
        let _: () = redis::cmd("DEL").arg(key).query(&mut connection).unwrap();
    }
}

#[test]
fn a_redis_that_is_away_is_no_loss_but_of_time() {
    let door = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = Address::new(format!("redis://{}", door.local_addr().unwrap()));
    drop(door);
    let cache = Arc::new(RedisCache::open(&url, "", None).unwrap());
    let server = server();
    let source = judge(&server.url(), Some(cache), None);
    for num_requests in [1, 2] {
        assert_eq!(source.judge(&[question("a")]).unwrap(), [GOOD]);
        assert_eq!(server.seen().len(), num_requests);
    }
}

#[test]
fn the_ledger_tells_what_was_judged_and_what_was_missing() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = runtime();
    let url = format!("sqlite:{}", folder.path().join("shop.db").display());
    let ledger = Arc::new(runtime.block_on(ledger(&url)));
    let server = server();
    let source = judge(&server.url(), None, Some(ledger.clone()));
    let id = format!("souk cross at {}/score", server.url());
    assert_eq!(source.id(), id);
    source.judge(&[question("a"), question("nothing")]).unwrap();
    drop(server);
    assert_eq!(source.judge(&[question("b")]).unwrap(), [None], "an outage is no verdict");
    let trouble = source.trouble().unwrap();
    assert!(trouble.contains("/score: "), "{trouble}");
    drop(source);
    let audits = runtime.block_on(ledger.page_audits(AuditMark::at(0), i64::MAX, 10)).unwrap();
    let seen: Vec<_> = audits.iter().map(|(_, one)| (one.item.as_str(), one.score, one.level)).collect();
    assert_eq!(seen, [("a", Some(0.75), Some(Level::L3)), ("nothing", None, None), ("b", None, None)]);
    assert!(audits.iter().all(|(_, one)| one.source == id && one.query == "oak desk"));
}
