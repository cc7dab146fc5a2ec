//! Rules of search logs, each on a few rows: searches, positions, events, times, and what is wrong in them.

use serde_json::{Value, json};

use crate::import::tests::{folder, gzipped, import_error, import_ok, items, json_lines, reasons};
use crate::import::{Format, Options, REJECTED_FILE, ShopFiles, Summary, import_shop};

fn import(log: &str) -> (Vec<Value>, Summary) {
    let (home, summary) = import_ok(Format::Log, &Options::default(), &[("log.csv", log.as_bytes())], "log.csv");
    (json_lines(&home, "logs.ndjson"), summary)
}

fn with_events(events: &[&str]) -> Options {
    Options { events: events.iter().map(|event| event.parse().unwrap()).collect(), ..Options::default() }
}

/// Action, item, position and time of day of each event, and the query and hits of each search.
fn short(lines: &[Value]) -> Vec<String> {
    let clock = |line: &Value| line["timestamp"].as_str().unwrap()[11..19].to_owned();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let of = |line: &Value| match line.get("action_name") {
        None => format!("{} {} {}", clock(line), text(&line["user_query"]), line["query_response_hit_ids"]),
        Some(action) => {
            let attributes = &line["event_attributes"];
            let position = attributes["position"].get("ordinal").map_or(String::new(), |ordinal| format!(" {ordinal}"));
            format!("{} {} {}{position}", clock(line), text(action), text(&attributes["object"]["object_id"]))
        }
    };
    lines.iter().map(of).collect()
}

#[test]
fn a_search_comes_first_with_its_hits_then_its_events() {
    let (lines, summary) = import(
        "timestamp,session,search_term,product_id,rank,event\n\
         2025-07-31 22:00:20,s1,oak desk,9,2,impression\n\
         2025-07-31 22:00:20,s1,oak desk,7,1,impression\n\
         2025-07-31 22:02:00,s1,oak desk,9,,purchase\n\
         2025-07-31 22:01:00,s1,oak desk,9,2,click\n\
         2025-07-31 22:00:10,s2,lamp,5,1,impression\n",
    );
    let expected = [
        "22:00:10 lamp [\"5\"]",
        "22:00:10 impression 5 1",
        "22:00:20 oak desk [\"7\",\"9\"]",
        "22:00:20 impression 7 1",
        "22:00:20 impression 9 2",
        "22:01:00 click 9 2",
        "22:02:00 purchase 9",
    ];
    assert_eq!(short(&lines), expected);
    let id = &lines[2]["query_id"];
    assert!(lines[3..].iter().all(|line| line["query_id"] == *id && line["client_id"] == "s1"));
    assert!(lines[0]["query_id"] != *id);
    assert_eq!((summary.rows_read, summary.searches, summary.counts.log_lines), (5, 2, 7));
    assert_eq!(summary.events.into_iter().collect::<Vec<_>>(), [("click", 1), ("impression", 3), ("purchase", 1)]);
    assert_eq!((summary.counts.queries, summary.counts.items), (2, 3));
    for line in &lines {
        assert!(souk_io::ubi::Record::parse(line.to_string().as_bytes()).is_ok(), "{line}");
    }
}

#[test]
fn a_gap_of_more_than_30_minutes_another_query_or_session_starts_a_search() {
    let (lines, summary) = import(
        "time,session,query,item,event\n\
         2025-07-31 10:00:00,s1,desk,1,click\n\
         2025-07-31 10:30:00,s1,desk,2,click\n\
         2025-07-31 11:00:01,s1,desk,3,click\n\
         2025-07-31 10:00:00,s1,lamp,1,click\n\
         2025-07-31 10:00:00,s2,desk,1,click\n",
    );
    assert_eq!(summary.searches, 4);
    let searches: Vec<String> = short(&lines).into_iter().filter(|line| line.ends_with("[]")).collect();
    assert_eq!(searches, ["10:00:00 desk []", "10:00:00 lamp []", "10:00:00 desk []", "11:00:01 desk []"]);
    let ids: std::collections::HashSet<&str> = lines.iter().map(|line| line["query_id"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), 4);
    let (_, summary) = import(
        "user,query,sku,click_time,query_time\n\
         u,desk,1,2025-07-31 10:05,2025-07-31 10:00\nu,desk,2,2025-07-31 11:05,2025-07-31 10:00\n\
         u,desk,3,2025-07-31 11:06,2025-07-31 11:01\n",
    );
    assert_eq!(summary.searches, 2, "the log says when each search was");
}

