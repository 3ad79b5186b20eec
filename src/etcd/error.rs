//! What went wrong with a call to etcd, in kinds that say what to do.
//!
//! Must never guess that nothing happened: whatever is not known to have been refused is [`EtcdError::Unknown`].
//! etcd's codes alone say too little (one code stands for a compaction and for an answer that is too long), so texts
//! are compared too. Tested below against the answers of etcd 3.7.

use etcd_client::Error;
use tonic::{Code, Status};

/// A call that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EtcdError {
    /// The settings cannot work.
    #[error("{0}")]
    Settings(String),
    /// No connection came about, so nothing was asked: try another member, or later.
    #[error("cannot reach etcd: {0}")]
    Unreachable(String),
    /// The answer did not come, or says nothing of the outcome: what was asked for may have happened, or may yet.
    #[error("etcd did not answer: {0}")]
    Unknown(String),
    /// The user, the password or the user's roles do not allow it; nothing happened.
    #[error("etcd denies it: {0}; look at etcd.auth, and at the user's roles in etcd")]
    Denied(String),
    /// What was asked for is not possible; nothing happened.
    #[error("etcd refuses it: {0}")]
    Refused(String),
    /// The database has reached its quota. The write that reaches it happens all the same, so the outcome is unknown.
    #[error("etcd's database is full: compact and defragment it, then disarm its alarm ({0})")]
    Full(String),
    /// The revision is no longer there: list anew.
    #[error("the revision has been compacted")]
    Compacted,
    /// The lease is gone.
    #[error("the lease is gone")]
    LeaseGone,
}

impl EtcdError {
    /// Whether what was asked for may have happened.
    #[must_use]
    pub const fn is_unknown(&self) -> bool {
        matches!(self, Self::Unknown(_) | Self::Full(_))
    }

    /// Whether another try, by another member or later, may end otherwise.
    #[must_use]
    pub const fn is_passing(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::Unknown(_))
    }

    /// Whether the member no longer takes our token, although the library has tried to renew it.
    pub(super) fn wants_login(error: &Error) -> bool {
        match error {
            Error::GRpcStatus(status) => {
                status.code() == Code::Unauthenticated || status.message().contains("revision of auth store is old")
            }
            _ => false,
        }
    }

    /// The kind of an error of the client library.
    #[must_use]
    pub fn of(error: &Error) -> Self {
        match error {
            Error::GRpcStatus(status) => Self::of_status(status),
            Error::InvalidArgs(_) | Error::InvalidUri(_) | Error::InvalidMetadataValue(_) => {
                Self::Settings(error.to_string())
            }
            Error::TransportError(error) => Self::Settings(chain(error)),
            Error::LeaseKeepAliveError(text) if text.contains("lease not found") => Self::LeaseGone,
            _ => Self::Unknown(error.to_string()),
        }
    }

    fn of_status(status: &Status) -> Self {
        let (code, text) = (status.code(), status.message());
        let reason = || match chain(status) {
            source if text.is_empty() || source == text => source,
            source => format!("{text}: {source}"),
        };
        match code {
            Code::Unavailable if never_sent(status) => Self::Unreachable(reason()),
            Code::NotFound if text.contains("lease not found") => Self::LeaseGone,
            Code::OutOfRange if text.contains("has been compacted") => Self::Compacted,
            Code::ResourceExhausted if text.contains("database space exceeded") => Self::Full(text.into()),
            Code::ResourceExhausted if text.contains("too many requests") => Self::Unreachable(text.into()),
            Code::Unauthenticated | Code::PermissionDenied => Self::Denied(text.into()),
            Code::InvalidArgument if is_login(text) => Self::Denied(text.into()),
            Code::FailedPrecondition if text.contains("authentication is not enabled") => Self::Denied(text.into()),
            Code::InvalidArgument | Code::OutOfRange | Code::ResourceExhausted | Code::Unimplemented => {
                Self::Refused(text.into())
            }
            _ => Self::Unknown(reason()),
        }
    }
}

