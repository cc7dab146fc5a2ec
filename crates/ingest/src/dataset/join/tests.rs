//! Properties of the joiner, on handmade and random logs.

use proptest::prelude::*;

use super::*;

/// Output of the joiner, in order.
#[derive(Default, Debug, PartialEq)]
struct RecordingSink {
    examples: Vec<(String, String, f32, u64)>,
    queries: Vec<(String, String, i64)>,
    seen: Vec<u64>,
    dead: Vec<(u64, String)>,
}

impl Sink for RecordingSink {
    fn example(&mut self, example: JoinedExample<'_>) {
        self.examples.push((example.query.into(), example.item.into(), example.strength, example.offset));
    }

    fn query(&mut self, query: &QueryRecord<'_>) {
        self.queries.push((query.query_id.to_string(), query.text.to_string(), query.time));
    }

    fn seen(&mut self, key: u64) {
        self.seen.push(key);
    }

    fn dead(&mut self, letter: DeadLetter) {
        self.dead.push((letter.offset, letter.reason));
    }
}

fn query(id: &str, text: &str, minute: i64) -> String {
    format!(r#"{{"query_id":"{id}","user_query":"{text}","timestamp":{}}}"#, minute * 60_000)
}

fn event(action: &str, query: &str, item: &str, minute: i64) -> String {
    format!(
        r#"{{"action_name":"{action}","query_id":"{query}","timestamp":{},
            "event_attributes":{{"object":{{"object_id":"{item}"}},"position":{{"ordinal":2}}}}}}"#,
        minute * 60_000
    )
}

fn joiner(minutes: u32) -> Joiner {
    let window = Window { minutes, ahead_minutes: 900, queries: 50, waiting: 10, seen: 500 };
    Joiner::new(Lane::new("lane"), window, Strength::default())
}

fn feed(joiner: &mut Joiner, output: &mut RecordingSink, lines: &[String], first: u64) {
    for (line, offset) in lines.iter().zip(first..) {
        joiner.take(&message(line.as_bytes(), offset), output);
    }
}

fn message(payload: &[u8], offset: u64) -> Message<'_> {
    Message { payload, part: "log", offset, next: offset + 1, logged_at: 3_000 * 60_000 }
}

fn join(minutes: u32, lines: &[String]) -> (RecordingSink, JoinCounts) {
    let (mut joiner, mut output) = (joiner(minutes), RecordingSink::default());
    feed(&mut joiner, &mut output, lines, 0);
    (output, joiner.counts)
}

#[test]
fn clicks_join_their_query_once_in_any_order() {
    let lines = [
        event("click", "q", "7", 1),
        query("q", "oak desk", 0),
        event("click", "q", "7", 1),
        query("q", "oak desk", 0),
        event("purchase", "q", "7", 3),
        event("impression", "q", "9", 0),
        r#"{"action_name":"page_exit"}"#.into(),
        String::new(),
    ];
    let (output, counts) = join(60, &lines);
    let expected = [("oak desk".into(), "7".into(), 2.0, 0), ("oak desk".into(), "7".into(), 8.0, 4)];
    assert_eq!(output.examples, expected);
    let expected =
        JoinCounts { messages: 8, queries: 1, impressions: 1, examples: 2, repeated: 2, passed_over: 2, dead: 0 };
    assert_eq!(counts, expected);
}

#[test]
fn a_query_that_never_comes_makes_a_dead_letter() {
    let mut lines = vec![event("click", "lost", "7", 0), "{".into(), query("q", "desk", 30), query("r", "desk", 50)];
    assert_eq!(join(60, &lines).1.dead, 1, "only the invalid line; the query may still come");
    lines.extend((0..2 * TICK_RECORDS).map(|n| query(&format!("later{n}"), "desk", 100)));
    let (output, counts) = join(60, &lines);
    assert_eq!(output.dead[1], (0, "no query within the window".into()));
    assert_eq!((counts.dead, counts.examples), (2, 0));
    let late = [query("q", "desk", 0), event("click", "q", "7", 61)];
    assert_eq!(join(60, &late).0.dead, [(1, "event is more than 60 minutes from its query".into())]);
}

#[test]
fn a_client_whose_clock_is_wrong_does_not_empty_the_window() {
    let mut lines = vec![query("q", "desk", 0)];
    lines.extend((0..50).map(|n| event("click", "wild", &n.to_string(), 999_999)));
    lines.extend((0..2 * TICK_RECORDS as i64).map(|n| event("impression", "q", &n.to_string(), 1)));
    lines.extend([query("r", "lamp", 2), event("click", "r", "7", 3), event("click", "q", "7", 1)]);
    assert_eq!(join(60, &lines).0.examples.len(), 2);
}

