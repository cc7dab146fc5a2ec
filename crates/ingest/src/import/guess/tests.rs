//! Guesses on small files: names in many spellings, files without a header, overrides, and the errors.

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use super::*;
use crate::import::columns::Column;

fn file(home: &tempfile::TempDir, name: &str, text: &str) -> PathBuf {
    let path = home.path().join(name);
    fs::write(&path, text).unwrap();
    path
}

fn options(columns: &[&str]) -> ReadOptions {
    let columns = columns.iter().map(|column| column.parse::<Column>().unwrap()).collect();
    ReadOptions { columns, ..ReadOptions::default() }
}

fn items(name: &str, text: &str, columns: &[&str]) -> Result<Guess> {
    let home = tempfile::tempdir().unwrap();
    item_guesses(&[file(&home, name, text)], &options(columns)).map(|guesses| guesses.files[0].clone())
}

fn log(name: &str, text: &str, columns: &[&str]) -> Result<Guess> {
    let home = tempfile::tempdir().unwrap();
    log_guesses(&[file(&home, name, text)], &options(columns), &[]).map(|guesses| guesses.files[0].clone())
}

fn certainty(guess: &Guess, field: &str) -> Option<Certainty> {
    guess.fields.iter().find(|guess| guess.field == field).map(|guess| guess.certainty)
}

#[test]
fn names_of_item_columns_in_many_spellings() {
    for (header, expected) in [
        ("sku,product_name,x", "id=sku,title=product_name"),
        ("uniq_id,Product Title,x", "id=uniq_id,title=Product Title"),
        ("productId,name,x", "id=productId,title=name"),
        ("ASIN,TITLE,x", "id=ASIN,title=TITLE"),
        ("artnr,bezeichnung,x", "id=artnr,title=bezeichnung"),
        ("our_product_id_old,name_de,x", "id=our_product_id_old,title=name_de"),
    ] {
        let guess = items("a.csv", &format!("{header}\n7,Oak desk,1\n8,Red lamp,1\n"), &[]).unwrap();
        assert_eq!(guess.columns(), expected);
        assert_eq!(guess.other_columns, ["x"]);
    }
    let table = "sku,Name,Description,Vendor,breadcrumbs,Sale Price,stock\n\
        1,Oak desk,A desk of oak.,Nord,Home > Desks,\"$1,99.00\",5\n2,Lamp,A warm lamp.,Lumo,Home > Lamps,$5.00,1\n";
    let guess = items("a.csv", table, &[]).unwrap();
    let expected = "id=sku,title=Name,text=Description,category=breadcrumbs,brand=Vendor,price=Sale Price";
    assert_eq!((guess.columns().as_str(), guess.other_columns.as_slice()), (expected, &["stock".to_owned()][..]));
    assert!(guess.fields.iter().all(|field| field.certainty == Certainty::Sure), "{guess}");
}

#[test]
fn names_of_other_things_are_not_the_items() {
    let table =
        "category_id,seller_name,id,name,title\n1,Shop one,7,006R90,Black toner\n1,Shop two,8,dv7-11,Grey laptop\n";
    let guess = items("a.csv", table, &[]).unwrap();
    assert_eq!(guess.columns(), "id=id,title=title");
    let without = items("a.csv", "category_id,seller_name,nr\n1,Shop one,7\n2,Shop two,8\n", &[]).unwrap();
    assert_eq!(certainty(&without, "title"), Some(Certainty::Likely), "the only texts: {without}");
}

/// Rows as shops export them without a header: id, title, path, maker, price, sellers, count, rating.
const TOYS: &str = "eac7efa5dbd3d111,Norway 2014 Catalogue,Hobbies > Trains,Norway,3.42,5 new,15,4.9\n\
    b17540ef7e86e222,Lumotoys large winter train set,Hobbies > Trains,Lumotoys,16.99,,2,4.5\n\
    348f344247b0c333,Plain toy train with carriages,Hobbies > Trains,acme,9.99,2 new,17,3.9\n\
    e12b92dbb8eae444,Norway coach R4410A corridor,Hobbies > Lights,Norway,,2 new,1,5.0\n";

