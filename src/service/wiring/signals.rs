//! Signals: the first SIGTERM or SIGINT asks for a graceful stop, the second one ends the process at once (B27).

use std::io::Write as _;
use std::time::Duration;

use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::hooks::{inherits_orphans, reap_orphans};

/// How long orphans may lie there: they cost a number each, and a look through all processes is not free.
const REAP_INTERVAL: Duration = Duration::from_secs(1);

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

/// As PID 1, waits for what commands left behind, from now on; anywhere else the system's own PID 1 does.
pub(super) fn reap() -> anyhow::Result<()> {
    if !inherits_orphans() {
        return Ok(());
    }
    let mut ended = listen(SignalKind::child())?;
    tokio::spawn(async move {
        while ended.recv().await.is_some() {
            tokio::time::sleep(REAP_INTERVAL).await;
            reap_orphans();
        }
    });
    Ok(())
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
