//! How commands are ended, and that nothing outlives its run (B14, C4).

use std::path::Path;
use std::time::Duration;

use super::support::{PATIENCE, TRANSIENT, cancel, in_own_process, processes_of, run_of, unique_id, until};
use crate::contract::{Action, CancelReason, Reconciler};
use crate::hooks::{Exec, ExecSettings};

fn exec(script: &str, term_grace: Duration) -> Exec {
    let mut settings = ExecSettings::new(["sh", "-c", script], "/");
    settings.term_grace = term_grace;
    Exec::new(settings).unwrap()
}

/// A command that ignores SIGTERM, and its child too, which holds the pipes.
const DEAF: &str = "trap '' TERM; sh -c 'trap \"\" TERM; while :; do sleep 300; done' & while :; do sleep 300; done";

async fn none_left(id: &str) {
    until("no process is left", || processes_of(id).is_empty()).await;
}

/// Reconciles an id of its own, within the test's patience.
async fn ends(script: &str, timeout: Duration) -> (Result<Action, crate::contract::Failure>, String) {
    let id = unique_id("b14");
    let run = run_of(&id, Some(timeout));
    let outcome = tokio::time::timeout(PATIENCE, exec(script, Duration::from_millis(300)).reconcile(&run)).await;
    (outcome.expect("the worker is held"), id)
}

#[tokio::test]
async fn b14_a_the_timeout_holds_though_a_grandchild_has_the_pipes() {
    let (outcome, id) = ends("sleep 300 & sleep 300", Duration::from_secs(1)).await;
    let failure = outcome.unwrap_err();
    assert_eq!(failure.kind(), TRANSIENT);
    assert!(failure.message().contains("it took longer than 1s"), "{failure}");
    none_left(&id).await;
}

#[tokio::test]
async fn b14_b_a_good_end_is_good_though_a_grandchild_has_the_pipes() {
    let (logs, _guard) = super::support::capture_logs();
    let (outcome, id) = ends("sleep 300 & echo ok", PATIENCE).await;
    assert_eq!(outcome.unwrap(), Action::done());
    assert!(logs.text().contains("INFO evenkeel::hook: ok"), "{}", logs.text());
    none_left(&id).await;
}

#[tokio::test]
async fn b14_c_what_left_the_group_with_the_pipes_holds_nothing_up_and_is_ended_too() {
    let (outcome, id) = ends("setsid sleep 300 & echo ok", PATIENCE).await;
    assert_eq!(outcome.unwrap(), Action::done());
    none_left(&id).await;
}

#[tokio::test]
async fn b14_a_command_and_a_grandchild_that_ignore_sigterm_are_both_gone() {
    for script in [DEAF.to_owned(), format!("setsid sh -c '{}' & {DEAF}", DEAF.replace('\'', "'\\''"))] {
        let (outcome, id) = ends(&script, Duration::from_secs(1)).await;
        assert!(outcome.unwrap_err().message().contains("it took longer than 1s"));
        none_left(&id).await;
    }
}

#[tokio::test]
async fn a_command_that_closes_its_output_and_runs_on_is_ended() {
    let (outcome, id) = ends("exec <&- >&- 2>&-; sleep 300", Duration::from_secs(1)).await;
    assert!(outcome.unwrap_err().message().contains("it took longer than 1s"));
    none_left(&id).await;
}

#[tokio::test]
async fn a_flood_without_end_is_ended_by_the_runs_time() {
    let (outcome, id) = ends("yes & yes >&2", Duration::from_secs(1)).await;
    let failure = outcome.unwrap_err();
    assert!(failure.message().contains("it took longer than 1s: y | y"), "{failure}");
    none_left(&id).await;
}

#[tokio::test]
async fn many_children_of_a_command_are_all_gone() {
    let script = "i=0; while [ $i -lt 200 ]; do sleep 300 & i=$((i+1)); done; wait";
    let (outcome, id) = ends(script, Duration::from_secs(3)).await;
    assert!(outcome.is_err());
    none_left(&id).await;
}

