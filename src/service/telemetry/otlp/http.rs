//! The HTTP client of the exporters: as careful as that of the hooks. No redirects, no proxies of the environment, a
//! bound on time and on what is read.
//!
//! The exporters' own clients are not used: which of them they take depends on what other crates switch on, and two of
//! them die on a thread without a runtime (B29). Must never show a header or a body.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use async_trait::async_trait;
use bytes::Bytes;
use opentelemetry_http::{HttpClient, HttpError, Request, Response};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use rustls_platform_verifier::BuilderVerifierExt;

use super::lost::Lost;
use crate::service::config::{OtlpSignal, Signal};

/// How long a connection may take to be made.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How much of an answer is read; a collector's has some bytes.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// A client for one signal.
#[derive(Debug)]
pub(super) struct Client {
    client: reqwest::Client,
    headers: HeaderMap,
    signal: Signal,
    lost: Arc<Lost>,
}

impl Client {
    pub(super) fn new(signal: &OtlpSignal, which: Signal, lost: &Arc<Lost>) -> anyhow::Result<Self> {
        let client = reqwest::Client::builder()
            .tls_backend_preconfigured(tls(signal.url.starts_with("https:"), signal.ca_file.as_deref())?)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .connect_timeout(CONNECT_TIMEOUT.min(signal.timeout))
            .timeout(signal.timeout)
            .user_agent(concat!("evenkeel/", env!("CARGO_PKG_VERSION")))
            .build()?;
        Ok(Self { client, headers: headers(signal)?, signal: which, lost: Arc::clone(lost) })
    }

    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, reqwest::Error> {
        let mut request = reqwest::Request::try_from(request)?;
        // Last, so that what the config says wins.
        request.headers_mut().extend(self.headers.clone());
        let mut answer = self.client.execute(request).await?;
        let mut body = Vec::new();
        while body.len() < ANSWER_BYTES_MAX
            && let Some(chunk) = answer.chunk().await?
        {
            body.extend_from_slice(&chunk[..chunk.len().min(ANSWER_BYTES_MAX - body.len())]);
        }
        let mut response = Response::new(Bytes::from(body));
        *response.status_mut() = answer.status();
        *response.headers_mut() = std::mem::take(answer.headers_mut());
        Ok(response)
    }
}

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        self.send(request).await.map_err(|error| {
            let error = error.without_url();
            self.lost.connection(self.signal, last_cause(&error));
            HttpError::from(error)
        })
    }
}

/// The headers of every request.
pub(super) fn headers(signal: &OtlpSignal) -> anyhow::Result<HeaderMap> {
    let mut headers = HeaderMap::new();
    for (name, value) in &signal.headers {
        let mut value = HeaderValue::from_str(value.expose()).with_context(|| format!("the header {name}"))?;
        value.set_sensitive(true);
        headers.insert(HeaderName::try_from(name.as_str())?, value);
    }
    Ok(headers)
}

/// The provider is named here, so that no default of the process is needed and none is set.
fn tls(is_https: bool, ca_file: Option<&Path>) -> anyhow::Result<ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(match ca_file {
        Some(file) => config.with_root_certificates(roots(file)?).with_no_client_auth(),
        // The system's certificates need not exist on a machine where nothing speaks TLS.
        None if !is_https => config.with_root_certificates(RootCertStore::empty()).with_no_client_auth(),
        None => config.with_platform_verifier()?.with_no_client_auth(),
    })
}

fn roots(file: &Path) -> anyhow::Result<RootCertStore> {
    let shown = file.display();
    let mut roots = RootCertStore::empty();
    let pem = std::fs::read(file).with_context(|| format!("cannot read {shown}"))?;
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.with_context(|| format!("{shown} is no PEM file"))?;
        roots.add(certificate).with_context(|| format!("a certificate in {shown} is broken"))?;
    }
    if roots.is_empty() {
        bail!("{shown} holds no certificate in PEM form");
    }
    Ok(roots)
}

fn last_cause(error: &dyn Error) -> String {
    let mut last = error;
    while let Some(cause) = last.source() {
        last = cause;
    }
    last.to_string()
}
