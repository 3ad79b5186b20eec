//! What the etcd parts are told: where the members are, and who we are.
//!
//! Must never show a secret. Files are read whenever a connection is made, so that a certificate may be renewed while
//! the process runs. Tested below, and by the live tests.

use std::path::{Path, PathBuf};
use std::time::Duration;

use etcd_client::{Certificate, ConnectOptions, Identity, TlsOptions};

use super::error::EtcdError;
use crate::contract::Secret;

/// How long one member may take for one answer, by default. A healthy one needs a few milliseconds.
pub const REQUEST_MAX: Duration = Duration::from_secs(1);

/// Connections are probed this often. A member drops those that ask more often than every 5 s.
const PROBE_INTERVAL: Duration = Duration::from_secs(5);
/// A probe without an answer closes the connection after this time. It guards nothing: it cleans up.
const PROBE_MAX: Duration = Duration::from_secs(2);

/// How to reach etcd (the `etcd:` block of the config).
#[derive(Debug, Clone)]
pub struct Connection {
    /// The members' client addresses, `http://host:port` or `https://host:port`. Each is used on its own.
    pub endpoints: Vec<String>,
    /// How long one member may take for one answer: [`REQUEST_MAX`], or a fifth of a lease that is shorter than five
    /// times that.
    pub request: Duration,
    /// TLS; needed where the addresses say `https`.
    pub tls: Option<Tls>,
    /// A login, where etcd asks for one. With a client certificate its common name is the user, and this is not needed.
    pub user: Option<User>,
}

/// TLS towards etcd. The member's host name is always checked against its certificate.
#[derive(Debug, Clone, Default)]
pub struct Tls {
    /// PEM file of the authorities to trust; none means the system's.
    pub ca_file: Option<PathBuf>,
    /// PEM files of our own certificate and of its key, for members that ask for one.
    pub certificate: Option<(PathBuf, PathBuf)>,
}

/// A login.
#[derive(Debug, Clone)]
pub struct User {
    /// The name.
    pub name: String,
    /// The password.
    pub password: Secret,
}

impl Connection {
    /// A connection to these members, without TLS or login.
    #[must_use]
    pub fn new(endpoints: Vec<String>) -> Self {
        Self { endpoints, request: REQUEST_MAX, tls: None, user: None }
    }

    /// Refuses what could never work.
    pub(super) fn check(&self) -> Result<(), EtcdError> {
        if self.endpoints.is_empty() {
            return Err(EtcdError::Settings("etcd has no endpoints; name at least one".into()));
        }
        for endpoint in &self.endpoints {
            let fault = match endpoint.split_once("://") {
                Some(("http", _)) if self.tls.is_some() => "tls is configured; write https://",
                Some((_, rest)) if rest.contains('@') => "an address holds no user or password; configure auth",
                Some(("http" | "https", rest)) if !rest.is_empty() && !rest.contains(char::is_whitespace) => continue,
                _ => "write it as http://host:2379 or https://host:2379",
            };
            let shown = endpoint.rsplit_once('@').map_or(endpoint.as_str(), |(_, host)| host);
            return Err(EtcdError::Settings(format!("etcd endpoint {shown}: {fault}")));
        }
        Ok(())
    }

    /// The options of the client library, with files as they are now.
    pub(super) fn options(&self) -> Result<ConnectOptions, EtcdError> {
        let mut options = ConnectOptions::new()
            .with_connect_timeout(self.request)
            .with_keep_alive(PROBE_INTERVAL, PROBE_MAX)
            .with_require_leader(true)
            .with_auto_token_refresh(true);
        if let Some(user) = &self.user {
            options = options.with_user(user.name.clone(), user.password.expose());
        }
        if self.endpoints.iter().any(|endpoint| endpoint.starts_with("https://")) {
            options = options.with_tls(self.tls.clone().unwrap_or_default().options()?);
        }
        Ok(options)
    }
}

impl Tls {
    fn options(&self) -> Result<TlsOptions, EtcdError> {
        let mut options = match &self.ca_file {
            Some(file) => TlsOptions::new().ca_certificate(Certificate::from_pem(read(file)?)),
            None => TlsOptions::new().with_native_roots(),
        };
        if let Some((certificate, key)) = &self.certificate {
            options = options.identity(Identity::from_pem(read(certificate)?, read(key)?));
        }
        Ok(options)
    }
}

fn read(file: &Path) -> Result<Vec<u8>, EtcdError> {
    std::fs::read(file).map_err(|e| EtcdError::Settings(format!("cannot read {}: {e}", file.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_could_never_work_are_refused() {
        let plain = |endpoint: &str| Connection::new(vec![endpoint.into()]);
        let secured = |endpoint: &str| Connection { tls: Some(Tls::default()), ..plain(endpoint) };
        for good in [plain("http://a:2379"), plain("https://[::1]:2379"), secured("https://a:2379")] {
            good.check().unwrap();
        }
        for (bad, says) in [
            (Connection::new(vec![]), "no endpoints"),
            (plain("a:2379"), "a:2379: write it as http://"),
            (plain("ftp://a"), "write it as"),
            (plain("http://"), "write it as"),
            (plain("http://a b"), "write it as"),
            (plain("http://root:canary@a:2379"), "a:2379: an address holds no user"),
            (secured("http://a:2379"), "write https://"),
        ] {
            let error = bad.check().unwrap_err().to_string();
            assert!(error.contains(says) && !error.contains("canary"), "{error}");
        }
    }

    #[test]
    fn b87_a_password_is_not_shown() {
        let user = User { name: "alice".into(), password: Secret::new("canary") };
        let connection = Connection { user: Some(user), ..Connection::new(vec!["http://a:1".into()]) };
        assert!(!format!("{connection:?}").contains("canary"));
    }

    #[test]
    fn files_that_cannot_be_read_are_named() {
        let tls = Tls { ca_file: Some("/nowhere/ca.pem".into()), certificate: None };
        let connection = Connection { tls: Some(tls), ..Connection::new(vec!["https://a:1".into()]) };
        let error = connection.options().unwrap_err().to_string();
        assert!(error.contains("cannot read /nowhere/ca.pem"), "{error}");
    }
}
