//! The verbs that ask a running process, over its HTTP API.
//!
//! Must never read the engine's memory or the config: it knows the API alone.

use std::process::ExitCode;

use clap::Subcommand;

use super::cli::GlobalArgs;

/// A verb that asks a running process.
#[derive(Debug, Subcommand)]
pub enum ClientVerb {
    /// What goes on
    Status,
}

impl ClientVerb {
    /// Asks, and prints the answer.
    ///
    /// # Errors
    /// The process does not answer, or says no.
    ///
    /// # Cancel safety
    /// Safe.
    #[expect(clippy::unused_async, reason = "placeholder until the client is merged")]
    pub async fn run(self, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        anyhow::bail!("no client in this build for {}", global.server)
    }
}
