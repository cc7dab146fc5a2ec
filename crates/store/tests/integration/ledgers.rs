//! Conformance test of `Ledger`: every method, with valid and invalid input.

use std::fs;

use serde_json::{Map, json};
use souk_io::address::Address;
use souk_io::audit::Audit;
use souk_io::catalogue_stream::Mutation;
use souk_io::domain::{Item, Level};
use souk_io::error::Error;
use souk_store::{
    AuditMark, GenerationState, Grade, Grades, Ledger, MAX_ITEM, MAX_PAGE, NewGeneration, NewVersion, Offset,
    PairVotes, Quality, Side, SqlLedger, VersionState, Vote, VoteVerdict,
};

use souk_testing::databases::ledger;

pub async fn conform(url: String) {
    let ledger = ledger(&url).await;
    changes(&ledger).await;
    quality(&ledger).await;
    versions(&ledger).await;
    promotions(&ledger).await;
    reports(&ledger).await;
    votes(&ledger).await;
    offsets(&ledger).await;
    audits(&ledger).await;
    nul(&ledger).await;
    copies(&ledger).await;
}

/// PostgreSQL has the same rows after reading a copy of SQLite.
pub async fn copied_from_sqlite(url: String) {
    let home = tempfile::tempdir().unwrap();
    let from = format!("sqlite:{}", home.path().join("first.db").display());
    conform(from.clone()).await;
    let (from, to) = (ledger(&from).await, ledger(&url).await);
    let path = |name: &str| home.path().join(name);
    let copy = from.save(&path("first.jsonl")).await.unwrap();
    assert_eq!(to.load(&path("first.jsonl"), None).await.unwrap(), copy);
    assert_eq!(to.save(&path("second.jsonl")).await.unwrap(), copy);
    let lines = |name: &str| fs::read_to_string(path(name)).unwrap();
    assert_eq!(lines("first.jsonl"), lines("second.jsonl"));
}

/// A copy read into an empty ledger has the same rows, and numbers go on.
async fn copies(ledger: &SqlLedger) {
    let home = tempfile::tempdir().unwrap();
    let path = |name: &str| home.path().join(name);
    let copy = ledger.save(&path("first.jsonl")).await.unwrap();
    assert_eq!(copy.last_change, ledger.last_change().await.unwrap());
    let stream = ledger.stream_id().await.unwrap();
    assert_eq!(ledger.stream_id().await.unwrap(), stream);
    assert_eq!(ledger.save(&path("again.jsonl")).await.unwrap(), copy, "the stream's id is not copied");
    assert_eq!(copy.served, ledger.served().await.unwrap().map(|served| served.version));
    assert!(copy.num_rows > 50, "{copy:?}: the tests before have written rows to all tables");
    let address = Address::new(format!("sqlite:{}", path("second.db").display()));
    SqlLedger::migrate(&address).await.unwrap();
    let second = SqlLedger::open(&address).await.unwrap();
    second.stream_id().await.unwrap();
    second.check_empty().await.unwrap();
    assert_eq!(second.load(&path("first.jsonl"), None).await.unwrap(), copy);
    assert_eq!(second.save(&path("second.jsonl")).await.unwrap(), copy);
    let lines = |name: &str| fs::read_to_string(path(name)).unwrap();
    assert_eq!(lines("first.jsonl"), lines("second.jsonl"));
    assert_eq!(second.append_changes(&[put("x", "x")]).await.unwrap(), copy.last_change + 1);
    assert_ne!(second.stream_id().await.unwrap(), stream);
    for problem in [second.check_empty().await.err(), second.load(&path("first.jsonl"), None).await.err()] {
        let problem = problem.unwrap().to_string();
        assert!(problem.contains("has rows in the table counters: restore into a new database"), "{problem}");
    }
}

