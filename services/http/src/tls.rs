//! TLS acceptor from certificate and key files.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use souk_io::tls::Tls;
use souk_io::{Error, Result};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// The files are reloaded at the first handshake after this time.
const FRESH: Duration = Duration::from_secs(60);

fn acceptor(tls: &Tls) -> Result<TlsAcceptor> {
    let broken = |file: &PathBuf, what: &str| {
        Error::config(file.display(), format!("no {what} in PEM format can be read from it"))
    };
    let chain = CertificateDer::pem_file_iter(&tls.certificate)
        .and_then(Iterator::collect::<std::result::Result<Vec<_>, _>>)
        .map_err(|e| broken(&tls.certificate, "certificates").because(e))?;
    let key = PrivateKeyDer::from_pem_file(&tls.key).map_err(|e| broken(&tls.key, "private key").because(e))?;
    let unfit = |e| Error::config(tls.certificate.display(), "does not match the key, or is not supported").because(e);
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
        .map_err(unfit)?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// A certificate that is reloaded when its files change.
pub(crate) struct Certificate {
    files: Tls,
    last: Mutex<(Instant, TlsAcceptor)>,
}

impl Certificate {
    pub(crate) fn open(files: &Tls) -> Result<Self> {
        Ok(Self { files: files.clone(), last: Mutex::new((Instant::now(), acceptor(files)?)) })
    }

    /// The current acceptor, reloaded if it is older than a minute.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.0.elapsed() >= FRESH {
            last.0 = Instant::now();
            match acceptor(&self.files) {
                Ok(renewed) => last.1 = renewed,
                Err(error) => tracing::warn!(?error, "cannot reload the certificate: the old one stays in use"),
            }
        }
        last.1.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use axum::Router;
    use axum::routing::get;
    use tempfile::TempDir;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::oneshot;
    use tokio::time::timeout;
    use tokio_rustls::TlsConnector;
    use tokio_rustls::rustls::pki_types::ServerName;
    use tokio_rustls::rustls::{ClientConfig, RootCertStore};

    use super::*;

    /// Shorter than the handshake timeout.
    const SOON: Duration = Duration::from_secs(8);

    fn files(home: &TempDir) -> Tls {
        Tls { certificate: home.path().join("certificate.pem"), key: home.path().join("key.pem") }
    }

    /// Writes a new certificate and its key.
    fn renew(files: &Tls) -> CertificateDer<'static> {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        std::fs::write(&files.certificate, made.cert.pem()).unwrap();
        std::fs::write(&files.key, made.signing_key.serialize_pem()).unwrap();
        made.cert.der().clone()
    }

    async fn asked(address: SocketAddr, trusted: CertificateDer<'static>) -> String {
        let mut roots = RootCertStore::empty();
        roots.add(trusted).unwrap();
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
        answer
    }

    /// Connections that never finish the handshake delay neither other clients nor the shutdown.
    #[tokio::test]
    async fn unfinished_handshakes_delay_nobody() {
        let home = tempfile::tempdir().unwrap();
        let tls = files(&home);
        let certificate = renew(&tls);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().route("/", get(async || "in private"));
        let (stop, asked_to) = oneshot::channel::<()>();
        let running =
            tokio::spawn(async move { crate::run(listener, router, Some(&tls), async { drop(asked_to.await) }).await });
        let mut dawdling = Vec::new();
        for _ in 0..300 {
            dawdling.push(TcpStream::connect(address).await.unwrap());
        }
        let answer = timeout(SOON, asked(address, certificate)).await.unwrap();
        assert!(answer.ends_with("in private"), "{answer}");
        drop(stop);
        timeout(SOON, running).await.unwrap().unwrap().unwrap();
        assert!(TcpStream::connect(address).await.is_err(), "nobody listens any more");
    }

    #[test]
    fn renewed_certificates_are_reloaded_and_broken_ones_ignored() {
        let home = tempfile::tempdir().unwrap();
        let tls = files(&home);
        renew(&tls);
        let certificate = Certificate::open(&tls).unwrap();
        let first = certificate.acceptor();
        let is_first = |acceptor: TlsAcceptor| Arc::ptr_eq(acceptor.config(), first.config());
        let age = || certificate.last.lock().unwrap().0 -= FRESH;
        renew(&tls);
        assert!(is_first(certificate.acceptor()), "it was read just now");
        std::fs::write(&tls.key, "half a ke").unwrap();
        age();
        assert!(is_first(certificate.acceptor()), "the new one is not whole");
        renew(&tls);
        age();
        assert!(!is_first(certificate.acceptor()));
    }

    #[test]
    fn invalid_certificate_files_are_errors() {
        let home = tempfile::tempdir().unwrap();
        let tls = files(&home);
        let message = |tls: &Tls| acceptor(tls).err().unwrap().to_string();
        assert!(message(&tls).contains("certificate.pem"));
        renew(&tls);
        std::fs::write(&tls.key, "no key").unwrap();
        assert!(message(&tls).contains("key.pem"));
    }
}