#[test]
fn records_from_the_future_are_buried() {
    // most of the log is dated a month after it was logged
    let mut lines = vec![query("q", "desk", 2_990)];
    lines.extend((0..6 * TICK_RECORDS as i64).map(|n| event("impression", "wild", &n.to_string(), 3_000 + 30 * 1440)));
    lines.extend([query("wild", "lamp", 3_901), event("click", "q", "7", 3_000)]);
    let (output, counts) = join(60, &lines);
    assert_eq!((output.examples.len(), counts.impressions), (1, 0));
    assert_eq!(counts.dead, 6 * TICK_RECORDS as u64 + 1, "900 minutes ahead is the bound");
    let reason = "its time is 720 hours after 1970-01-03T02:00:00.000Z, when it was logged: the clock of whoever wrote it is wrong";
    assert_eq!(output.dead[0].1, reason);
}

#[test]
fn log_time_that_wrong_clocks_moved_moves_back() {
    let (mut joiner, mut output) = (joiner(60), RecordingSink::default());
    let mut now = |joiner: &mut Joiner, num_ticks: usize, minute: i64| {
        let first = joiner.counts.messages;
        let item = |n: usize| event("impression", "q", &format!("{first}-{n}"), minute);
        let lines: Vec<String> = (0..num_ticks * TICK_RECORDS).map(item).collect();
        feed(joiner, &mut output, &lines, first);
        joiner.log_time().unwrap() / 60_000
    };
    assert_eq!(now(&mut joiner, 5, 100), 100);
    assert_eq!(now(&mut joiner, 1, 900), 100, "a burst of 255 records");
    assert_eq!(now(&mut joiner, 1, 900), 900);
    assert_eq!(now(&mut joiner, 1, 101), 900);
    assert_eq!(now(&mut joiner, 1, 101), 101, "as many right ones");
}

#[test]
fn memory_is_bounded() {
    let (mut joiner, mut output) = (joiner(60), RecordingSink::default());
    let lines: Vec<String> = (0..2000)
        .flat_map(|n| [query(&format!("q{n}"), "desk", 0), event("click", &format!("none{n}"), "7", 0)])
        .collect();
    feed(&mut joiner, &mut output, &lines, 0);
    assert_eq!((joiner.queries.len(), joiner.order.len(), joiner.query_bytes), (50, 50, 200));
    assert_eq!(joiner.seen.len(), 500);
    assert_eq!((joiner.waiting.len(), joiner.by_query.len(), output.dead.len()), (10, 10, 1990));
}

/// Small log with duplicates, disorder, unknown queries and invalid lines.
fn logs() -> impl Strategy<Value = Vec<String>> {
    let line = (0..6_u8, 0..12_u8, 0..5_u8, 0..200_i64).prop_map(|(kind, id, item, minute)| match kind {
        0 | 1 => query(&format!("q{id}"), "desk", minute),
        2 => event("impression", &format!("q{id}"), &item.to_string(), minute),
        3 => event("click", &format!("q{id}"), &item.to_string(), minute),
        4 => event("purchase", &format!("q{id}"), &item.to_string(), minute),
        _ => format!("{{\"rubbish\":{id}"),
    });
    proptest::collection::vec(line, 0..120)
}

proptest! {
    #[test]
    fn restoring_anywhere_gives_the_same_output(lines in logs(), cut in 0..120_usize) {
        let cut = cut.min(lines.len());
        let (whole, counts) = join(60, &lines);
        let (mut before, mut output) = (joiner(60), RecordingSink::default());
        feed(&mut before, &mut output, &lines[..cut], 0);
        let mut after = joiner(60);
        let waiting: Vec<WaitingEvent> = before.waiting().cloned().collect();
        after.restore(&before.state(), &output.queries, &output.seen, &waiting);
        after.counts = before.counts.clone();
        feed(&mut after, &mut output, &lines[cut..], cut as u64);
        prop_assert_eq!(output, whole);
        prop_assert_eq!(after.counts, counts);
    }

    #[test]
    fn every_message_is_accounted_for(lines in logs()) {
        let (mut joiner, mut output) = (joiner(60), RecordingSink::default());
        feed(&mut joiner, &mut output, &lines, 0);
        let counts = &joiner.counts;
        let known = counts.queries + counts.impressions + counts.examples + counts.repeated + counts.passed_over;
        prop_assert_eq!(known + counts.dead + joiner.waiting().len() as u64, lines.len() as u64);
    }

    #[test]
    fn any_bytes_are_accounted_for(payloads in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..80), 0..40)) {
        let (mut joiner, mut output) = (joiner(60), RecordingSink::default());
        for (payload, offset) in payloads.iter().zip(0..) {
            joiner.take(&message(payload, offset), &mut output);
        }
        prop_assert_eq!(joiner.counts.passed_over + joiner.counts.dead, payloads.len() as u64);
    }

    #[test]
    fn a_damaged_record_is_accounted_for(at in 0..150_usize, byte: u8, cut in 0..150_usize) {
        let mut payload = event("click", "q", "7", 1).into_bytes();
        if let Some(place) = payload.get_mut(at) {
            *place = byte;
        }
        payload.truncate(payload.len().min(cut.max(1)));
        let (mut joiner, mut output) = (joiner(60), RecordingSink::default());
        joiner.take(&message(&payload, 0), &mut output);
        let counts = &joiner.counts;
        prop_assert_eq!(counts.passed_over + counts.dead + counts.examples + joiner.waiting().len() as u64 + counts.impressions, 1);
    }
}
