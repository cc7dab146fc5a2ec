//! Importer fuzzing: arbitrary bytes, and valid files with bytes changed or cut off. An import ends with a readable
//! folder or an error; it never panics, and its counts cover every row. `PROPTEST_CASES` sets the cases per test
//! (default 256).

use std::fs;

use proptest::prelude::*;
use proptest::sample::Index;
use souk_ingest::import::{Format, Options, REJECTED_FILE, import};
use souk_io::beir::DataFolder;

/// Valid main files of each format; a mutation changes one of them.
fn valid_files(format: Format) -> Vec<(&'static str, Vec<u8>)> {
    let esci = |name: &str| fs::read(souk_testing::repository().join("crates/ingest/tests/esci").join(name)).unwrap();
    match format {
        Format::Beir => vec![
            ("corpus.jsonl", b"{\"_id\":\"1\",\"title\":\"Desk\",\"price\":3}\n{\"_id\":\"2\",\"text\":\"Lamp\"}\n".into()),
            ("queries.jsonl", b"{\"_id\":\"q\",\"text\":\"desk\"}\n".into()),
            ("qrels/test.tsv", b"query-id\tcorpus-id\tscore\nq\t1\t2\nq\t2\t0\n".into()),
            ("slices.tsv", b"query-id\tslice\nq\ta\n".into()),
        ],
        Format::HomeDepot => vec![
            ("train.csv", b"id,product_uid,product_title,search_term,relevance\n2,1,\"De\"\"sk\",desk,3\n3,2,Lamp,\"la\nmp\",1.67\n".into()),
            ("attributes.csv", b"product_uid,name,value\n1,Bullet01,\"a,b\"\n2,MFG Brand Name,x\n1,Width,3\n".into()),
            ("product_descriptions.csv", b"product_uid,product_description\n1,\"so\nlid\"\n3,x\n".into()),
        ],
        Format::Wands => vec![
            ("product.csv", b"product_id\tproduct_name\tproduct_features\n1\tDesk\ta : b|c\n".into()),
            ("query.csv", b"query_id\tquery\tquery_class\n0\tdesk\tDesks\n".into()),
            ("label.csv", b"id\tquery_id\tproduct_id\tlabel\n0\t0\t1\tExact\n".into()),
        ],
        Format::Esci => vec![
            ("shopping_queries_dataset_products.parquet", esci("shopping_queries_dataset_products.parquet")),
            ("shopping_queries_dataset_examples.parquet", esci("shopping_queries_dataset_examples.parquet")),
        ],
        Format::Icecat => vec![(
            "products.jsonl",
            b"{\"id\":\"1\",\"title\":\"x\",\"price\":5,\"attr_n_y\":1.5}\n{\"id\":2,\"attr_t_\":null,\"supplier\":\"s\"}\n".into(),
        )],
        Format::Csv => vec![("t.csv", b"id,title,price\n1,\"a \"\"b\"\"\",3\n2,\"c\nd\",x\n3,e,\n".into())],
        Format::Ubi => vec![
            ("a.ndjson", b"{\"query_id\":\"q\",\"user_query\":\"tv\",\"timestamp\":1}\n{\"action_name\":\"click\",\"query_id\":\"q\",\"timestamp\":\"2024-12-10\",\"event_attributes\":{\"object\":{\"object_id\":\"7\"}}}\n{\"index\":{}}\n".into()),
            ("b.csv", b"user,sku,query,click_time,query_time\nu,7,tv,2011-09-01,2011-09-01\n".into()),
        ],
        Format::Items => vec![
            ("a.csv", b"sku,name,price\n1,\"Oak \"\"desk\"\"\",$3.00\n2,\"Red\nlamp\",x\n".into()),
            ("b.jsonl", b"{\"sku\":3,\"name\":\"Blue rug\",\"x\":[1]}\n{\"sku\":\"4\",\"name\":null}\n".into()),
        ],
        Format::Pairs => vec![
            ("a.csv", b"anchor,positive,negative_1\ntv,\"Big\nscreen\",Lamp\nTV,Lamp,\n,Desk,\n".into()),
            ("b.jsonl", b"{\"query\":\"tv\",\"positive\":[\"Big screen\",7],\"neg\":[null,\"Rug\"]}\n".into()),
        ],
        Format::Log => vec![
            ("a.csv", b"time,session,query,item,rank,event\n03/04/2025 10:00,s,tv,7,0,view\n04/04/2025 10:00,s,tv,7,0,click\n".into()),
            ("b.jsonl", b"{\"ts\":1753999220,\"query\":\"tv\",\"item\":7}\n".into()),
            ("c.ndjson", b"{\"query_id\":\"q\",\"user_query\":\"tv\",\"timestamp\":1,\"query_response_hit_ids\":[]}\n".into()),
        ],
    }
}

