//! A state folder and a ledger that an earlier version wrote can be served: `tests/golden/formats/search` has both. To write them
//! anew, remove that folder and set `REGENERATE=1`.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;
use souk_testing::copy_folder;

use crate::client::{NUM, Running, config, golden, item, ledger_is_closed, shop};

/// Relative to this package, so that no path of a machine is stored.
const MODEL: &str = "model.path=../../tests/golden/st_mean_dense";

fn kept() -> PathBuf {
    golden("formats/search")
}

async fn write(home: &Path) {
    let running = Running::start(home, &[MODEL]).await;
    running.ask("PUT /items", json!({"items": [{"id": "new", "title": "purple chandelier", "price": 7}]})).await;
    running.ask("PATCH /items/i3", json!({"price": 1})).await;
    running.ask("DELETE /items/i4", json!(null)).await;
    running.stop().await;
    copy_folder(&home.join("state"), &kept().join("state"));
    ledger_is_closed(home).await;
    fs::copy(home.join("souk.db"), kept().join("souk.db")).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn state_of_an_earlier_version_is_served() {
    let home = shop();
    if std::env::var_os("REGENERATE").is_some() && !kept().exists() {
        write(shop().path()).await;
    }
    copy_folder(&kept(), home.path());
    // nothing can be built again
    fs::remove_dir_all(home.path().join("data")).unwrap();
    let running = Running::of(&config(home.path(), &[MODEL]), "").await.unwrap();
    assert_eq!(running.service.serving.served().record().generation, "first-1");
    assert_eq!(running.get("/fields").await.json()["num_items"].as_u64(), Some(NUM as u64));
    assert_eq!(running.ids(json!({"query": "purple chandelier", "k": 1, "hybrid": true})).await, ["new"]);
    assert_eq!(running.get("/items/i3").await.json()["price"], 1);
    assert_eq!(running.get("/items/i4").await.status, 404);
    let (found, expected) = (running.get("/items/i5").await.json(), item(5));
    assert_eq!(found["title"], expected["title"]);
    // and it goes on from there
    let put = running.ask("PUT /items", json!({"items": [{"id": "newer", "title": "green sofa"}]})).await;
    assert_eq!((put.status, put.json()["catalogue"].as_u64()), (200, Some(4)), "{}", put.body);
    assert_eq!(running.get("/items/newer").await.status, 200);
    running.stop().await;
}
