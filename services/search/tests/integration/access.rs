//! Every route is asked with every role. A nearly full disk makes the service read-only.

use serde_json::json;

use crate::client::{Running, shop};

/// Role that a route needs.
fn role_of(route: &str) -> &'static str {
    match route {
        "POST /votes" => "vote",
        "POST /events" => "events",
        "PUT /items" | "PATCH /items/id" | "DELETE /items/id" | "POST /items/bulk" => "write",
        "POST /models" | "POST /models/version/promote" | "POST /models/rollback" => "operate",
        _ => "search",
    }
}

/// Every route that asks for a key is asked with every role, without a key and with a wrong one.
#[tokio::test(flavor = "multi_thread")]
async fn roles_restrict_routes() {
    let home = shop();
    let roles = ["search", "vote", "events", "write", "operate"];
    let keys = roles.map(|role| format!("{role}:{role}-key")).join(" ") + " plain admin:admin-key";
    let running = Running::with_keys(home.path(), &[], &keys).await;
    let status = async |route: &str, key: &str| {
        let header = if key.is_empty() { String::new() } else { format!("Authorization: Bearer {key}\r\n") };
        let body = if route.starts_with("GET") { "" } else { "{" };
        running.ask_with(route, &header, body.as_bytes()).await.status
    };
    let document = running.get("/openapi.json").await.json();
    let (mut num_keyed, mut num_open) = (0, 0);
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap().iter().filter(|(method, _)| *method != "parameters") {
            let route = format!("{} {}", method.to_uppercase(), path.replace(['{', '}'], ""));
            if operation.get("security").is_none() {
                assert!(status(&route, "").await < 400 || ["/readyz", "/health"].contains(&path.as_str()), "{route}");
                num_open += 1;
                continue;
            }
            num_keyed += 1;
            for key in ["", "wrong", "search:search-key"] {
                assert_eq!(status(&route, key).await, 401, "{route} with `{key}`");
            }
            for role in roles {
                let is_refused = status(&route, &format!("{role}-key")).await == 403;
                assert_eq!(is_refused, role != role_of(&route), "{route} with the role {role}");
            }
            let is_plain = ["search", "vote", "events"].contains(&role_of(&route));
            assert_eq!(status(&route, "plain").await == 403, !is_plain, "{route}");
            assert!(![401, 403].contains(&status(&route, "admin-key").await), "{route}");
        }
    }
    assert!(num_keyed >= 20 && num_open == 4, "{num_keyed} keyed, {num_open} open");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_nearly_full_disk_makes_the_service_read_only() {
    let home = shop();
    let running = Running::start(home.path(), &["search.free_bytes=1000000000000000000"]).await;
    let item = json!({"id": "new", "title": "new"});
    for (route, body) in [
        ("PUT /items", json!({"items": [item]})),
        ("POST /items/bulk", item.clone()),
        ("PATCH /items/i3", json!({"price": 1})),
        ("DELETE /items/i3", json!(null)),
    ] {
        let refused = running.ask(route, body).await;
        assert_eq!((refused.status, &refused.error()["code"]), (503, &json!("read_only")), "{route}");
    }
    assert_eq!(running.ids(json!({"query": "lamp", "k": 3})).await.len(), 3, "searches continue");
    assert_eq!(running.get("/items/i3").await.status, 200);
    let metrics = running.get("/metrics").await.body;
    assert!(metrics.contains("souk_search_free_bytes"), "{metrics}");
    running.stop().await;
}