/// All ledgers reject NUL, because PostgreSQL cannot store it.
async fn nul(ledger: &dyn Ledger) {
    let names = texts(&["a", "a\0b"]);
    refused(ledger.append_changes(&names.iter().cloned().map(Mutation::Delete).collect::<Vec<_>>()).await, "NUL");
    refused(ledger.get_quality(&names).await, "NUL");
    refused(ledger.version("a\0b").await, "NUL");
    refused(ledger.reject_version("a\0b").await, "NUL");
    refused(ledger.page_generations("a\0b", None, 1).await, "NUL");
    refused(ledger.page_generations("a", Some("a\0b"), 1).await, "NUL");
    refused(ledger.promote("a", "a\0b").await, "NUL");
    refused(ledger.promote("a\0b", "a").await, "NUL");
    refused(ledger.roll_back("a\0b").await, "NUL");
    refused(ledger.add_report("a\0b", "test", &json!({})).await, "NUL");
    refused(ledger.page_reports("a\0b", None, 1).await, "NUL");
    refused(ledger.offsets("a\0b").await, "NUL");
}

fn texts(texts: &[&str]) -> Vec<String> {
    texts.iter().map(ToString::to_string).collect()
}

fn item(id: &str, title: &str) -> Item {
    Item { id: id.into(), title: title.into(), text: String::new(), fields: Map::new() }
}

fn refused<T>(outcome: souk_io::Result<T>, says: &str) {
    let error = outcome.err().unwrap_or_else(|| panic!("was not refused: {says}"));
    assert!(matches!(error, Error::Input { .. }) && error.to_string().contains(says), "{error}");
}

pub fn put(id: &str, title: &str) -> Mutation {
    Mutation::Put(item(id, title))
}

fn update(id: &str, fields: serde_json::Value) -> Mutation {
    let serde_json::Value::Object(fields) = fields else { panic!("not an object") };
    Mutation::Update(id.into(), fields)
}

/// All changes after a position, read in small pages.
async fn changes_after(ledger: &dyn Ledger, mut after: u64) -> Vec<(u64, Mutation)> {
    let mut all = Vec::new();
    loop {
        let page = ledger.page_changes(after, 4).await.unwrap();
        assert!(page.len() <= 4);
        let Some((last, _)) = page.last() else { return all };
        after = *last;
        all.extend(page);
    }
}

