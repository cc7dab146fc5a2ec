//! Order, retries, timeouts and the breaker, on real sockets.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{chance, requests};
use crate::tests::question;
use crate::wire::tests::{judge, scored, souk, try_judge};
use crate::{Question, RewardSource};
use souk_testing::fake_judge::{FakeJudge, JudgeReply, ReceivedRequest};

fn source(server: &FakeJudge, limits: Value) -> Arc<dyn RewardSource> {
    try_judge(souk(server), limits).unwrap()
}

/// Grades each item with the level at the start of its text.
fn graded(seen: &ReceivedRequest) -> Value {
    let items = seen.body["items"].as_array().unwrap();
    let level = |item: &Value| item["text"].as_str().unwrap()[..1].parse().ok();
    scored(&items.iter().map(level).collect::<Vec<_>>())
}

/// `num` different queries.
fn queries(num: usize) -> Vec<String> {
    (0..num).map(|n| format!("query {n}")).collect()
}

fn ask(queries: &[String]) -> Vec<Question<'_>> {
    queries.iter().map(|query| question(query, "4")).collect()
}

fn server_error() -> JudgeReply {
    JudgeReply::Status(503, "", "overloaded".into())
}

#[test]
fn questions_are_asked_by_query_and_batch() {
    let asked: Vec<Question<'_>> = ["a", "b", "a", "a", "b", "a"].map(|query| question(query, "")).into();
    assert_eq!(requests(&asked, 3), [vec![0, 2, 3], vec![5], vec![1, 4]]);
    assert!(requests(&[], 3).is_empty());
}

#[test]
fn jitter_is_spread_over_zero_to_one() {
    let drawn: Vec<f64> = (0..100).map(|_| chance()).collect();
    assert!(drawn.iter().all(|chance| (0.0..1.0).contains(chance)));
    assert!(drawn.iter().any(|chance| *chance < 0.5) && drawn.iter().any(|chance| *chance > 0.5));
}

#[test]
fn concurrent_requests_keep_order_and_limit() {
    let server = FakeJudge::start(|number, seen| {
        assert!(seen.body["items"].as_array().unwrap().len() <= 4);
        JudgeReply::Late(Duration::from_millis([8, 1, 5, 0, 3][number % 5]), graded(seen))
    });
    let source = source(&server, json!({ "concurrency": 3 }));
    let texts: Vec<(String, String)> =
        (0..200).map(|n| (format!("q{}", n * n % 7), format!("{} {n}", n * 31 % 6))).collect();
    let asked: Vec<Question<'_>> = texts.iter().map(|(query, item)| question(query, item)).collect();
    let verdicts = source.judge(&asked).unwrap();
    for ((_, item), verdict) in texts.iter().zip(&verdicts) {
        let wanted = item[..1].parse().ok().filter(|level| (1..=4).contains(level));
        assert_eq!(verdict.map(|verdict| verdict.level.number()), wanted, "{item}");
    }
    assert!((2..=3).contains(&server.max_at_once()), "{}", server.max_at_once());
    let num_items: usize = server.seen().iter().map(|seen| seen.body["items"].as_array().unwrap().len()).sum();
    assert_eq!(num_items, 200, "each question is sent once");
}

#[test]
fn only_transient_failures_are_retried() {
    type Make = fn() -> JudgeReply;
    let again: [Make; 8] = [
        || JudgeReply::Status(500, "", String::new()),
        || JudgeReply::Status(503, "", "x".into()),
        || JudgeReply::Status(408, "", String::new()),
        || JudgeReply::Status(425, "", String::new()),
        || JudgeReply::Status(429, "retry-after: 0\r\n", String::new()),
        || JudgeReply::Status(429, "retry-after: never\r\n", String::new()),
        || JudgeReply::Close,
        || JudgeReply::Cut("{\"model\": \"cross\"".into()),
    ];
    let once: [Make; 5] = [
        || JudgeReply::Status(400, "", "{\"error\": {\"message\": \"too hot\", \"param\": \"items\"}}".into()),
        || JudgeReply::Status(413, "", String::new()),
        || JudgeReply::Status(422, "", "{\"error\": \"x\"}".into()),
        || JudgeReply::Status(200, "", "garbage".into()),
        || JudgeReply::Json(json!({ "model": "cross", "scores": [0.5, 0.5], "levels": [1] })),
    ];
    let cases = again.into_iter().map(|make| (make, 3)).chain(once.into_iter().map(|make| (make, 1)));
    for (number, (make, num_requests)) in cases.enumerate() {
        let server = FakeJudge::start(move |_, _| make());
        let source = source(&server, json!({ "retries": 2 }));
        assert_eq!(source.judge(&[question("q", "4")]).unwrap(), [None], "case {number}");
        assert_eq!(server.seen().len(), num_requests, "case {number}");
        let trouble = source.trouble().unwrap();
        assert!(trouble.starts_with(&server.url()) && trouble.contains("; 1 request failed since "), "{trouble}");
    }
}

/// A judge that works and gives a question no verdict, twice, refuses it; an outage is no refusal.
#[test]
fn what_is_refused_twice_is_not_worth_asking_again() {
    let server = FakeJudge::start(|_, seen| match seen.body["items"][0]["text"].as_str() {
        Some("x") => JudgeReply::Status(422, "", "{\"error\": \"not an item\"}".into()),
        Some("away") => server_error(),
        _ => JudgeReply::Json(graded(seen)),
    });
    let source = source(&server, json!({ "retries": 0, "breaker_failures": 100 }));
    let ask = |item| (source.judge(&[question("q", item)]).unwrap()[0], source.refusal(&question("q", item)));
    assert_eq!(ask("x"), (None, None));
    let (verdict, refusal) = ask("x");
    assert!(verdict.is_none() && refusal.as_ref().is_some_and(|why| why.contains("422")), "{refusal:?}");
    assert_eq!((source.refusal(&question("r", "x")), ask("4").1), (None, None));
    // answered without a score for this item
    assert_eq!((ask("?").1, ask("?").1.is_some()), (None, true));
    assert_eq!([ask("away"), ask("away"), ask("away")], [(None, None), (None, None), (None, None)]);
}

