//! TLS: connections whose handshakes happen beside each other, so that one that dawdles keeps nobody waiting.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::serve::Listener;
use souk::search::Tls;
use souk::{Error, Result};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{Receiver, channel};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::server::TlsStream;

const HANDSHAKE: Duration = Duration::from_secs(10);
const MOST_HANDSHAKES: usize = 256;

/// What shakes hands as the certificate says.
pub(crate) fn acceptor(tls: &Tls) -> Result<TlsAcceptor> {
    let broken = |file: &PathBuf, what: &str| Error::config(file.display(), format!("holds no {what} in PEM"));
    let chain = CertificateDer::pem_file_iter(&tls.certificate)
        .and_then(Iterator::collect::<std::result::Result<Vec<_>, _>>)
        .map_err(|e| broken(&tls.certificate, "certificates").because(e))?;
    let key = PrivateKeyDer::from_pem_file(&tls.key).map_err(|e| broken(&tls.key, "private key").because(e))?;
    let unfit = |e| Error::config(tls.certificate.display(), "cannot be served with this key").because(e);
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
        .map_err(unfit)?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Connections that have shaken hands.
pub(crate) struct TlsListener {
    ready: Receiver<(TlsStream<TcpStream>, SocketAddr)>,
    address: SocketAddr,
}

impl TlsListener {
    pub(crate) fn start(mut listener: TcpListener, acceptor: TlsAcceptor) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let (give, ready) = channel(MOST_HANDSHAKES);
        let room = Arc::new(Semaphore::new(MOST_HANDSHAKES));
        tokio::spawn(async move {
            while !give.is_closed() {
                let Ok(place) = room.clone().acquire_owned().await else { return };
                let (stream, peer) = Listener::accept(&mut listener).await;
                let (acceptor, give) = (acceptor.clone(), give.clone());
                tokio::spawn(async move {
                    let _place = place;
                    match timeout(HANDSHAKE, acceptor.accept(stream)).await {
                        // nobody to give it to: the service is ending
                        Ok(Ok(stream)) => drop(give.send((stream, peer)).await),
                        Ok(Err(error)) => tracing::debug!(%error, %peer, "no handshake"),
                        Err(_) => tracing::debug!(%peer, "no handshake in time"),
                    }
                });
            }
        });
        Ok(Self { ready, address })
    }
}

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        match self.ready.recv().await {
            Some(connection) => connection,
            // the task that accepts has ended; so does the service, by its own signal
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        Ok(self.address)
    }
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio_rustls::TlsConnector;
    use tokio_rustls::rustls::pki_types::ServerName;
    use tokio_rustls::rustls::{ClientConfig, RootCertStore};

    use super::*;

    /// A client that trusts the certificate is answered, while others that never finish their handshakes hang on.
    #[tokio::test]
    async fn a_client_is_answered_over_tls_beside_those_that_dawdle() {
        let home = tempfile::tempdir().unwrap();
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let tls = Tls { certificate: home.path().join("certificate.pem"), key: home.path().join("key.pem") };
        std::fs::write(&tls.certificate, made.cert.pem()).unwrap();
        std::fs::write(&tls.key, made.signing_key.serialize_pem()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().route("/", get(async || "in private"));
        tokio::spawn(async move { crate::run(listener, (router, Some(&tls)), std::future::pending()).await });
        let mut dawdling = Vec::new();
        for _ in 0..20 {
            dawdling.push(TcpStream::connect(address).await.unwrap());
        }
        let mut roots = RootCertStore::empty();
        roots.add(made.cert.der().clone()).unwrap();
        let client = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let stream = TcpStream::connect(address).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let mut stream = TlsConnector::from(Arc::new(client)).connect(name, stream).await.unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.ends_with("in private"), "{answer}");
    }

    #[test]
    fn a_file_that_is_no_certificate_is_named() {
        let home = tempfile::tempdir().unwrap();
        let tls = Tls { certificate: home.path().join("c.pem"), key: home.path().join("k.pem") };
        let message = |tls: &Tls| acceptor(tls).err().unwrap().to_string();
        assert!(message(&tls).contains("c.pem"));
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        std::fs::write(&tls.certificate, made.cert.pem()).unwrap();
        std::fs::write(&tls.key, "no key").unwrap();
        assert!(message(&tls).contains("k.pem"));
    }
}