/// Whether the connection failed before anything could be sent.
fn never_sent(status: &Status) -> bool {
    let text = chain(status);
    ["tcp connect error", "dns error", "invalid peer certificate"].iter().any(|cause| text.contains(cause))
}

/// Whether an argument that etcd does not like is part of a login.
fn is_login(text: &str) -> bool {
    ["authentication failed", "user name is empty", "revision of auth store is old"].iter().any(|t| text.contains(t))
}

/// The messages of an error's causes, the outermost first. A status prints all its fields, so its message stands for
/// it.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut parts = Vec::new();
    match error.downcast_ref::<Status>() {
        Some(status) => parts.push(status.message().to_owned()),
        None => parts.push(error.to_string()),
    }
    let mut source = error.source();
    while let Some(cause) = source {
        let text = cause.to_string();
        if !parts.iter().any(|part| part.contains(&text)) {
            parts.push(text);
        }
        source = cause.source();
    }
    parts.retain(|part| !part.is_empty());
    parts.join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_etcd_become_what_to_do() {
        type Kind = fn(String) -> EtcdError;
        let (unreachable, unknown): (Kind, Kind) = (EtcdError::Unreachable, EtcdError::Unknown);
        let (denied, refused, full): (Kind, Kind, Kind) = (EtcdError::Denied, EtcdError::Refused, EtcdError::Full);
        for (code, text, kind) in [
            (Code::Unavailable, "tcp connect error", unreachable),
            (Code::Unavailable, "invalid peer certificate: UnknownIssuer", unreachable),
            (Code::ResourceExhausted, "etcdserver: too many requests", unreachable),
            (Code::Unavailable, "etcdserver: request timed out", unknown),
            (Code::Unavailable, "etcdserver: no leader", unknown),
            (Code::Unavailable, "http2 error", unknown),
            (Code::Cancelled, "Timeout expired", unknown),
            (Code::Cancelled, "operation was canceled", unknown),
            (Code::Unknown, "h2 protocol error: error reading a body from connection", unknown),
            (Code::Unauthenticated, "etcdserver: invalid auth token", denied),
            (Code::PermissionDenied, "etcdserver: permission denied", denied),
            (Code::InvalidArgument, "etcdserver: user name is empty", denied),
            (Code::InvalidArgument, "etcdserver: authentication failed, invalid user ID or password", denied),
            (Code::InvalidArgument, "etcdserver: too many operations in txn request", refused),
            (Code::InvalidArgument, "etcdserver: request is too large", refused),
            (Code::ResourceExhausted, "grpc: received message larger than max (2200010 vs. 2097152)", refused),
            (Code::OutOfRange, "Error, decoded message length too large: found 20000908 bytes", refused),
            (Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded", full),
        ] {
            let found = EtcdError::of(&Error::GRpcStatus(Status::new(code, text)));
            assert_eq!(found, kind(text.into()));
        }
        let of = |code, text| EtcdError::of(&Error::GRpcStatus(Status::new(code, text)));
        let compacted = "etcdserver: mvcc: required revision has been compacted";
        assert_eq!(of(Code::OutOfRange, compacted), EtcdError::Compacted);
        assert_eq!(of(Code::NotFound, "etcdserver: requested lease not found"), EtcdError::LeaseGone);
        assert_eq!(EtcdError::of(&Error::LeaseKeepAliveError("lease not found".into())), EtcdError::LeaseGone);
    }

    #[test]
    fn only_what_was_never_sent_is_known_not_to_have_happened() {
        assert!(EtcdError::Unknown(String::new()).is_unknown() && EtcdError::Full(String::new()).is_unknown());
        assert!(!EtcdError::Unreachable(String::new()).is_unknown());
        let old = Error::GRpcStatus(Status::new(Code::InvalidArgument, "etcdserver: revision of auth store is old"));
        assert!(EtcdError::wants_login(&old));
    }
}
