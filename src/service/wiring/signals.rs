//! Signals: the first SIGTERM or SIGINT asks for a graceful stop, the second one ends the process at once (B27).

use std::io::Write as _;

use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Tells that a stop was asked for.
pub(super) struct Stop {
    token: CancellationToken,
}

impl Stop {
    /// Resolves once a stop was asked for.
    pub(super) fn asked(&self) -> impl Future<Output = ()> + Send + use<> {
        self.token.clone().cancelled_owned()
    }
}

/// Listens from now on.
pub(super) fn stop() -> anyhow::Result<Stop> {
    let mut terminate = listen(SignalKind::terminate())?;
    let mut interrupt = listen(SignalKind::interrupt())?;
    let token = CancellationToken::new();
    let asked = token.clone();
    tokio::spawn(async move {
        let first = either(&mut terminate, &mut interrupt).await;
        tracing::info!(signal = first, "stopping; a second signal ends the process at once");
        asked.cancel();
        let second = either(&mut terminate, &mut interrupt).await;
        // Nothing may be left to wait for, so the log is not either.
        let _ = writeln!(std::io::stderr(), "{second} again: ended without waiting; what was owed comes again");
        std::process::exit(1);
    });
    Ok(Stop { token })
}

fn listen(kind: SignalKind) -> anyhow::Result<Signal> {
    signal(kind).context("cannot listen to signals")
}

async fn either(terminate: &mut Signal, interrupt: &mut Signal) -> &'static str {
    tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    }
}
