//! Reconcilers in any language: HTTP webhooks and commands, one JSON contract for both, and the lists for resync.
//!
//! `wire` is the JSON; `webhook` and `exec` carry it; `list` reads ids in the same two ways; `http` and `process` are
//! what those two ways need. Must never know the engine: a hook is a [`Reconciler`](crate::Reconciler) or an
//! [`IdList`](crate::IdList) like any other. `docs/reconcilers.md` tells it to users; its tables and examples are
//! tested.
//!
//! ```
//! use evenkeel::hooks::{Exec, ExecSettings, Webhook, WebhookSettings};
//!
//! # fn main() -> Result<(), evenkeel::hooks::HookError> {
//! let webhook = Webhook::new(WebhookSettings::new("http://127.0.0.1:5000/reconcile"))?;
//!
//! let mut settings = ExecSettings::new(["./reconcile.sh", "--fast"], "/etc/zones");
//! settings.env = vec!["PGHOST".to_owned()];
//! let command = Exec::new(settings)?;
//! # drop((webhook, command));
//! # Ok(())
//! # }
//! ```

mod answer_file;
mod command;
mod exec;
mod file;
mod group;
mod harden;
mod http;
mod list;
mod output;
mod process;
mod retry_after;
mod signature;
mod spool;
mod stop;
mod strays;
#[cfg(test)]
mod tests;
mod text;
mod webhook;
mod wire;

pub use command::ExecSettings;
pub use exec::Exec;
pub use file::FileError;
pub use harden::harden_process;
pub use http::HttpSettings;
pub use list::{ExecList, HttpList, LIST_BYTES_MAX, LIST_TIMEOUT_DEFAULT};
pub use webhook::{Webhook, WebhookSettings};
pub use wire::{
    ANSWER_BYTES_MAX, Answer, AnswerError, InvalidAnswer, Operation, Request, Span, VERSION, answer_schema,
    request_schema,
};

/// The settings of a hook cannot be used; the text says which and what to do, and repeats no secret.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum HookError {
    /// The URL.
    #[error("the url is not usable: {0}; write one like http://host:port/path or https://host/path")]
    Url(String),
    /// Two credentials.
    #[error("{0} has a user in its url and an authorization_file; keep one of them")]
    Credentials(String),
    /// A header.
    #[error("header {0} {1}; remove or correct it")]
    Header(String, String),
    /// A file of secrets or certificates.
    #[error(transparent)]
    File(#[from] FileError),
    /// No client can be made.
    #[error("cannot make a client for {0}: {1}; is a package with root certificates installed, or name a ca_file")]
    Client(String, String),
    /// The command.
    #[error("the command is not usable: {0}")]
    Command(String),
    /// The names of `env`.
    #[error("env: {0} is not a name that can be passed on: {1}")]
    Env(String, &'static str),
}
