//! `souk doctor`: passing and failing checks.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use souk_testing::small_shop::{ITEMS, messages, model, shop};

/// Part, result and message of each check, and the exit code.
fn doctor(home: &Path, more: &[&str]) -> (Vec<(String, bool, String)>, i32) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_souk-engine"));
    command
        .current_dir(home)
        .env_remove("RUST_LOG")
        .args(["doctor", "--json", "--data", "data", "--model"])
        .arg(model());
    for set in ["trainer.listen=127.0.0.1:0", "search.listen=127.0.0.1:0", "trainer.stage=[{name=\"sft\"}]"] {
        command.args(["--set", set]);
    }
    let output = command.args(more).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let found: Vec<Value> = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
    let text = |finding: &Value, name: &str| finding[name].as_str().unwrap().to_owned();
    let found = found.iter().map(|one| (text(one, "part"), one["ok"].as_bool().unwrap(), text(one, "said"))).collect();
    (found, output.status.code().unwrap())
}

#[test]
fn reports_each_check() {
    let home = shop();
    let log: String = messages(0..ITEMS).map(|(_, line)| line + "\n").collect();
    std::fs::write(home.path().join("log.ndjson"), log).unwrap();
    let judge = ["--set", "judge.type=qrels", "--set", "judge.split=test"];
    let (found, code) = doctor(home.path(), &[&["--from", "log.ndjson"][..], &judge].concat());
    let bad: Vec<_> = found.iter().filter(|(_, ok, _)| !ok).collect();
    assert!(bad.is_empty() && code == 0, "{bad:?}");
    let parts =
        ["device", "clock", "disk", "model", "data", "log", "ledger", "cache", "judge", "judgements", "trainer"];
    for part in parts {
        assert!(found.iter().any(|(name, ..)| name == part), "no check of {part}");
    }
    let occupied = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = format!("search.listen={}", occupied.local_addr().unwrap());
    let wrong = [
        ("log", vec!["--from", "gone.ndjson"], "gone.ndjson"),
        ("cache", vec!["--set", "store.cache=redis://127.0.0.1:9/0"], "that the server is running"),
        ("search.listen", vec!["--set", &listen], "check whether it is already running"),
        ("trainer", vec!["--set", "trainer.gate.watched=[\"hits\"]"], "names `hits`"),
    ];
    for (part, more, words) in wrong {
        let (found, code) = doctor(home.path(), &[&more[..], &judge].concat());
        let (_, ok, message) = found.iter().find(|(name, ..)| name == part).unwrap();
        assert!(!ok && code == 1 && message.contains(words), "{part}: {message}");
    }
}

/// The message of a check that failed.
fn failure(home: &Path, part: &str, more: &[&str]) -> String {
    let (found, code) = doctor(home, more);
    let (_, ok, message) =
        found.iter().find(|(name, ..)| name == part).unwrap_or_else(|| panic!("no {part}: {found:?}"));
    assert!(!ok && code == 1, "{message}");
    message.clone()
}

#[test]
fn opens_the_judge_of_every_stage() {
    let home = shop();
    let r_grpo = "set=[\"objective.type=r_grpo\"]";
    let stages = format!("trainer.stage=[{{name=\"sft\"}}, {{name=\"rgrpo\", {r_grpo}}}]");
    let message = failure(home.path(), "judge of rgrpo", &["--set", &stages]);
    assert!(
        message.contains("the stage `rgrpo` learns from a judge") && message.contains("set [judge] type"),
        "{message}"
    );

    let written = r_grpo.replace(']', ", \"judge.type=qrels\", \"judge.split=gone\"]");
    let stages = format!("trainer.stage=[{{name=\"rgrpo\", {written}}}]");
    let judge = ["--set", "judge.type=qrels", "--set", "judge.split=test", "--set", &stages];
    let (found, _) = doctor(home.path(), &judge);
    let outcome = |part: &str| found.iter().find(|(name, ..)| name == part).map(|(_, ok, _)| *ok);
    assert_eq!((outcome("judge of rgrpo"), outcome("judge")), (Some(false), Some(true)), "{found:?}");

    let stages = format!("trainer.stage=[{{name=\"sft\"}}, {{name=\"rgrpo\", {r_grpo}}}]");
    let (found, code) =
        doctor(home.path(), &["--set", "judge.type=qrels", "--set", "judge.split=test", "--set", &stages]);
    let judges: Vec<_> = found.iter().filter(|(part, ..)| part.starts_with("judge of")).collect();
    assert!(code == 0 && judges.len() == 1 && judges[0].1, "{found:?}");
}