#[tokio::test]
async fn c3_a_cancelled_command_may_clean_up_but_does_not_count_as_done() {
    let (id, dir) = (unique_id("c3"), tempfile::tempdir().unwrap());
    let (started, cleaned) = (dir.path().join("started"), dir.path().join("cleaned"));
    let script = format!(
        "trap 'echo cleaned > {}; exit 0' TERM; : > {}; while :; do sleep 0.05; done",
        cleaned.display(),
        started.display()
    );
    let (exec, run) = (exec(&script, PATIENCE), run_of(&id, None));
    let (outcome, ()) = tokio::join!(exec.reconcile(&run), async {
        until("it has started", || started.exists()).await;
        cancel(&run, CancelReason::Triggered);
    });
    let failure = outcome.unwrap_err();
    assert!(failure.message().contains("the id was triggered again"), "{failure}");
    assert!(cleaned.exists(), "SIGTERM comes first, and there was time: {failure}");
    none_left(&id).await;
}

/// The folders for answers of this process's runs are named by their commands; none may stay.
fn answer_folder(dir: &Path) -> Option<std::path::PathBuf> {
    let text = std::fs::read_to_string(dir.join("answer")).ok()?;
    text.ends_with('\n').then(|| Path::new(text.trim_end()).parent().unwrap().to_owned())
}

#[tokio::test]
async fn c4_a_dropped_run_takes_everything_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let id = unique_id("c4");
    let script = format!("echo $EVENKEEL_ANSWER > {}/answer; setsid sleep 300 & {DEAF}", dir.path().display());
    let (exec, run) = (exec(&script, PATIENCE), run_of(&id, None));
    tokio::select! {
        _ = exec.reconcile(&run) => panic!("it does not end by itself"),
        () = until("all of it runs", || processes_of(&id).len() >= 4 && answer_folder(dir.path()).is_some()) => {}
    }
    none_left(&id).await;
    let folder = answer_folder(dir.path()).unwrap();
    until("the answer's folder is removed", || !folder.exists()).await;
    until("the command is reaped", || !has_zombies_named("sh")).await;
}

/// Whether a child of this process has ended and was not waited for.
fn has_zombies_named(name: &str) -> bool {
    let me = std::process::id().to_string();
    std::fs::read_dir("/proc").unwrap().flatten().any(|entry| {
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let Some((before, after)) = stat.split_once(") ") else { return false };
        let mut fields = after.split(' ');
        before.ends_with(&format!("({name}")) && fields.next() == Some("Z") && fields.next() == Some(&me)
    })
}

#[test]
fn c4_dropped_at_any_moment_nothing_is_left() {
    // Other tests have threads and children of their own.
    if in_own_process("exec_end::c4_dropped_at_any_moment_nothing_is_left", &[]) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(drop_at_any_moment());
    }
}

async fn drop_at_any_moment() {
    let id = unique_id("moment");
    let exec = exec("sleep 300 & sleep 300", PATIENCE);
    for micros in (0..6_000).step_by(150) {
        let run = run_of(&id, None);
        let dropped = tokio::time::timeout(Duration::from_micros(micros), exec.reconcile(&run)).await;
        assert!(dropped.is_err());
    }
    // What was not started yet when it was dropped starts and ends after this; its thread has it in hand.
    until("the threads have ended", || child_threads() == 0).await;
    none_left(&id).await;
}

/// How many threads of this process wait for a child.
fn child_threads() -> usize {
    let names = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = names.filter_map(|entry| std::fs::read_to_string(entry.path().join("comm")).ok());
    names.filter(|name| name.trim_end() == "evenkeel-exec").count()
}

#[test]
fn c4_a_runtime_that_is_torn_down_leaves_nothing() {
    let id = unique_id("torn");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let task_id = id.clone();
    runtime.spawn(async move {
        let run = run_of(&task_id, None);
        exec(DEAF, PATIENCE).reconcile(&run).await
    });
    runtime.block_on(until("it runs", || processes_of(&id).len() >= 2));
    drop(runtime);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(none_left(&id));
}

#[tokio::test]
async fn a_daemon_that_gave_up_its_pipes_survives_a_good_end() {
    let id = unique_id("daemon");
    let (run, dir) = (run_of(&id, Some(PATIENCE)), tempfile::tempdir().unwrap());
    let ready = dir.path().join("ready").display().to_string();
    let daemon = format!("setsid sh -c ': > {ready}; exec sleep 300' < /dev/null > /dev/null 2>&1 &");
    let script = format!("{daemon} while [ ! -e {ready} ]; do sleep 0.01; done");
    assert_eq!(exec(&script, PATIENCE).reconcile(&run).await.unwrap(), Action::done());
    let left = processes_of(&id);
    assert_eq!(left.len(), 1);
    for pid in left {
        let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }
}
