//! Checks before every route, on a real socket: foreign origins, slow bodies, and request ids.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::middleware::from_fn_with_state;
use axum::response::Response;
use axum::routing::{get, post};
use serde_json::{Value, json};
use souk_http::{
    Endpoint, Entrance, Fault, Front, FrontLimits, Gate, Keys, Role, admit, json_body, read, record, run, serve,
    shed_load,
};
use souk_io::telemetry::RELEVANCE_REQUESTS;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};

use souk_testing::http_client::{answer, ask};

/// Service with one slot behind the gate; it echoes its request.
async fn service(keys: &str) -> SocketAddr {
    LazyLock::force(&LOG);
    let limits = FrontLimits { max_requests: 8, max_bytes: 1000, body_seconds: 10 };
    let front = Arc::new(Front::new(Keys::parse(keys).unwrap(), limits, &RELEVANCE_REQUESTS));
    let echo = async |request: Request| -> Result<Response, Fault> { Ok(json_body(&read::<Value>(request).await?)) };
    let fails = async || Fault::from(souk_io::Error::device("it is broken"));
    let operated = Router::new()
        .route("/operate", post(async || "done"))
        .route_layer(from_fn_with_state((front.clone(), Role::Operate), admit));
    let router = Router::new()
        .route("/echo", post(echo))
        .route_layer(from_fn_with_state(Arc::new(Gate::new(1, 1, 1.5)), shed_load))
        .route_layer(from_fn_with_state((front.clone(), Role::Search), admit))
        .merge(operated)
        .route("/fails", get(fails))
        .layer(from_fn_with_state(front, record));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(run(listener, router, None, std::future::pending()));
    address
}

#[tokio::test]
async fn a_page_from_elsewhere_is_refused_where_no_key_is_asked_for() {
    let (open, keyed) = (service("").await, service("key").await);
    let body = br#"{"a": 1}"#;
    let foreign = ask(open, "POST /echo", "Origin: https://evil.example\r\n", body).await;
    assert_eq!((foreign.status, &foreign.error()["code"]), (403, &json!("foreign")));
    // same origin: the client calls the service `souk`
    for own in ["", "Origin: http://souk\r\n", "Origin: https://souk\r\n"] {
        assert_eq!(ask(open, "POST /echo", own, body).await.status, 200, "{own}");
    }
    // a foreign page does not know the key; one that does may come from any origin
    let origin = "Origin: https://shop.example\r\n";
    assert_eq!(ask(keyed, "POST /echo", origin, body).await.status, 401);
    let key = format!("{origin}Authorization: Bearer key\r\n");
    assert_eq!(ask(keyed, "POST /echo", &key, body).await.status, 200);
}