async fn changes(ledger: &dyn Ledger) {
    assert_eq!((ledger.last_change().await.unwrap(), changes_after(ledger, 0).await), (0, Vec::new()));
    assert_eq!(ledger.append_changes(&[]).await.unwrap(), 0);
    let ids = ["a", "B", "Ä", "it's", "\"", "%_", "\\u0000", "🪑", "a b", "{rows}$1"];
    let mut puts: Vec<Mutation> = ids.iter().map(|id| put(id, "nul \0 and \u{1F6CB}")).collect();
    if let Mutation::Put(item) = &mut puts[0] {
        item.fields.insert("price".into(), json!(0.1));
        item.fields.insert("attributes".into(), json!({"wood": ["oak", null], "big": u64::MAX}));
    }
    assert_eq!(ledger.append_changes(&puts).await.unwrap(), 10);
    let expected: Vec<_> = (1..).zip(puts.clone()).collect();
    assert_eq!(changes_after(ledger, 0).await, expected);
    assert_eq!(ledger.append_changes_if(&[put("new", ""), put("it's", "")], 3).await.unwrap(), None, "changed at 4");
    assert_eq!(ledger.append_changes_if(&[put("%_", "")], 5).await.unwrap(), None);
    assert_eq!(changes_after(ledger, 0).await, expected, "nothing was written");
    assert_eq!(changes_after(ledger, 7).await, expected[7..]);

    // a later mutation takes the key over, within a call and across calls
    let call = [put("a", "old"), update("a", json!({"price": 1})), put("a", "new"), Mutation::Delete("B".into())];
    assert_eq!(ledger.append_changes(&call).await.unwrap(), 14);
    assert_eq!(changes_after(ledger, 10).await, [(13, put("a", "new")), (14, Mutation::Delete("B".into()))]);
    assert_eq!(changes_after(ledger, 0).await[0], (3, puts[2].clone()));
    let call = [
        update("a", json!({"price": 1})),
        update("a", json!({"stock": 1, "price": 2})),
        update("a", json!({"price": 3})),
    ];
    assert_eq!(ledger.append_changes(&call).await.unwrap(), 17);
    assert_eq!(changes_after(ledger, 13).await[1..], [(16, call[1].clone()), (17, call[2].clone())]);
    assert_eq!(ledger.append_changes(&[update("a", json!({"price": 4}))]).await.unwrap(), 18);
    assert_eq!(changes_after(ledger, 15).await, [(16, call[1].clone()), (18, update("a", json!({"price": 4})))]);
    // a whole item replaces what was updated before
    assert_eq!(ledger.append_changes(&[put("a", "newest")]).await.unwrap(), 19);
    assert_eq!(changes_after(ledger, 13).await, [(14, Mutation::Delete("B".into())), (19, put("a", "newest"))]);

    refused(ledger.append_changes(&[put("kept?", ""), put("", "")]).await, "an item's id");
    refused(ledger.append_changes(&[put(&"x".repeat(2000), "")]).await, "2000 bytes");
    refused(ledger.append_changes(&[put("larger", &"x".repeat(MAX_ITEM))]).await, "`larger` has");
    refused(ledger.append_changes(&[update("a", json!({"_deleted": true}))]).await, "`_deleted` cannot be a field");
    assert_eq!(ledger.last_change().await.unwrap(), 19, "all of a call or nothing");

    let large: Vec<Mutation> =
        (0..20).map(|n| put(&format!("large-{n:02}"), &"\"".repeat(MAX_ITEM / 2 - 50))).collect();
    assert_eq!(ledger.append_changes(&large).await.unwrap(), 39);
    let many: Vec<Mutation> = (0..2500).map(|n| put(&format!("many-{n:05}"), "")).collect();
    assert_eq!(ledger.append_changes(&many).await.unwrap(), 2539);
    let expected: Vec<_> = (20..).zip(large.into_iter().chain(many)).collect();
    assert_eq!(ledger.page_changes(19, MAX_PAGE * 2).await.unwrap(), expected);
}

async fn quality(ledger: &dyn Ledger) {
    let row = |item: &str, ratings_sum: f64, score: f64| Quality {
        item: item.into(),
        units: i64::MAX,
        returns: 3,
        ratings_sum,
        num_ratings: 7,
        score,
    };
    let awkward = [0.1 + 0.2, 1.0 / 3.0, f64::MIN_POSITIVE, 5e-324, 1.0 - f64::EPSILON / 2.0, 0.0, 1.0];
    let mut rows: Vec<Quality> = awkward.iter().map(|score| row(&format!("{score:e}"), -1e300 / 3.0, *score)).collect();
    rows.extend((0..1500).map(|n| row(&format!("item-{n}"), f64::from(n) * 0.7, f64::from(n) / 1501.0)));
    ledger.put_quality(&rows).await.unwrap();
    let mut items: Vec<String> = rows.iter().map(|row| row.item.clone()).collect();
    items.push("none".into());
    let mut expected: Vec<Option<Quality>> = rows.into_iter().map(Some).collect();
    expected.push(None);
    assert_eq!(ledger.get_quality(&items).await.unwrap(), expected, "to the last bit");
    ledger.put_quality(&[row("item-0", 1.0, 0.5)]).await.unwrap();
    assert_eq!(ledger.get_quality(&texts(&["item-0"])).await.unwrap(), [Some(row("item-0", 1.0, 0.5))]);
    for wrong in [row("x", 0.0, 1.01), row("x", 0.0, f64::NAN), row("x", f64::INFINITY, 0.5)] {
        refused(ledger.put_quality(&[wrong]).await, "`x`");
    }
}

fn new_version(version: &str, parent: Option<&str>) -> NewVersion {
    let (path, fingerprint) = (format!("models/{version}"), format!("sha256:{version}"));
    let metrics = json!({"ndcg@10": 28.45, "note": "\0"});
    NewVersion { version: version.into(), path, fingerprint, parent: parent.map(Into::into), metrics }
}

