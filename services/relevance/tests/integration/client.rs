//! A relevance service on a real socket.

#![allow(dead_code, reason = "each test uses its part")]

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use souk::backbone::Precision;
use souk::cross_encoder::{CrossEncoder, ServeSettings};
use souk::encoder::Placement;
use souk_http::Keys;
use souk_relevance::{JudgeBackend, Service, run};
use tch::Device;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

#[allow(unused_imports, reason = "each test uses its part")]
pub use souk_testing::http_client::{HttpResponse, TIMEOUT, answer};
use souk_testing::http_client::{ask, send};

pub struct Running {
    pub address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    ended: JoinHandle<std::io::Result<()>>,
}

pub fn golden() -> PathBuf {
    souk_testing::golden("rel_bert")
}

pub fn model() -> CrossEncoder {
    let placement =
        Placement { device: Device::Cpu, precision: Precision::F32, adapter: None, ignore_fields: Vec::new() };
    CrossEncoder::open(&golden(), placement).unwrap().freeze().unwrap()
}

impl Running {
    pub async fn start(judge: JudgeBackend, keys: Keys, settings: ServeSettings) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, asked) = oneshot::channel();
        let service = Arc::new(Service::new(judge, keys, &settings).unwrap());
        let ended = tokio::spawn(run(listener, service, async move { drop(asked.await) }));
        Self { address, stop: Some(stop), ended }
    }

    pub async fn of_model(settings: ServeSettings) -> Self {
        let judge = JudgeBackend::of_model(model(), settings.worker).unwrap();
        Self::start(judge, Keys::default(), settings).await
    }

    pub async fn post(&self, path: &str, body: &[u8]) -> HttpResponse {
        self.post_with(path, "", body).await
    }

    pub async fn post_with(&self, path: &str, headers: &str, body: &[u8]) -> HttpResponse {
        ask(self.address, &format!("POST {path}"), headers, body).await
    }

    pub async fn get(&self, path: &str) -> HttpResponse {
        ask(self.address, &format!("GET {path}"), "", b"").await
    }

    pub async fn send(&self, bytes: &[u8]) -> HttpResponse {
        send(self.address, bytes).await
    }

    pub async fn stop(mut self) {
        drop(self.stop.take());
        timeout(TIMEOUT, &mut self.ended).await.unwrap().unwrap().unwrap();
    }
}