#[test]
fn values_tell_the_columns_of_a_file_without_a_header() {
    let guess = items("toys.csv", TOYS, &[]).unwrap();
    assert_eq!(guess.layout, "comma-separated, without a header");
    assert_eq!(guess.columns(), "id=0,title=1,category=2,brand=3,price=4");
    assert!(guess.fields.iter().all(|field| field.certainty == Certainty::Likely));
    assert_eq!(guess.other_columns, ["5", "6", "7"]);
    let named = format!("foo,bar,baz,qux,quux,corge,grault,garply\n{TOYS}");
    let guess = items("toys.csv", &named, &[]).unwrap();
    assert_eq!(guess.columns(), "id=foo,title=bar,category=baz,brand=qux,price=quux", "names that say nothing");
    let long = "1,Oak desk,The desk is made of solid oak and has two drawers with brass handles on it\n\
        2,Red lamp,The lamp is made of red glass and gives a warm light for a whole evening\n";
    assert_eq!(items("a.csv", long, &[]).unwrap().columns(), "id=0,title=1,text=2");
}

#[test]
fn a_file_with_variants_has_the_id_of_the_product() {
    let table = "Handle,Title,Variant SKU,Variant Price\n\
        desk,Oak desk,D-1,9.00\ndesk,,D-2,9.50\ndesk,,D-3,9.50\nlamp,Red lamp,L-1,5.00\n";
    let guess = items("shop.csv", table, &[]).unwrap();
    assert_eq!(guess.columns(), "id=Handle,title=Title,price=Variant Price");
    assert!(guess.notes[0].contains("the first row of an id stays"), "{guess}");
}