fn new_generation(generation: &str, version: &str) -> NewGeneration {
    let (path, manifest) = (format!("indexes/{generation}"), json!({"num_items": 3}));
    NewGeneration { generation: generation.into(), version: version.into(), path, manifest }
}

async fn versions(ledger: &dyn Ledger) {
    assert_eq!(ledger.version("v1").await.unwrap(), None);
    for (version, parent) in [("v1", None), ("v2", Some("v1")), ("v3", Some("v2")), ("v4", None)] {
        ledger.add_version(&new_version(version, parent)).await.unwrap();
        ledger.add_generation(&new_generation(&format!("{version}-b"), version)).await.unwrap();
        ledger.add_generation(&new_generation(&format!("{version}-a"), version)).await.unwrap();
    }
    let second = ledger.version("v2").await.unwrap().unwrap();
    let given = new_version("v2", Some("v1"));
    assert_eq!((&second.path, &second.fingerprint, &second.metrics), (&given.path, &given.fingerprint, &given.metrics));
    assert_eq!((second.parent.as_deref(), second.state), (Some("v1"), VersionState::Candidate));
    refused(ledger.add_version(&new_version("v1", None)).await, "`v1` already exists");
    refused(ledger.add_version(&new_version("v9", Some("v8"))).await, "no version `v8`");
    refused(ledger.add_generation(&new_generation("g", "v9")).await, "no version `v9`");
    refused(ledger.add_generation(&new_generation("v1-a", "v2")).await, "`v1-a` already exists");

    let newest = ledger.page_versions(None, 3).await.unwrap();
    let names = |versions: &[souk_store::Version]| versions.iter().map(|v| v.version.clone()).collect::<Vec<_>>();
    assert_eq!(names(&newest), ["v4", "v3", "v2"]);
    assert_eq!(names(&ledger.page_versions(Some(newest[2].number), 3).await.unwrap()), ["v1"]);
    let first = ledger.page_generations("v1", None, 1).await.unwrap();
    assert_eq!((first.len(), first[0].generation.as_str()), (1, "v1-a"));
    assert_eq!((&first[0].manifest, first[0].state), (&json!({"num_items": 3}), GenerationState::Built));
    assert_eq!(ledger.page_generations("v1", Some("v1-a"), 9).await.unwrap()[0].generation, "v1-b");
}

async fn promotions(ledger: &dyn Ledger) {
    let served = async || ledger.served().await.unwrap().map(|served| (served.version, served.generation));
    let pair = |version: &str, generation: &str| Some((version.to_owned(), generation.to_owned()));
    let state = async |version: &str| ledger.version(version).await.unwrap().unwrap().state;
    let index = async |version: &str, n: usize| ledger.page_generations(version, None, 9).await.unwrap()[n].state;
    assert_eq!(served().await, None);
    refused(ledger.roll_back("v1").await, "no version is live");
    refused(ledger.promote("v1", "v2-a").await, "not an index generation of `v1`");
    refused(ledger.promote("v7", "v2-a").await, "no version `v7`");
    assert_eq!(state("v1").await, VersionState::Candidate, "what was refused changed nothing");

    ledger.promote("v1", "v1-a").await.unwrap();
    refused(ledger.roll_back("v1").await, "no version was live before");
    assert_eq!(served().await, pair("v1", "v1-a"));
    ledger.promote("v2", "v2-a").await.unwrap();
    assert_eq!((served().await, index("v1", 0).await), (pair("v2", "v2-a"), GenerationState::Retired));
    ledger.promote("v2", "v2-b").await.unwrap();
    assert_eq!((index("v2", 0).await, index("v2", 1).await), (GenerationState::Retired, GenerationState::Served));
    ledger.promote("v3", "v3-a").await.unwrap();
    let history = async |limit: usize| {
        let versions = ledger.served_versions(limit).await.unwrap().into_iter();
        versions.map(|served| served.generation).collect::<Vec<_>>()
    };
    assert_eq!(history(9).await, ["v3-a", "v2-b", "v1-a"]);
    assert_eq!(history(2).await, ["v3-a", "v2-b"]);
    refused(ledger.roll_back("v2").await, "`v3` is");

    assert_eq!(ledger.roll_back("v3").await.unwrap().generation, "v2-b", "as it was last served");
    assert_eq!((served().await, state("v3").await), (pair("v2", "v2-b"), VersionState::RolledBack));
    assert_eq!(history(9).await, ["v2-b", "v1-a"], "what was rolled back is left out");
    assert_eq!((index("v2", 1).await, index("v3", 0).await), (GenerationState::Served, GenerationState::Retired));
    refused(ledger.promote("v3", "v3-b").await, "rolled_back");
    assert_eq!(ledger.roll_back("v2").await.unwrap().version, "v1", "a new index of it is not a step");
    assert_eq!(state("v1").await, VersionState::Promoted);

    refused(ledger.reject_version("v1").await, "promoted");
    ledger.reject_version("v4").await.unwrap();
    ledger.reject_version("v4").await.unwrap();
    assert_eq!(state("v4").await, VersionState::Rejected);
    refused(ledger.promote("v4", "v4-a").await, "rejected");
    assert_eq!(served().await, pair("v1", "v1-a"));
}