#[test]
fn a_template_with_a_field_that_no_item_has_fails() {
    let home = shop();
    let message = failure(home.path(), "data", &["--set", "encoder.item_text=\"{title} {brnad}\""]);
    assert!(message.contains("encoder.item_text") && message.contains("`brnad`"), "{message}");
}

#[test]
fn reads_the_judgements_of_the_gate() {
    let home = shop();
    let (found, _) = doctor(home.path(), &[]);
    let (_, ok, message) = found.iter().find(|(part, ..)| part == "judgements").unwrap();
    assert!(*ok && message.contains(&format!("{ITEMS} judgements of {ITEMS} queries")), "{message}");
    let message = failure(home.path(), "judgements", &["--set", "trainer.gate.splits=[\"dev\"]"]);
    assert!(message.contains("qrels/dev.tsv does not exist") && message.contains("the folder has test"), "{message}");
    let (found, _) = doctor(home.path(), &["--set", "trainer.gate={source=\"log\", splits=[\"dev\", \"test\"]}"]);
    let judgements: Vec<_> = found.iter().filter(|(part, ..)| part == "judgements").collect();
    assert!(judgements.len() == 2 && judgements[0].2.contains("newest days of the log"), "{judgements:?}");
    std::fs::write(home.path().join("data/qrels/test.tsv"), "gone\td1\t4\n").unwrap();
    let message = failure(home.path(), "judgements", &[]);
    assert!(message.contains("judges 1 queries that are not in queries.jsonl, such as `gone`"), "{message}");
}

/// A server stopped on drop.
struct Stopped(std::process::Child);

impl Drop for Stopped {
    fn drop(&mut self) {
        drop((self.0.kill(), self.0.wait()));
    }
}

/// Redis with TLS; SSL_CERT_FILE names an authority of one's own.
#[test]
fn a_cache_with_tls_is_used() {
    let home = shop();
    let file = |name: &str| home.path().join(name);
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(file("certificate.pem"), made.cert.pem()).unwrap();
    std::fs::write(file("key.pem"), made.signing_key.serialize_pem()).unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut server = Command::new("redis-server");
    server.args(["--port", "0", "--tls-port", &port.to_string(), "--tls-auth-clients", "no", "--save", ""]);
    server.arg("--tls-cert-file").arg(file("certificate.pem")).arg("--tls-key-file").arg(file("key.pem"));
    server.arg("--tls-ca-cert-file").arg(file("certificate.pem"));
    let _server = Stopped(server.current_dir(home.path()).stdout(std::process::Stdio::null()).spawn().unwrap());
    let began = std::time::Instant::now();
    while std::net::TcpStream::connect(("localhost", port)).is_err() {
        assert!(began.elapsed().as_secs() < 20, "the server does not start");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let checked = |trusted: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_souk-engine"));
        command.current_dir(home.path()).env_remove("RUST_LOG").env("SSL_CERT_FILE", file(trusted));
        command.args([
            "doctor",
            "--json",
            "--data",
            "data",
            "--set",
            &format!("store.cache=rediss://localhost:{port}/0"),
        ]);
        let found: Vec<Value> = serde_json::from_slice(&command.output().unwrap().stdout).unwrap();
        let cache = found.iter().find(|finding| finding["part"] == "cache").unwrap();
        (cache["ok"].as_bool().unwrap(), cache["said"].to_string())
    };
    let (is_ok, said) = checked("certificate.pem");
    assert!(is_ok, "{said}");
    let other = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(file("other.pem"), other.cert.pem()).unwrap();
    let (is_ok, said) = checked("other.pem");
    assert!(!is_ok, "a server that nobody vouches for: {said}");
}