/// Imports the files and checks the outcome; returns whether the import succeeded.
fn check(format: Format, files: &[(&str, Vec<u8>)]) -> bool {
    let home = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        let path = home.path().join("in").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    let from = if format == Format::Csv { home.path().join("in/t.csv") } else { home.path().join("in") };
    let out = home.path().join("out");
    let imported = import(format, &Options::default(), &from, &out, &mut |_| ());
    assert!(!home.path().join("out.part").exists());
    let Ok(summary) = imported else {
        assert!(!out.join("corpus.jsonl").exists());
        return false;
    };
    let list = fs::read_to_string(out.join(REJECTED_FILE)).unwrap_or_default();
    assert_eq!(list.lines().count() as u64, summary.num_rejected());
    if summary.counts.items > 0 {
        let folder = DataFolder::open(&out).unwrap();
        assert_eq!(folder.items().unwrap().map(Result::unwrap).count() as u64, summary.counts.items);
        for (split, count) in &summary.counts.judgements {
            assert_eq!(folder.judgements(split).unwrap().map(Result::unwrap).count() as u64, *count);
        }
        folder.slices().unwrap();
    }
    if summary.counts.queries > 0 {
        let lines = fs::read_to_string(out.join("queries.jsonl")).unwrap();
        assert_eq!(lines.lines().count() as u64, summary.counts.queries);
    }
    true
}

/// Mutation of a file.
#[derive(Clone, Debug)]
enum FileMutation {
    Set(Index, u8),
    Insert(Index, Vec<u8>),
    Cut(Index, Index),
    /// Copies a range of the file to another offset.
    Copy(Index, Index, Index),
}

impl FileMutation {
    fn apply(&self, bytes: &mut Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        let length = bytes.len();
        let piece = |from: &Index, to: &Index| {
            let (from, to) = (from.index(length), to.index(length));
            from.min(to)..from.max(to)
        };
        match self {
            Self::Set(at, byte) => bytes[at.index(length)] = *byte,
            Self::Insert(at, more) => drop(bytes.splice(at.index(length)..at.index(length), more.iter().copied())),
            Self::Cut(from, to) => drop(bytes.drain(piece(from, to))),
            Self::Copy(from, to, at) => {
                let copied = bytes[piece(from, to)].to_vec();
                drop(bytes.splice(at.index(length)..at.index(length), copied));
            }
        }
    }
}

fn changes() -> impl Strategy<Value = Vec<FileMutation>> {
    let index = any::<Index>;
    let special = prop::sample::select(b"\"\n\r\t,;|:{}[]\\\0\xff\xef0-".to_vec());
    let change = prop_oneof![
        4 => (index(), prop_oneof![any::<u8>(), special.clone()]).prop_map(|(at, byte)| FileMutation::Set(at, byte)),
        2 => (index(), prop::collection::vec(prop_oneof![any::<u8>(), special], 1..6))
            .prop_map(|(at, more)| FileMutation::Insert(at, more)),
        1 => (index(), index()).prop_map(|(from, to)| FileMutation::Cut(from, to)),
        1 => (index(), index(), index()).prop_map(|(from, to, at)| FileMutation::Copy(from, to, at)),
    ];
    prop::collection::vec(change, 1..5)
}

fn format() -> impl Strategy<Value = Format> {
    prop::sample::select(Format::ALL.to_vec())
}

#[test]
fn valid_files_are_imported() {
    for format in Format::ALL {
        assert!(check(format, &valid_files(format)), "{format}");
    }
}

#[test]
fn truncated_parquet_is_an_error() {
    let files = valid_files(Format::Esci);
    for length in (0..files[0].1.len()).step_by(7) {
        let cut = (files[0].0, files[0].1[..length].to_vec());
        assert!(!check(Format::Esci, &[cut, files[1].clone()]), "{length}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn mutated_files(format in format(), which in any::<Index>(), changes in changes()) {
        let mut files = valid_files(format);
        let file = which.index(files.len());
        changes.iter().for_each(|change| change.apply(&mut files[file].1));
        check(format, &files);
    }

    #[test]
    fn mutated_parquet(which in any::<bool>(), changes in changes()) {
        let mut files = valid_files(Format::Esci);
        changes.iter().for_each(|change| change.apply(&mut files[usize::from(which)].1));
        check(Format::Esci, &files);
    }

    #[test]
    fn arbitrary_bytes(format in format(), which in any::<Index>(), bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let mut files = valid_files(format);
        let file = which.index(files.len());
        files[file].1 = bytes;
        check(format, &files);
    }
}
