//! The HTTP client of hooks: one target, its credentials, its certificates, and errors that say what to check.
//!
//! The target comes from the operator's config alone, never from an id, an event or an answer; redirects are not
//! followed, proxies of the environment are not used, no cookies are kept and nothing is decompressed. Must never show
//! a user name, a password, a query or a header's value. Tested against real sockets in `tests`.

use std::error::Error;
use std::fmt;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use reqwest::header::{AUTHORIZATION, CONNECTION, CONTENT_LENGTH, HOST, HeaderMap, HeaderName, HeaderValue};
use reqwest::header::{TE, TRANSFER_ENCODING, UPGRADE};
use reqwest::{Client, Response, Url};
use rustls::pki_types::{CertificateDer, pem::PemObject};
use rustls::{CertificateError, ClientConfig, RootCertStore};
use rustls_platform_verifier::BuilderVerifierExt;

use super::HookError;
use super::file::WatchedFile;
use super::text::Secrets;

/// How long a connection may take to be made; the run's own limit holds beside it.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How many idle connections to a target are kept: as many as runs are in flight by default.
const IDLE_CONNECTIONS_MAX: usize = 64;
/// How long an idle connection is kept; many servers close theirs after a minute.
const IDLE_FOR: Duration = Duration::from_secs(50);
/// How long the explanation of a bad status is waited for.
const START_WAIT: Duration = Duration::from_secs(1);
/// The largest header list of an answer over HTTP/2, in bytes; over HTTP/1 it is bounded by the client's buffer of 400
/// KiB.
const HEADERS_BYTES_MAX: u32 = 64 * 1024;

/// Headers that frame a message; a setting of one would break the request.
const FRAMING: [HeaderName; 6] = [CONNECTION, CONTENT_LENGTH, HOST, TE, TRANSFER_ENCODING, UPGRADE];

/// An HTTP target as the operator names it.
#[derive(Clone)]
#[non_exhaustive]
pub struct HttpSettings {
    /// Its address, `http` or `https`. A user name and a password in it are sent as Basic credentials and never shown.
    pub url: String,
    /// Headers to send along; where the contract sets one of the same name, the contract's wins.
    pub headers: Vec<(String, String)>,
    /// A file with the whole value of the `Authorization` header, as in `Bearer …`; read again when it changes.
    pub authorization_file: Option<PathBuf>,
    /// A PEM file with the certificates to trust instead of the system's; read again when it changes.
    pub ca_file: Option<PathBuf>,
}

impl HttpSettings {
    /// A target without credentials.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: url.into(), headers: Vec::new(), authorization_file: None, ca_file: None }
    }
}

impl fmt::Debug for HttpSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let url = parse_url(&self.url).map_or_else(|_| "(not usable)".to_owned(), |url| shown(&url));
        let names: Vec<_> = self.headers.iter().map(|(name, _)| name).collect();
        f.debug_struct("HttpSettings")
            .field("url", &url)
            .field("headers", &names)
            .field("authorization_file", &self.authorization_file)
            .field("ca_file", &self.ca_file)
            .finish()
    }
}

/// A target that is ready to be called.
pub(super) struct Target {
    url: Url,
    shown: String,
    headers: HeaderMap,
    authorization: Option<WatchedFile>,
    ca: Option<WatchedFile>,
    client: Mutex<Option<Made>>,
    secrets: Secrets,
}

/// A client, and the certificates that it was told to trust.
struct Made {
    trusts: Option<Arc<[u8]>>,
    client: Client,
}

/// A call that is about to be made: the client, the headers, and the secrets among them.
pub(super) struct Call {
    pub client: Client,
    pub headers: HeaderMap,
    pub secrets: Secrets,
}

impl Target {
    /// Checks the settings, and reads the files once so that a fault in them is seen at the start.
    pub(super) fn new(settings: HttpSettings) -> Result<Self, HookError> {
        let url = parse_url(&settings.url)?;
        let shown = shown(&url);
        let mut secrets = Secrets::default();
        let password = url.password().unwrap_or("");
        secrets.add(password);
        secrets.add(&percent_encoding::percent_decode_str(password).decode_utf8_lossy());
        url.query_pairs().for_each(|(_, value)| secrets.add(&value));
        if settings.authorization_file.is_some() && (!url.username().is_empty() || url.password().is_some()) {
            return Err(HookError::Credentials(shown));
        }
        let headers = user_headers(&settings.headers, &mut secrets)?;
        let authorization = settings.authorization_file.map(WatchedFile::new);
        let ca = settings.ca_file.map(WatchedFile::new);
        let target = Self { url, shown, headers, authorization, ca, client: Mutex::new(None), secrets };
        target.call()?;
        Ok(target)
    }

