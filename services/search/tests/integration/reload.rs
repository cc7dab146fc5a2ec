//! SIGHUP: a running service reads its settings again, and one mistake in them changes nothing.

use std::fs;
use std::path::Path;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::client::{HttpResponse, Process, TIMEOUT, golden, shop, try_ask};

fn write(file: &Path, home: &Path, more: &str) {
    let (data, state, model) = (home.join("data"), home.join("state"), golden("st_mean_dense"));
    let text = format!(
        "model.path = {model:?}\nstore.database = \"sqlite:{}\"\n[search]\nlisten = \"127.0.0.1:0\"\nversion = \"first\"\n\
         data = {data:?}\nstate = {state:?}\n{more}",
        home.join("souk.db").display()
    );
    fs::write(file, text).unwrap();
}

async fn send(process: &Process, route: &str, body: &Value) -> HttpResponse {
    try_ask(process.address, route, body.to_string().as_bytes()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn hangup_reads_the_settings_again() {
    let home = shop();
    let file = home.path().join("souk.toml");
    write(&file, home.path(), "");
    let process = Process::with_file(&file);
    let second = json!({"version": "second", "path": golden("st_cls")});
    assert_eq!(send(&process, "POST /models", &second).await.status, 200);
    let query = json!({"query": "red lamp", "client_id": "a"});
    assert_eq!(send(&process, "POST /search", &query).await.json()["experiment"], Value::Null);
    assert_eq!(send(&process, "POST /models/second/promote", &json!({})).await.status, 409, "it has no report");

    // with a mistake, the former settings stay
    write(&file, home.path(), "promote_unmeasured = 3\n");
    process.signal(Signal::SIGHUP);
    sleep(Duration::from_millis(300)).await;
    assert_eq!(send(&process, "POST /models/second/promote", &json!({})).await.status, 409);

    let experiment = "[[search.experiments]]\nname = \"new\"\ntype = \"ab\"\nleft = \"dense\"\nright = \"lexical\"\n";
    write(&file, home.path(), &format!("promote_unmeasured = true\n{experiment}"));
    process.signal(Signal::SIGHUP);
    let began = Instant::now();
    while send(&process, "POST /search", &query).await.json()["experiment"].is_null() {
        assert!(began.elapsed() < TIMEOUT, "the experiment did not begin");
        sleep(Duration::from_millis(50)).await;
    }
    let promoted = send(&process, "POST /models/second/promote", &json!({})).await;
    assert!(matches!(promoted.status, 200 | 202), "{}", promoted.body);
    process.stop();
}