#[test]
fn a_successful_retry_clears_the_trouble() {
    let server =
        FakeJudge::start(|number, seen| if number < 2 { JudgeReply::Close } else { JudgeReply::Json(graded(seen)) });
    let source = source(&server, json!({ "retries": 2 }));
    assert!(source.judge(&[question("q", "4")]).unwrap()[0].is_some());
    assert_eq!((server.seen().len(), source.trouble()), (3, None));
}

#[test]
fn retry_after_is_honoured() {
    let busy = |wait| JudgeReply::Status(429, wait, String::new());
    let server = FakeJudge::start(move |number, seen| match number {
        0 => busy("retry-after: 0.2\r\n"),
        1 => JudgeReply::Json(graded(seen)),
        _ => busy("retry-after: 300\r\n"),
    });
    let source = source(&server, json!({ "retries": 5 }));
    let begun = Instant::now();
    assert!(source.judge(&[question("q", "4")]).unwrap()[0].is_some());
    assert!(begun.elapsed() >= Duration::from_millis(200));
    assert_eq!(source.judge(&[question("q", "4")]).unwrap(), [None]);
    assert_eq!(server.seen().len(), 3, "no wait beyond the deadline");
    assert!(begun.elapsed() < Duration::from_secs(30));
}

#[test]
fn an_unreachable_judge_is_reported_without_an_error() {
    let door = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", door.local_addr().unwrap());
    drop(door);
    let source = judge(json!({ "type": "souk", "url": url, "model": "cross" }));
    assert_eq!(source.judge(&ask(&queries(3))).unwrap(), [None; 3]);
    let trouble = source.trouble().unwrap();
    assert!(trouble.starts_with(&format!("{url}/score: ")) && trouble.contains("refused"), "{trouble}");
    assert!(trouble.contains("; 3 requests failed since "), "{trouble}");
}

#[test]
fn a_call_ends_at_its_deadline_even_if_requests_hang() {
    let server = FakeJudge::start(|number, seen| match number {
        0 => JudgeReply::Json(graded(seen)),
        _ if number % 2 == 0 => JudgeReply::Hang,
        _ => JudgeReply::Drip,
    });
    let limits = json!({ "timeout_seconds": 0.2, "deadline_seconds": 0.5, "retries": 50, "breaker_failures": 1000 });
    let source = source(&server, limits);
    let queries = queries(100);
    source.judge(&ask(&queries[..1])).unwrap();
    let begun = Instant::now();
    assert_eq!(source.judge(&ask(&queries)).unwrap(), [None; 100]);
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    let trouble = source.trouble().unwrap();
    assert!(trouble.contains("did not answer within ") && trouble.contains("requests not sent"), "{trouble}");
}

#[test]
fn the_breaker_opens_and_closes_again() {
    let is_well = Arc::new(AtomicBool::new(false));
    let told = is_well.clone();
    let server =
        FakeJudge::start(
            move |_, seen| if told.load(Ordering::SeqCst) { JudgeReply::Json(graded(seen)) } else { server_error() },
        );
    let limits = json!({ "concurrency": 1, "retries": 1, "breaker_failures": 2, "breaker_seconds": 0.3 });
    let source = source(&server, limits);
    let queries = queries(9);
    let begun = Instant::now();
    assert_eq!(source.judge(&ask(&queries)).unwrap(), [None; 9]);
    assert_eq!(server.seen().len(), 4, "two requests, each made twice");
    assert_eq!(source.judge(&ask(&queries)).unwrap(), [None; 9]);
    if begun.elapsed() < Duration::from_millis(300) {
        assert_eq!(server.seen().len(), 4, "the breaker is open");
    }
    let trouble = source.trouble().unwrap();
    assert!(trouble.contains("answered 503, `overloaded`; ") && trouble.contains("not sent"), "{trouble}");
    assert!(souk_io::telemetry::render().contains("souk_reward_breaker_open "));

    thread::sleep(Duration::from_millis(310));
    let before = server.seen().len();
    assert_eq!(source.judge(&ask(&queries)).unwrap(), [None; 9]);
    assert!(server.seen().len() > before, "one probe is sent");

    is_well.store(true, Ordering::SeqCst);
    thread::sleep(Duration::from_millis(310));
    assert!(source.judge(&ask(&queries)).unwrap().iter().all(Option::is_some));
    assert_eq!(source.trouble(), None);
}

#[test]
fn calls_during_a_probe_wait_for_its_outcome() {
    let server = FakeJudge::start(|number, seen| match number {
        0 => server_error(),
        _ => JudgeReply::Late(Duration::from_millis(30), graded(seen)),
    });
    let source = source(&server, json!({ "concurrency": 4, "breaker_failures": 1, "breaker_seconds": 0.05 }));
    let queries = queries(12);
    assert_eq!(source.judge(&ask(&queries[..1])).unwrap(), [None]);
    thread::sleep(Duration::from_millis(60));
    assert!(source.judge(&ask(&queries)).unwrap().iter().all(Option::is_some));
}