    /// What to call.
    pub(super) fn url(&self) -> Url {
        self.url.clone()
    }

    /// The address as it may be shown: without user, password, query and fragment.
    pub(super) fn shown(&self) -> &str {
        &self.shown
    }

    /// The client and the headers of the next call, with files that changed read again.
    pub(super) fn call(&self) -> Result<Call, HookError> {
        let (mut headers, mut secrets) = (self.headers.clone(), self.secrets.clone());
        if let Some(file) = &self.authorization {
            let text = file.read_text()?;
            let mut value = HeaderValue::from_str(&text)
                .map_err(|_| file.error("it holds no header value; write one line, as in: Bearer TOKEN"))?;
            value.set_sensitive(true);
            secrets.add(&text);
            headers.insert(AUTHORIZATION, value);
        }
        Ok(Call { client: self.client()?, headers, secrets })
    }

    /// The target refused the credentials: they may have been rotated, so the next call reads them again.
    pub(super) fn forget_credentials(&self) {
        if let Some(file) = &self.authorization {
            file.forget();
        }
    }

    /// One client for all calls, so that connections are reused; another once the certificates to trust have changed.
    fn client(&self) -> Result<Client, HookError> {
        let ca = self.ca.as_ref().map(WatchedFile::read).transpose()?;
        let mut current = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(made) = current.as_ref().filter(|made| made.trusts == ca) {
            return Ok(made.client.clone());
        }
        let tls = self.tls(ca.as_deref())?;
        let client = Client::builder()
            .tls_backend_preconfigured(tls)
            .redirect(reqwest::redirect::Policy::none())
            .referer(false)
            .no_proxy()
            .connect_timeout(CONNECT_TIMEOUT)
            .pool_max_idle_per_host(IDLE_CONNECTIONS_MAX)
            .pool_idle_timeout(IDLE_FOR)
            .http2_max_header_list_size(HEADERS_BYTES_MAX)
            .user_agent(concat!("evenkeel/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| HookError::Client(self.shown.clone(), describe(&error.without_url())))?;
        *current = Some(Made { trusts: ca, client: client.clone() });
        Ok(client)
    }

    /// The provider is named here, so that no default of the process is needed and none is set.
    fn tls(&self, ca: Option<&[u8]>) -> Result<ClientConfig, HookError> {
        let failed = |error: rustls::Error| HookError::Client(self.shown.clone(), error.to_string());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config =
            ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().map_err(failed)?;
        let config = match (&self.ca, ca, self.url.scheme()) {
            (Some(file), Some(pem), _) => config.with_root_certificates(roots(file, pem)?),
            // The system's certificates need not exist on a machine where nothing speaks TLS.
            (_, _, "http") => config.with_root_certificates(RootCertStore::empty()),
            _ => return Ok(alpn(config.with_platform_verifier().map_err(failed)?.with_no_client_auth())),
        };
        Ok(alpn(config.with_no_client_auth()))
    }
}

fn alpn(mut config: ClientConfig) -> ClientConfig {
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    config
}

fn roots(file: &WatchedFile, pem: &[u8]) -> Result<RootCertStore, HookError> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|error| file.error(format_args!("it is no PEM file: {error}")))?;
        roots.add(certificate).map_err(|error| file.error(format_args!("a certificate in it is broken: {error}")))?;
    }
    if roots.is_empty() { Err(file.error("it holds no certificate in PEM form").into()) } else { Ok(roots) }
}

fn parse_url(text: &str) -> Result<Url, HookError> {
    // The text may hold a password: a message repeats none of it unless it is a URL that can be shown in part.
    let url = Url::parse(text).map_err(|error| HookError::Url(error.to_string()))?;
    match url.scheme() {
        "http" | "https" => Ok(url),
        scheme => Err(HookError::Url(format!("its scheme is {scheme}"))),
    }
}

fn shown(url: &Url) -> String {
    let mut shown = url.clone();
    shown.set_query(None);
    shown.set_fragment(None);
    // These fail only for a URL without a host, which an http URL always has.
    let _ = shown.set_username("");
    let _ = shown.set_password(None);
    shown.into()
}