#[tokio::test]
async fn a_body_that_dawdles_keeps_nobody_who_is_in_a_hurry_waiting() {
    let address = service("").await;
    let body = br#"{"a": 1}"#;
    let head = "POST /echo HTTP/1.1\r\nHost: souk\r\nConnection: close\r\nContent-Length: 8\r\n\r\n";
    let mut all_slow = Vec::new();
    for _ in 0..20 {
        let mut slow = TcpStream::connect(address).await.unwrap();
        slow.write_all(&[head.as_bytes(), &body[..4]].concat()).await.unwrap();
        all_slow.push(slow);
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(ask(address, "POST /echo", "", body).await.status, 200, "all eight places and the gate's one are free");
    let mut slow = all_slow.remove(0);
    slow.write_all(&body[4..]).await.unwrap();
    let slow = answer(&mut slow).await;
    assert_eq!((slow.status, slow.json()), (200, json!({"a": 1})));
    // bodies on their way have no more memory than those of eight requests
    let head = "POST /echo HTTP/1.1\r\nHost: souk\r\nConnection: close\r\nContent-Length: 1000\r\n\r\n";
    for _ in 0..8 {
        let mut slow = TcpStream::connect(address).await.unwrap();
        slow.write_all(&[head.as_bytes(), &[b' '; 980]].concat()).await.unwrap();
        all_slow.push(slow);
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    let busy = ask(address, "POST /echo", "", &[b' '; 900]).await;
    assert_eq!((busy.status, busy.header("retry-after")), (429, Some("1")), "{}", busy.body);
    drop(all_slow);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(ask(address, "POST /echo", "", body).await.status, 200);
    // bodies that are too large or not JSON still get their own error
    assert_eq!(ask(address, "POST /echo", "", &[b'1'; 2000]).await.status, 413);
    assert_eq!(ask(address, "POST /echo", "", b"{").await.status, 400);
}

#[tokio::test]
async fn metrics_can_have_an_address_of_their_own() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let serving = tokio::spawn(async move {
        let address = free.to_string();
        let entrance = Entrance {
            section: "test",
            listen: "127.0.0.1:0",
            metrics_listen: Some(&address),
            tls: None,
            key_file: None,
            key_variable: "SOUK_NO_SUCH_KEYS",
            allow_no_keys: false,
        };
        let open = async |_: Endpoint, _: Keys| Ok((Router::new().route("/", get(async || "here")), ()));
        let ready = |endpoint: Endpoint, (): &()| {
            sender.send(endpoint.address).unwrap();
            Ok(())
        };
        serve(&entrance, open, ready).await
    });
    let address = receiver.await.unwrap();
    assert_eq!(ask(address, "GET /metrics", "", b"").await.status, 404);
    let metrics = ask(free, "GET /metrics", "", b"").await;
    assert_eq!(metrics.status, 200, "{}", metrics.body);
    assert_eq!(ask(free, "GET /", "", b"").await.status, 404, "nothing else is there");
    serving.abort();
}

#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Log of all tests, written from the first request on: a span that is entered before there is a log stays disabled.
static LOG: LazyLock<Written> = LazyLock::new(|| {
    let written = Written::default();
    let writer = written.clone();
    let subscriber = tracing_subscriber::fmt().json().with_writer(move || writer.clone()).finish();
    tracing::subscriber::set_global_default(subscriber).unwrap();
    written
});

fn logged() -> Vec<Value> {
    let text = String::from_utf8(LOG.0.lock().unwrap().clone()).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The log says which key asked for what only operators may do, and not what others asked for.
#[tokio::test]
async fn requests_of_operators_are_audited() {
    let address = service("night-shift=operate:ops-key shop=search:shop-key").await;
    let status = async |route: &str, id: &str, key: &str| {
        let headers = format!("X-Request-Id: {id}\r\nAuthorization: Bearer {key}\r\n");
        ask(address, route, &headers, b"{}").await.status
    };
    assert_eq!(status("POST /operate", "audited-1", "ops-key").await, 200);
    assert_eq!(status("POST /operate", "audited-2", "shop-key").await, 403);
    assert_eq!(status("POST /echo", "audited-3", "shop-key").await, 200);
    let audited = logged().into_iter().filter(|line| line["target"] == "audit");
    let audited: Vec<Value> = audited.filter(|line| line["fields"]["key"] == "night-shift").collect();
    assert_eq!(audited.len(), 1, "{audited:?}");
    let fields = &audited[0]["fields"];
    assert_eq!((&fields["method"], &fields["path"]), (&json!("POST"), &json!("/operate")));
    assert_eq!(audited[0]["span"]["id"], "audited-1");
    assert!(!logged().iter().any(|line| line["target"] == "audit" && line["fields"]["key"] == "shop"));
}

#[tokio::test]
async fn logs_name_the_request_and_its_route() {
    let address = service("").await;
    assert_eq!(ask(address, "GET /fails", "X-Request-Id: mine-7\r\n", b"").await.status, 500);
    let line = logged().into_iter().find(|line| line["fields"]["message"] == "request failed").unwrap();
    assert_eq!((&line["span"]["id"], &line["span"]["route"]), (&json!("mine-7"), &json!("/fails")));
}