async fn reports(ledger: &dyn Ledger) {
    for (split, score) in [("dev", 1), ("test", 2), ("test", 3)] {
        ledger.add_report("v1", split, &json!({"ndcg@10": score})).await.unwrap();
    }
    ledger.add_report("v2", "test", &json!({})).await.unwrap();
    refused(ledger.add_report("v9", "test", &json!({})).await, "no version `v9`");
    let newest = ledger.page_reports("v1", None, 2).await.unwrap();
    let scores: Vec<_> = newest.iter().map(|report| report.metrics["ndcg@10"].as_i64().unwrap()).collect();
    assert_eq!(scores, [3, 2]);
    let rest = ledger.page_reports("v1", Some(newest[1].number), 2).await.unwrap();
    assert_eq!((rest.len(), rest[0].split.as_str(), rest[0].version.as_str()), (1, "dev", "v1"));
}

pub fn vote(id: &str, verdict: VoteVerdict) -> Vote {
    let grade = |side, item: &str, good| Grade { side, item: item.into(), good };
    let grades = vec![grade(Side::Left, "a", true), grade(Side::Left, "b", false), grade(Side::Right, "c", true)];
    let (left, right) = ("bm25".into(), "v1".into());
    Vote { id: id.into(), query: "oak 'desk'".into(), left, right, verdict, grades, voter: "ann".into(), cast_at: 5 }
}

async fn votes(ledger: &dyn Ledger) {
    let first = [
        vote("1", VoteVerdict::Good),
        vote("2", VoteVerdict::Bad),
        vote("2", VoteVerdict::Good),
        vote("3", VoteVerdict::Same),
    ];
    assert_eq!(ledger.append_votes(&first).await.unwrap(), 3, "one id, one vote");
    let other = Vote { left: "v2".into(), grades: Vec::new(), ..vote("4", VoteVerdict::Bad) };
    assert_eq!(ledger.append_votes(&[vote("1", VoteVerdict::Bad), other.clone()]).await.unwrap(), 1);
    refused(ledger.append_votes(&[vote("5", VoteVerdict::Bad), vote("", VoteVerdict::Bad)]).await, "a vote's id");
    // the same pair swapped, with one more item
    let mut turned = Vote { left: "v1".into(), right: "bm25".into(), ..vote("6", VoteVerdict::Good) };
    turned.grades.push(Grade { side: Side::Right, item: "d".into(), good: true });
    assert_eq!(ledger.append_votes(std::slice::from_ref(&turned)).await.unwrap(), 1);
    let counted = PairVotes {
        left: "bm25".into(),
        right: "v1".into(),
        num_good: 1,
        num_same: 1,
        num_bad: 2,
        left_grades: Grades {
            num_items: 8,
            num_good: 5,
            num_votes: 4,
            items_squared: 16,
            good_squared: 7,
            good_by_items: 10,
        },
        right_grades: Grades {
            num_items: 5,
            num_good: 4,
            num_votes: 4,
            items_squared: 7,
            good_squared: 4,
            good_by_items: 5,
        },
    };
    let another = PairVotes { left: "v1".into(), right: "v2".into(), num_good: 1, ..PairVotes::default() };
    assert_eq!(ledger.summarise_votes().await.unwrap(), [counted, another]);
    let page = ledger.page_votes(0, 2).await.unwrap();
    assert_eq!((&page[0].1, &page[1].1), (&first[0], &first[1]));
    let rest = ledger.page_votes(page[1].0, 10).await.unwrap();
    assert_eq!(rest.into_iter().map(|(_, vote)| vote).collect::<Vec<_>>(), [first[3].clone(), other, turned]);
}

