//! Webhooks over TLS: whom they trust, and that this changes with the file.

use std::path::Path;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::server::{Server, json};
use super::support::{TRANSIENT, failure, reconcile};
use crate::hooks::{HookError, Webhook, WebhookSettings};

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority() -> Authority {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// A server for this host name, with a certificate of this authority.
async fn serve(authority: &Authority, host: &str) -> Server {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec![host.to_owned()]).unwrap().signed_by(&key, authority).unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = Server::at(listener.local_addr().unwrap());
    let serving = server.clone();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let (acceptor, server) = (acceptor.clone(), serving.clone());
            tokio::spawn(async move {
                if let Ok(socket) = acceptor.accept(socket).await {
                    server.serve_on(socket, json("{}")).await;
                }
            });
        }
    });
    server
}

fn https(server: &Server, ca: Option<&Path>) -> WebhookSettings {
    let mut settings = WebhookSettings::new(server.url().replace("http://127.0.0.1", "https://localhost"));
    settings.http.ca_file = ca.map(Path::to_owned);
    settings
}

#[tokio::test]
async fn only_the_named_authority_is_trusted_and_it_can_be_replaced() {
    let (mine, other) = (authority(), authority());
    let server = serve(&mine, "localhost").await;
    let dir = tempfile::tempdir().unwrap();
    let ca = dir.path().join("ca.pem");
    std::fs::write(&ca, other.pem()).unwrap();
    let webhook = Webhook::new(https(&server, Some(&ca))).unwrap();
    let failure = failure(&webhook).await;
    assert_eq!(failure.kind(), TRANSIENT);
    assert!(failure.message().contains("is not trusted: name the CA that signed it in ca_file"), "{failure}");
    assert_eq!(server.requests().len(), 0);

    // Nor does the system trust it; a machine without any certificates says so at once.
    match Webhook::new(https(&server, None)) {
        Ok(webhook) => assert!(super::support::failure(&webhook).await.message().contains("is not trusted")),
        Err(error) => assert!(matches!(error, HookError::Client(..)), "{error}"),
    }

    std::fs::write(&ca, other.pem() + &mine.pem()).unwrap();
    let deadline = std::time::Instant::now() + super::support::PATIENCE;
    while reconcile(&webhook).await.is_err() {
        assert!(std::time::Instant::now() < deadline, "the new file was never used");
    }
    let connections = server.connections();
    assert!(reconcile(&webhook).await.is_ok());
    assert_eq!(server.connections(), connections, "connections are reused");
}

/// A server that answers to whatever comes first, as a plain HTTP server does to TLS.
async fn speaks_no_tls() -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = Server::at(listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            socket.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n").await.unwrap();
        }
    });
    server
}

#[tokio::test]
async fn another_host_or_no_tls_at_all_is_a_failure() {
    let authority = authority();
    let dir = tempfile::tempdir().unwrap();
    let ca = dir.path().join("ca.pem");
    std::fs::write(&ca, authority.pem()).unwrap();
    let elsewhere = serve(&authority, "elsewhere.test").await;
    let plain = speaks_no_tls().await;
    for (server, says) in [(elsewhere, "the certificate is another host's"), (plain, "cannot connect")] {
        let failure = failure(&Webhook::new(https(&server, Some(&ca))).unwrap()).await;
        assert!(failure.message().contains(says), "{failure}");
        assert!(failure.message().starts_with("POST https://localhost:"), "{failure}");
        assert_eq!(server.requests().len(), 0);
    }
}