#[test]
fn positions_are_written_from_1() {
    let log = |positions: &[&str]| {
        let rows: String = positions
            .iter()
            .enumerate()
            .map(|(at, position)| format!("2025-07-31 10:00,s,desk,{at},{position},impression\n"))
            .collect();
        let (lines, summary) = import(&format!("time,session,query,item,position,event\n{rows}"));
        let shown: Vec<String> = short(&lines)[1..].iter().map(|line| line[20..].to_owned()).collect();
        (shown, summary)
    };
    assert_eq!(log(&["0", "1", "2.0"]).0, ["0 1", "1 2", "2 3"]);
    assert_eq!(log(&["1", "2", "3"]).0, ["0 1", "1 2", "2 3"]);
    let (shown, summary) = log(&["1", "1", "1", "2", "0"]);
    assert_eq!(shown, ["0 1", "1 1", "2 1", "3 2", "4"], "a rare 0 is no position");
    assert_eq!(summary.noted["positions of 0 in a log that counts from 1, left out"], 1);
    let (shown, summary) = log(&["1", "top", ""]);
    assert_eq!(shown, ["0 1", "1", "2"]);
    assert_eq!(summary.noted["positions that are not whole numbers, left out"], 1);
}

#[test]
fn unknown_events_are_counted_by_name_and_never_guessed() {
    let log = "time,session,query,item,event\n2025-07-31 10:00,s,desk,1,pdp\n2025-07-31 10:00,s,desk,1,ATC\n\
        2025-07-31 10:00,s,desk,1,wishlist\n2025-07-31 10:00,s,desk,1,remove_from_cart\n2025-07-31 10:00,s,desk,,search\n\
        2025-07-31 10:00,s,,1,click\n2025-07-31 10:00,s,desk,,click\n";
    let (lines, summary) = import(log);
    assert_eq!(short(&lines), ["10:00:00 desk []", "10:00:00 click 1", "10:00:00 add_to_cart 1"]);
    let skipped: Vec<(&str, u64)> = summary.left_out.iter().map(|(kind, count)| (kind.as_str(), *count)).collect();
    assert_eq!(skipped, [("events `remove_from_cart`", 1), ("events `wishlist`", 1), ("rows without a query", 1)]);
    assert_eq!((reasons(&summary), summary.rows_read), (vec![("missing item", 1)], 7));
    let mapped = with_events(&["wishlist=add_to_cart", "pdp=impression"]);
    let (home, _) = import_ok(Format::Log, &mapped, &[("log.csv", log.as_bytes())], "log.csv");
    let lines = short(&json_lines(&home, "logs.ndjson"));
    assert_eq!(lines[1..], ["10:00:00 impression 1", "10:00:00 add_to_cart 1", "10:00:00 add_to_cart 1"]);
    let foreign = "query,item,event\ndesk,1,klick\ndesk,1,klick\ndesk,2,kauf\n";
    let error = import_error(Format::Log, &Options::default(), &[("log.csv", foreign.as_bytes())], "log.csv");
    assert!(
        error.contains("`kauf` (1), `klick` (2). Say what they mean, for example with --events 'kauf=click'"),
        "{error}"
    );
}

#[test]
fn views_without_clicks_get_a_warning() {
    let (_, summary) =
        import("time,session,query,item,event\n2025-07-31 10:00,s,desk,1,view\n2025-07-31 10:00,s,desk,1,cart\n");
    assert!(summary.warnings[0].contains("use --events 'view=click'"), "{:?}", summary.warnings);
    let (_, summary) =
        import("time,session,query,item,event\n2025-07-31 10:00,s,desk,1,view\n2025-07-31 10:00,s,desk,1,click\n");
    assert!(summary.warnings.is_empty());
}

#[test]
fn clicks_without_events_times_or_sessions() {
    let (lines, summary) = import("query,item\ndesk,1\nlamp,2\ndesk,3\n");
    assert_eq!(
        short(&lines),
        ["00:00:00 desk []", "00:00:00 click 1", "00:00:00 click 3", "00:00:00 lamp []", "00:00:00 click 2"]
    );
    assert_eq!(summary.searches, 2);
    let (lines, summary) = import("user,query,item,clicked,purchased\nu,desk,1,0,0\nu,desk,2,1,1\n");
    let expected = ["desk [\"1\",\"2\"]", "impression 1", "impression 2", "click 2", "purchase 2"];
    let shown: Vec<String> = short(&lines).iter().map(|line| line[9..].to_owned()).collect();
    assert_eq!(shown, expected);
    assert_eq!(summary.rows_read, 2);
}

#[test]
fn times_in_other_formats() {
    for (times, expected) in [
        (["1753999220", "1753999221"], ["22:00:20", "22:00:21"]),
        (["1753999220000", "1753999221000"], ["22:00:20", "22:00:21"]),
        (["2025-08-01T00:00:20+02:00", "2025-07-31T22:00:21Z"], ["22:00:20", "22:00:21"]),
        (["07/31/2025 22:00", "07/01/2025 10:00"], ["10:00:00", "22:00:00"]),
        (["31/07/2025 22:00", "01/07/2025 10:00"], ["10:00:00", "22:00:00"]),
    ] {
        let (lines, _) = import(&format!("time,query,item\n{},tv,1\n{},radio,2\n", times[0], times[1]));
        let found: Vec<String> =
            short(&lines).into_iter().filter(|line| line.ends_with("[]")).map(|line| line[..8].to_owned()).collect();
        assert_eq!(found, expected, "{times:?}");
    }
}