#[test]
fn given_columns_replace_guesses() {
    let table = "sku,name,label,price\n1,Oak desk,Desk of oak,5\n2,Lamp,Red lamp,6\n";
    let guess = items("a.csv", table, &["title=LABEL", "price=-", "color=1"]).unwrap();
    assert_eq!(guess.columns(), "id=sku,title=label,color=name");
    assert_eq!(certainty(&guess, "title"), Some(Certainty::Given));
    assert_eq!(guess.other_columns, ["price"]);
    let joined = items("a.csv", table, &["title=name", "title=label"]).unwrap();
    assert_eq!(joined.columns(), "id=sku,title=name,title=label,price=price");
    for (columns, expected) in [
        (&["id=nr"][..], "--columns names a column `nr`, which is not there; the columns are: sku, name, label, price"),
        (&["id=0", "id=1"], "--columns maps `id` twice"),
        (&["_id=0"], "use id=... instead of _id=..."),
        (&["title=-"], "which column of this product file is the title"),
    ] {
        let error = items("a.csv", table, columns).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    // a header that looks like a row, named by the user
    let numbers = items("a.csv", "7,8\n1,Oak desk\n2,Red lamp\n", &["id=7", "title=8"]).unwrap();
    assert_eq!(
        (numbers.layout.as_str(), numbers.columns().as_str()),
        ("comma-separated, with a header", "id=0,title=1")
    );
}

#[test]
fn an_unclear_file_is_an_error_that_says_what_to_give() {
    let table = "a,b\n1,9\n1,9\n2,7\n";
    let options = ReadOptions { columns_option: Some("--log-columns"), ..ReadOptions::default() };
    let home = tempfile::tempdir().unwrap();
    let error = log_guesses(&[file(&home, "a.csv", table)], &options, &[]).unwrap_err().to_string();
    let expected = "cannot tell which column of this search log is the query. Its columns:\n  \
        a  1 | 2\n  b  9 | 7\nName them with --log-columns query=a,item=b";
    assert!(error.contains(expected), "{error}");
    let error = items("a.csv", table, &[]).unwrap_err().to_string();
    assert!(error.ends_with("Name them with --columns id=a,title=b"), "{error}");
}

#[test]
fn the_guess_is_a_readable_table() {
    let table = "sku,name,stock\n1,Oak desk with a very long name for this narrow table,5\n2,Lamp,5\n2,Lamp,5\n";
    let shown = items("a.csv", table, &["id=sku"]).unwrap().to_string();
    let (_, shown) = shown.split_once("a.csv").unwrap();
    let expected = " (comma-separated, with a header)\n  \
        field  column  certainty  examples\n  \
        id     sku     given      1 | 2\n  \
        title  name    sure       Oak desk with a very long name for this ... | Lamp\n  \
        other columns: stock\n  \
        note: some ids come again in the first rows: the first row of an id stays, later ones are rejected";
    assert_eq!(shown, expected);
    let json = serde_json::to_value(items("a.csv", table, &[]).unwrap()).unwrap();
    let certainties = [&json["fields"][0]["certainty"], &json["fields"][1]["certainty"]];
    assert_eq!(certainties, ["unsure", "sure"], "an id comes twice in three rows");
    assert_eq!(json["fields"][0]["examples"], serde_json::json!(["1", "2"]));
}

#[test]
fn names_of_log_columns_in_many_spellings() {
    let row = "2025-07-31 22:00:20,s1,oak desk,7,1,click";
    for header in [
        "timestamp,session,search_term,product_id,rank,event",
        "Event Time,visitorId,Query,itemID,Position,Action",
        "ts,user_id,keyword,sku,pos,event_type",
        "datetime,clientId,q,asin,ordinal,interaction",
    ] {
        let guess = log("a.csv", &format!("{header}\n{row}\n{row}\n"), &[]).unwrap();
        let fields: Vec<&str> = guess.fields.iter().map(|guess| guess.field.as_str()).collect();
        assert_eq!(fields, ["time", "session", "query", "item", "event", "position"], "{guess}");
        assert!(guess.fields.iter().all(|guess| guess.certainty == Certainty::Sure), "{guess}");
        assert!(guess.notes.is_empty(), "{guess}");
    }
}

#[test]
fn values_tell_the_columns_of_a_log_without_a_header() {
    let mut rows = String::new();
    for search in 0..4 {
        for rank in 1..=5 {
            let item = 1000 + search * 7 + rank * 3;
            rows += &format!("2025-07-31 22:0{search}:20,s{search}9,oak desk {search},{item},{rank},impression\n");
        }
        rows += &format!("2025-07-31 22:0{search}:40,s{search}9,oak desk {search},{},1,click\n", 1003 + search * 7);
    }
    let guess = log("a.csv", &rows, &[]).unwrap();
    assert_eq!(guess.columns(), "time=0,session=1,query=2,item=3,event=5,position=4");
    // seconds since 1970 are in order; article numbers of ten digits are not
    let clicks =
        "1753999220,4006381333931,oak desk\n1753999225,4006381333924,red lamp\n1753999300,4006381333917,oak desk\n";
    let guess = log("a.csv", clicks, &[]).unwrap();
    assert_eq!(guess.columns(), "time=0,query=2,item=1");
    let expected = [
        "no session: rows with the same query count as one search until a gap of 30 minutes",
        "no event column: every row is a click",
    ];
    assert_eq!(guess.notes, expected);
}

#[test]
fn logs_with_flags_two_time_columns_or_records() {
    let flags = "date,time,user,query,item,clicked,purchased\n2025-07-31,22:00:20,u,desk,7,0,0\n2025-07-31,22:00:21,u,desk,8,1,1\n";
    let guess = log("a.csv", flags, &[]).unwrap();
    assert_eq!(
        guess.columns(),
        "time=date,time=time,session=user,query=query,item=item,click=clicked,purchase=purchased"
    );
    assert_eq!(guess.notes, ["every row is an impression, and also a click or a purchase where that column says so"]);
    let record = "{\"query_id\":\"a\",\"user_query\":\"tv\",\"timestamp\":1,\"query_response_hit_ids\":[]}\n";
    assert_eq!(log("a.ndjson", record, &[]).unwrap().layout, "UBI 1.3, JSON lines");
    let flat = "{\"query\":\"tv\",\"product_id\":7,\"ts\":1753999220}\n{\"query\":\"tv\",\"product_id\":8,\"ts\":1753999221}\n";
    let guess = log("a.ndjson", flat, &[]).unwrap();
    assert_eq!(
        (guess.layout.as_str(), guess.columns().as_str()),
        ("JSON lines", "time=ts,query=query,item=product_id")
    );
    let error = log("a.csv", flags, &["brand=user"]).unwrap_err().to_string();
    assert!(error.contains("--columns has no field `brand`: use time, session, query, item, event"), "{error}");
}

#[test]
fn dates_and_unreadable_times() {
    let of = |times: [&str; 2]| log("a.csv", &format!("time,query,item\n{},tv,7\n{},tv,8\n", times[0], times[1]), &[]);
    let day = of(["03/04/2025 10:00", "13/04/2025 10:00"]).unwrap();
    assert_eq!(day.notes[0], "the day comes first in its dates");
    let unclear = of(["03/04/2025 10:00", "03/04/2025 10:00"]).unwrap();
    assert!(unclear.notes[0].contains("as far as the first rows tell"), "{unclear}");
    let error = of(["31 Juli 2025", "32 Juli 2025"]).unwrap_err().to_string();
    assert!(
        error.contains("its times cannot be read, such as 31 Juli 2025 | 32 Juli 2025. Souk reads ISO 8601"),
        "{error}"
    );
    assert!(error.ends_with("--columns time=COLUMN"), "{error}");
}

#[test]
fn files_of_a_folder_share_a_guess_where_they_have_the_columns() {
    let home = tempfile::tempdir().unwrap();
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    packed.write_all(b"sku,name\n3,Vase\n").unwrap();
    fs::write(home.path().join("b.csv.gz"), packed.finish().unwrap()).unwrap();
    let files = [
        file(&home, "a.csv", "sku,name\n1,Oak desk\n"),
        home.path().join("b.csv.gz"),
        file(&home, "c.csv", ""),
        file(&home, "d.csv", "sku,name\n"),
        file(&home, "e.tsv", "title\tid\nLamp\t4\n"),
        file(&home, "f.jsonl", "{\"product_id\":5,\"title\":\"Rug\"}\n"),
    ];
    let guesses = item_guesses(&files, &options(&[])).unwrap();
    let columns: Vec<String> = guesses.files.iter().map(Guess::columns).collect();
    let same = "id=sku,title=name";
    assert_eq!(columns, [same, same, "id=id,title=title", "id=product_id,title=title"]);
    assert_eq!(guesses.to_string().lines().last(), Some("4 files"));
    let empty = item_guesses(&files[2..3], &options(&[])).unwrap_err().to_string();
    assert!(empty.ends_with("c.csv: is empty: it has no rows"), "{empty}");
    assert!(item_guesses(&files[2..4], &options(&[])).unwrap_err().to_string().ends_with("is empty: it has no rows"));
}

#[test]
fn files_that_hold_no_rows_say_what_they_are() {
    let error = items("a.json", "{\n  \"id\": 1\n}\n", &[]).unwrap_err().to_string();
    assert!(error.contains("line 1: its lines are not rows: not a JSON object"), "{error}");
    let error = items("a.csv", "sku,name\n1,Oak desk,5\n2,Lamp,6\n", &[]).unwrap_err().to_string();
    assert!(error.contains("line 2: its lines are not rows: wrong number of columns (3 instead of 2)"), "{error}");
    for array in ["[{\"id\":1,\"title\":\"Oak desk\"}]", "[\n  {\"id\":1,\n\"title\":\"Oak desk\"}\n]"] {
        let guess = items("a.json", array, &[]).unwrap();
        assert_eq!((guess.layout.as_str(), guess.columns().as_str()), ("JSON array", "id=id,title=title"));
    }
    let bracket = items("a.csv", "[x],name\n7,Oak desk\n8,Red lamp\n", &["id=0"]).unwrap();
    assert_eq!(bracket.columns(), "id=[x],title=name");
}
