//! What the tests of hooks share: runs, captured logs, processes, waiting, and tests that need a process of their own.

use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant};

use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};

use crate::contract::{CancelReason, Class, Failure, FailureKind, Reconciler, Run, RunParts, Source, Sources, Term};
use crate::id::{Causes, Receipt, ShardId, SourceId, WorkerId};

/// How long a test waits for what must come; a loaded machine is slow, a broken program slower.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// A run of an id with all that a contract can carry.
pub(super) fn run_of(id: &str, timeout: Option<Duration>) -> Run {
    let sources = Arc::new(Sources::default());
    let mut source = Source::untracked("orders", Class::Event);
    source.partition = Some(("orders".into(), 7));
    let mut causes = Causes::one(Receipt::new(sources.open(source), 991));
    causes.add(Receipt::new(SourceId::RETRY, 2));
    let trace = SpanContext::new(
        TraceId::from_hex("4bf92f3577b34da6a3ce929d0e0e4736").unwrap(),
        SpanId::from_hex("00f067aa0ba902b7").unwrap(),
        TraceFlags::SAMPLED,
        true,
        TraceState::default(),
    );
    Run {
        parts: RunParts {
            id: id.into(),
            kind: "zones".into(),
            term: Term { shard: ShardId(3), incarnation: 1, revision: 4_711 },
            worker: WorkerId(0),
            number: 42,
            attempt: 3,
            latest: None,
            kept_key: Some(0xfeed),
            causes,
            sources,
            last_error: Some("no route".into()),
            timeout,
            origin: Instant::now(),
            started_nanos: 0,
            trace: Some(trace),
            cancel: Arc::default(),
        },
    }
}

/// Cancels a run as the engine does.
pub(super) fn cancel(run: &Run, reason: CancelReason) {
    let signal = run.parts.signal();
    signal.reason.set(reason).unwrap();
    signal.token.cancel();
}

/// What a reconciler answers for an id with time enough.
pub(super) async fn reconcile(hook: &impl Reconciler) -> Result<crate::contract::Action, Failure> {
    hook.reconcile(&run_of("prod/Database/orders", Some(PATIENCE))).await
}

/// The failure of a reconciler for an id with time enough.
pub(super) async fn failure(hook: &impl Reconciler) -> Failure {
    reconcile(hook).await.expect_err("the run must fail")
}

pub(super) const TRANSIENT: FailureKind = FailureKind::Transient(None);

/// Everything that is logged on this thread, at every level, until the guard is dropped.
pub(super) fn capture_logs() -> (Logs, tracing::subscriber::DefaultGuard) {
    // With only one subscriber in the process, a log line that is reached first on a thread without it stays off for
    // all.
    static SECOND: LazyLock<tracing::Dispatch> = LazyLock::new(|| {
        tracing::Dispatch::new(tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).finish())
    });
    LazyLock::force(&SECOND);
    let logs = Logs::default();
    let writer = logs.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    (logs, tracing::subscriber::set_default(subscriber))
}

#[derive(Clone, Default)]
pub(super) struct Logs(Arc<Mutex<Vec<u8>>>);

impl Logs {
    pub(super) fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Logs {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Waits until something is so.
pub(super) async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "waited too long until {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The processes that run for an id: those with it in their environment. One that has ended has no environment any
/// more.
pub(super) fn processes_of(id: &str) -> Vec<u32> {
    let mark = format!("EVENKEEL_ID={id}").into_bytes();
    let marked = |pid: u32| {
        std::fs::read(format!("/proc/{pid}/environ")).is_ok_and(|env| env.split(|b| *b == 0).any(|entry| entry == mark))
    };
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(|pid| marked(*pid)).collect()
}

/// An id that no other test and no other run of the tests uses.
pub(super) fn unique_id(name: &str) -> String {
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos();
    format!("{name}-{}-{now}", std::process::id())
}

/// Runs a test again in a process of its own with these variables, for what a process has only one of. Gives `true`
/// there.
pub(super) fn in_own_process(test: &str, variables: &[(&str, &str)]) -> bool {
    const INNER: &str = "EVK_TEST_INNER";
    if std::env::var_os(INNER).is_some() {
        return true;
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("hooks::tests::{test}"), "--nocapture"])
        .envs(variables.iter().copied())
        .env(INNER, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{test} in its own process: {}\n{text}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    false
}

/// Writes a file that can be run.
pub(super) fn write_program(path: &Path, text: &str) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}