#[test]
fn a_late_day_above_12_decides_all_dates() {
    let mut rows = String::from("time,query,item\n");
    (0..2500).for_each(|at| rows += &format!("03/04/2025 10:00,tv {at},{at}\n"));
    rows += "13/04/2025 10:00,tv,1\n";
    let (lines, _) = import(&rows);
    assert_eq!(lines[0]["timestamp"], "2025-04-03T10:00:00.000Z");
    let month = rows.replace("13/04/2025", "04/13/2025");
    assert_eq!(import(&month).0[0]["timestamp"], "2025-03-04T10:00:00.000Z");
}

#[test]
fn unreadable_times_are_rejected_and_an_error_if_they_are_most() {
    let good = "2025-07-31 10:00,tv,1\n".repeat(3);
    let (lines, summary) = import(&format!("time,query,item\n{good}soon,tv,2\n,tv,3\n"));
    assert_eq!(lines.len(), 4);
    assert_eq!(reasons(&summary), [("missing time", 1), ("unreadable time", 1)]);
    // most of them after the sample
    let rows = format!("time,query,item\n{}{}", "2025-07-31 10:00,tv,1\n".repeat(2500), "31 Juli,tv,2\n".repeat(2600));
    let error = import_error(Format::Log, &Options::default(), &[("log.csv", rows.as_bytes())], "log.csv");
    assert!(error.contains("its times cannot be read, such as 31 Juli"), "{error}");
}

#[test]
fn rejected_rows_name_their_line() {
    let log = "time,query,item,event\n2025-07-31 10:00,tv,1,click\n2025-07-31 10:00,tv,,click\n";
    let (home, _) =
        import_ok(Format::Log, &Options::default(), &[("log.csv.gz", &gzipped(log.as_bytes()))], "log.csv.gz");
    let expected =
        json!({"file": "log.csv.gz", "line": 3, "reason": "missing item", "start": "2025-07-31 10:00,tv,,click"});
    assert_eq!(json_lines(&home, REJECTED_FILE), [expected]);
}

/// Imports a product file and a log to one data folder.
fn shop(products: &str, log: &str) -> (tempfile::TempDir, Summary) {
    let home = folder(&[("items.csv", products.as_bytes()), ("log.csv", log.as_bytes())]);
    let files = |name: &str| ShopFiles { from: home.path().join("in").join(name), options: Options::default() };
    let out = home.path().join("out");
    let summary = import_shop(&files("items.csv"), Some(&files("log.csv")), &out, &mut |_| ()).unwrap();
    (home, summary)
}

#[test]
fn a_shop_is_its_items_and_its_log() {
    let (home, summary) = shop("sku,name\n7,Oak desk\n8,Red lamp\n", "query,sku\ndesk,7\ndesk,9\nlamp,8.0\nrug,7\n");
    assert_eq!(items(&home).len(), 2);
    assert_eq!(json_lines(&home, "queries.jsonl").len(), 3);
    assert_eq!((summary.rows_read, summary.events["click"]), (6, 4), "unknown items stay in the log");
    assert_eq!(summary.noted["events on items missing from the catalogue"], 1);
    assert_eq!(summary.noted["item ids such as `7.0` read as `7`"], 1);
    assert!(summary.warnings.is_empty(), "{:?}", summary.warnings);
    let (_, summary) = shop("sku,name\n7,Oak desk\n8,Red lamp\n", "query,sku\ndesk,A-7\ndesk,A-9\n");
    let expected = "no event is on an item of the catalogue: the log has ids like `A-7`, the catalogue ids like `7`";
    assert!(summary.warnings[0].starts_with(expected), "{:?}", summary.warnings);
    let (_, summary) = shop("sku,name\n7,Oak desk\n8,Red lamp\n", "query,sku\ndesk,7\ndesk,A-9\ndesk,A-8\n");
    assert!(summary.warnings[0].starts_with("only 1 of 3 events are on items"), "{:?}", summary.warnings);
}

#[test]
fn a_log_in_files_of_several_kinds() {
    let files: [(&str, &[u8]); 4] = [
        ("a.csv", b"time,user,query,item\n2025-07-31 10:00,u,desk,7\n"),
        ("b.jsonl", b"{\"ts\":1753999220,\"query\":\"lamp\",\"product_id\":8,\"user\":\"u\"}\n"),
        ("c.ndjson", br#"{"query_id":"a","user_query":"rug","timestamp":1,"query_response_hit_ids":["9"]}"#),
        ("notes.md", b"x"),
    ];
    let (home, summary) = import_ok(Format::Log, &Options::default(), &files, "");
    let texts: Vec<Value> = json_lines(&home, "queries.jsonl").into_iter().map(|query| query["text"].clone()).collect();
    assert_eq!(texts, ["rug", "desk", "lamp"]);
    let mut ids: Vec<String> = items(&home).into_iter().map(|item| item["_id"].as_str().unwrap().to_owned()).collect();
    ids.sort();
    assert_eq!((ids, summary.counts.log_lines), (vec!["7".into(), "8".into(), "9".into()], 5));
    assert_eq!(summary.unread_files, ["notes.md"]);
}
