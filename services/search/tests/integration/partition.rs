//! A replica whose network to the stream is cut: it says that it is behind, is not ready, still answers searches, and catches
//! up alone when the network is back.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use serde_json::json;
use souk::catalogue_stream::Mutation;
use souk::store::Ledger;
use souk_testing::databases::{ledger, on_postgres};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Duration, sleep};

use crate::client::{HttpResponse, Running, TIMEOUT, shop};

/// A network path to a server that can be cut: packets then get lost, and no connection is refused.
struct Network {
    address: SocketAddr,
    is_cut: Arc<AtomicBool>,
}

impl Network {
    async fn to(server: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, is_cut) = (listener.local_addr().unwrap(), Arc::new(AtomicBool::new(false)));
        let cut = is_cut.clone();
        tokio::spawn(async move {
            loop {
                let (near, far) = (listener.accept().await.unwrap().0, TcpStream::connect(&server).await.unwrap());
                let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
                tokio::spawn(carry(near_in, far_out, cut.clone()));
                tokio::spawn(carry(far_in, near_out, cut.clone()));
            }
        });
        Self { address, is_cut }
    }
}

async fn carry(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    is_cut: Arc<AtomicBool>,
) -> std::io::Result<()> {
    let mut bytes = vec![0; 1 << 16];
    loop {
        let num = from.read(&mut bytes).await?;
        while is_cut.load(Ordering::Relaxed) {
            sleep(Duration::from_millis(10)).await;
        }
        if num == 0 {
            return to.shutdown().await;
        }
        to.write_all(&bytes[..num]).await?;
    }
}

/// The answer of `/readyz` once it has this status.
async fn until_ready_is(running: &Running, status: u16) -> HttpResponse {
    let began = Instant::now();
    loop {
        let ready = running.get("/readyz").await;
        if ready.status == status {
            return ready;
        }
        assert!(began.elapsed() < TIMEOUT, "{}", ready.body);
        sleep(Duration::from_millis(50)).await;
    }
}

#[test]
fn a_cut_replica_is_not_ready_and_catches_up_alone() {
    on_postgres("partition::a_cut_replica_is_not_ready_and_catches_up_alone", async |url| {
        let direct = ledger(&url).await;
        let (before, rest) = url.split_once('@').unwrap();
        let (server, rest) = rest.split_once('/').unwrap();
        let network = Network::to(server.to_owned()).await;
        let database = format!("store.database={before}@{}/{rest}", network.address);
        let home = shop();
        let running = Running::start(home.path(), &[&database, "search.max_behind_seconds=1"]).await;
        until_ready_is(&running, 200).await;
        network.is_cut.store(true, Ordering::Relaxed);
        let put = Mutation::parse(br#"{"_id":"new","title":"green canoe"}"#, "test".as_ref(), 1).unwrap();
        let at = direct.append_changes(&[put]).await.unwrap();
        let ready = until_ready_is(&running, 503).await;
        assert!(ready.body.contains("behind the catalogue for"), "{}", ready.body);
        assert_eq!(running.ids(json!({"query": "red lamp", "k": 3})).await.len(), 3);
        assert_eq!(running.get("/items/new").await.status, 404);
        network.is_cut.store(false, Ordering::Relaxed);
        let ready = until_ready_is(&running, 200).await.json();
        assert_eq!((ready["catalogue"].as_u64(), ready["catalogue_end"].as_u64()), (Some(at), Some(at)));
        assert_eq!(running.get("/items/new").await.json()["title"], "green canoe");
        running.stop().await;
    });
}
