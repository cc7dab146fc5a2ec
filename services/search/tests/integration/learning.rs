//! `/training` and `/rounds` of a service whose trainer is away, is something else, or is only a folder; and the map.

use std::collections::HashSet;
use std::fs;

use axum::Router;
use axum::routing::get;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::client::{Running, shop};

/// Address of a server with these routes.
async fn server(router: Router) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    format!("http://{address}")
}

async fn with_training(home: &std::path::Path, place: &str) -> Running {
    Running::start(home, &[&format!("search.training={place}")]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trainer_that_does_not_answer_is_an_error_that_says_so() {
    let closed = {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    };
    let other = server(Router::new()).await;
    let strange = server(Router::new().route("/rounds", get(async || "{\"rounds\": 7}"))).await;
    let cases = [(&closed, "refused"), (&other, "is not the address of a trainer"), (&strange, "of another version")];
    for (place, words) in cases {
        let home = shop();
        let running = with_training(home.path(), place).await;
        let answer = running.get("/rounds").await;
        assert_eq!(answer.status, 503, "{}", answer.body);
        assert!(answer.body.contains("search.training") && answer.body.contains(words), "{}", answer.body);
        // the rest of the service does not need it
        assert_eq!(running.get("/models").await.status, 200);
        running.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_has_curves_and_no_rounds() {
    let home = shop();
    fs::write(home.path().join("steps.jsonl"), "{\"step\":1,\"loss\":3.5,\"learning_rate\":0.1}\n").unwrap();
    let running = with_training(home.path(), &home.path().display().to_string()).await;
    let training = running.get("/training").await.json();
    assert_eq!((&training["log"]["loss"], &training["now"]), (&json!([[1.0, 3.5]]), &Value::Null));
    assert_eq!(running.get("/rounds").await.json(), json!({"rounds": null}));
    assert_eq!(running.get("/rounds/1").await.status, 404);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_map_has_each_item_that_is_there_once() {
    let home = shop();
    let running = Running::start(home.path(), &[]).await;
    running.ask("DELETE /items/i3", json!({})).await;
    let map = running.get("/map?field=brand").await.json();
    let points = map["points"].as_array().unwrap();
    let ids: HashSet<&str> = points.iter().map(|point| point["id"].as_str().unwrap()).collect();
    assert_eq!((points.len(), ids.len()), (map["num_items"].as_u64().unwrap() as usize, points.len()));
    assert!(!ids.contains("i3"));
    let places = points.iter().flat_map(|point| [&point["x"], &point["y"]]).map(|place| place.as_f64().unwrap());
    assert!(places.clone().all(|place| (0.0..=1.0).contains(&place)) && places.fold(0.0, f64::max) > 0.9);
    let item = running.get("/items/i5").await.json();
    let point = points.iter().find(|point| point["id"] == "i5").unwrap();
    assert_eq!((&point["title"], &point["group"]), (&item["title"], &item["brand"]));
    // two callers at once get one map
    let (first, second) = tokio::join!(running.get("/map"), running.get("/map"));
    assert_eq!(first.json(), second.json());
    running.stop().await;
}