async fn offsets(ledger: &dyn Ledger) {
    let offset =
        |lane: &str, position: &str, revision| Offset { lane: lane.into(), position: position.into(), revision };
    assert_eq!(ledger.offsets("clicks").await.unwrap(), []);
    assert!(ledger.move_offsets("clicks", &[offset("1", "10", 0), offset("0", "{\"byte\":7}", 0)]).await.unwrap());
    let now = ledger.offsets("clicks").await.unwrap();
    assert_eq!(now, [offset("0", "{\"byte\":7}", 1), offset("1", "10", 1)]);
    assert!(!ledger.move_offsets("clicks", &[offset("0", "0", 0)]).await.unwrap(), "who thinks that it is new is late");
    assert!(ledger.move_offsets("clicks", &[offset("0", "20", 1)]).await.unwrap());
    assert!(!ledger.move_offsets("clicks", &[offset("1", "30", 1), offset("0", "8", 1)]).await.unwrap());
    assert!(!ledger.move_offsets("clicks", &[offset("2", "1", 4)]).await.unwrap(), "a lane that is not there");
    assert_eq!(ledger.offsets("clicks").await.unwrap(), [offset("0", "20", 2), offset("1", "10", 1)], "all or none");
    assert_eq!(ledger.offsets("sales").await.unwrap(), [], "sources are apart");
    refused(ledger.move_offsets("", &[]).await, "a source's name");
}

async fn audits(ledger: &dyn Ledger) {
    let audit = |item: &str, score: Option<f64>, level: Option<Level>, judged_at| Audit {
        query: "desk".into(),
        item: item.into(),
        text_hash: "c0ffee".into(),
        source: "oracle".into(),
        score,
        level,
        judged_at,
    };
    let given = [
        audit("late", Some(0.1 + 0.2), Some(Level::L4), 30),
        audit("missing", None, None, 10),
        audit("twin", Some(0.0), Some(Level::L1), 10),
        audit("early", Some(1.0), None, -5),
    ];
    ledger.append_audits(&given[..2]).await.unwrap();
    ledger.append_audits(&given[2..]).await.unwrap();
    ledger.append_audits(&[]).await.unwrap();
    refused(ledger.append_audits(&[audit("nan", Some(f64::NAN), None, 1)]).await, "not a number");
    let (mut mark, mut seen) = (AuditMark::at(i64::MIN), Vec::new());
    while let [(next, audit)] = &ledger.page_audits(mark, i64::MAX, 1).await.unwrap()[..] {
        mark = *next;
        seen.push(audit.clone());
    }
    assert_eq!(seen, [3, 1, 2, 0].map(|n| given[n].clone()), "by time, then as they came");
    let part = ledger.page_audits(AuditMark::at(10), 30, 9).await.unwrap();
    assert_eq!(part.into_iter().map(|(_, audit)| audit).collect::<Vec<_>>(), given[1..3]);
}