/// The URL of a redirect, as it may be shown.
pub(super) fn shown_location(from: &Url, headers: &HeaderMap) -> Option<String> {
    let location = headers.get(reqwest::header::LOCATION)?.to_str().ok()?;
    from.join(location).ok().map(|url| shown(&url))
}

fn user_headers(settings: &[(String, String)], secrets: &mut Secrets) -> Result<HeaderMap, HookError> {
    let mut headers = HeaderMap::new();
    for (name, value) in settings {
        let refused = |reason: &str| HookError::Header(name.escape_debug().to_string(), reason.to_owned());
        let parsed: HeaderName = name.parse().map_err(|_| refused("is no header name"))?;
        if FRAMING.contains(&parsed) {
            return Err(refused("frames the message and cannot be set"));
        }
        let mut value = HeaderValue::from_str(value).map_err(|_| refused("has a value with control characters"))?;
        value.set_sensitive(true);
        secrets.add(value.to_str().unwrap_or(""));
        headers.append(parsed, value);
    }
    Ok(headers)
}

/// Why a body was not read to its end.
pub(super) enum BodyError {
    /// It is larger than allowed; the rest was not read.
    TooLarge,
    /// It broke off.
    Broken(String),
}

/// The body of an answer, if it has at most `max` bytes.
pub(super) async fn read_body(response: &mut Response, max: usize) -> Result<Vec<u8>, BodyError> {
    let mut body = Vec::new();
    loop {
        match response.chunk().await {
            Ok(Some(chunk)) if body.len() + chunk.len() > max => return Err(BodyError::TooLarge),
            Ok(Some(chunk)) => body.extend_from_slice(&chunk),
            Ok(None) => return Ok(body),
            Err(error) => return Err(BodyError::Broken(describe(&error.without_url()))),
        }
    }
}

/// The first bytes of a body, at most `max` and what comes within [`START_WAIT`], whatever becomes of the rest.
pub(super) async fn read_start(response: &mut Response, max: usize) -> Vec<u8> {
    let mut body = Vec::new();
    let reading = async {
        while body.len() < max
            && let Ok(Some(chunk)) = response.chunk().await
        {
            body.extend_from_slice(&chunk[..chunk.len().min(max - body.len())]);
        }
    };
    // The status is known already; its explanation is worth a short wait, not the run's whole time.
    let _ = tokio::time::timeout(START_WAIT, reading).await;
    body
}

/// What went wrong with a call, and what to check. The error must be without its URL.
pub(super) fn describe(error: &reqwest::Error) -> String {
    let mut causes = Vec::new();
    let mut next = error.source();
    while let Some(cause) = next {
        causes.push(cause);
        next = cause.source();
    }
    let text = causes.last().map_or_else(|| error.to_string(), ToString::to_string);
    if let Some(advice) = causes.iter().find_map(|cause| certificate_advice(*cause)) {
        return format!("{text}; {advice}");
    }
    let io = causes.iter().find_map(|cause| cause.downcast_ref::<std::io::Error>());
    if causes.iter().any(|cause| cause.to_string().contains("dns error")) {
        return format!("the host name does not resolve: {text}");
    }
    match io.map(std::io::Error::kind) {
        Some(ErrorKind::ConnectionRefused) => "connection refused: nothing listens there; is the server up?".to_owned(),
        _ if error.is_timeout() && error.is_connect() => {
            format!(
                "no connection within {} s; is the address right, does a firewall drop it?",
                CONNECT_TIMEOUT.as_secs()
            )
        }
        _ if error.is_connect() => format!("cannot connect: {text}"),
        _ if error.is_body() || error.is_decode() => format!("the answer broke off: {text}"),
        _ => text,
    }
}

/// What to do where a certificate was refused.
fn certificate_advice(error: &(dyn Error + 'static)) -> Option<&'static str> {
    // An IO error passes for the error that it wraps, but does not name it as its source.
    if let Some(inner) = error.downcast_ref().and_then(std::io::Error::get_ref) {
        return certificate_advice(inner);
    }
    let Some(rustls::Error::InvalidCertificate(reason)) = error.downcast_ref() else { return None };
    Some(match reason {
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "the certificate is another host's: correct the url or the certificate"
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => "the server needs a new certificate",
        _ => "the server's certificate is not trusted: name the CA that signed it in ca_file",
    })
}
