//! Runs that block their threads (C4, L8): nothing can end them but the end of the process, so the liveness check
//! fails and names them, their attempt is recorded first, and the third time they are parked.
//!
//! Each engine is a process of its own, which is killed as an orchestrator kills what does not live.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::park_timeout;
use std::time::{Duration, Instant};

use evenkeel::local::LocalElector;
use evenkeel::{
    Action, Engine, Failure, Handle, OwedReason, OwedRecord, Reconciler, ReconcilerOptions, RecordStore, Run, Timing,
};

use super::engine_world::{Calls, PATIENCE, SECOND, builder, lock, open, options};
use super::store_conformance::{cluster, load_all, record};
use super::support::{again, child, this_binary};

const SHARD: evenkeel::id::ShardId = evenkeel::id::ShardId(0);

/// How the run of `poison` blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// At its first poll, in the shard's own loop.
    Inline,
    /// In a task of its own, while other threads are free.
    Task,
    /// In a task of its own, on the only thread there is.
    OnlyThread,
}

impl Way {
    const ALL: [Self; 3] = [Self::Inline, Self::Task, Self::OnlyThread];

    fn threads(self) -> usize {
        if self == Self::OnlyThread { 1 } else { 3 }
    }
}

/// Blocks for ever in `poison`, or until the gate opens; everything else is done at once.
struct Blocks {
    way: Way,
    gate: Mutex<mpsc::Receiver<()>>,
    calls: Calls,
}

impl Reconciler for Blocks {
    async fn reconcile(&self, run: &Run) -> Result<Action, Failure> {
        let answer = self.calls.reconcile(run).await;
        if run.id() == "poison" {
            if self.way != Way::Inline {
                tokio::task::yield_now().await;
            }
            let _ = lock(&self.gate).recv();
        }
        answer
    }
}

fn blocked(way: Way, calls: &Calls) -> (Engine, Handle, mpsc::Sender<()>) {
    let (gate, opens) = mpsc::channel();
    let short = Duration::from_millis(100);
    let options = ReconcilerOptions { timeout: Some(short), cancel_grace: short, ..options() };
    let timing = Timing { drain: SECOND, ..Timing::default() };
    let blocks = Blocks { way, gate: Mutex::new(opens), calls: calls.clone() };
    let engine = builder(blocks).hasty().options(options).timing(timing).build().unwrap();
    let handle = engine.handle();
    (engine, handle, gate)
}

fn runtime(way: Way) -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(way.threads()).enable_all().build().unwrap()
}

/// Waits without a runtime, which may be blocked.
#[track_caller]
fn wait(what: &str, mut so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !so() {
        assert!(begun.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        park_timeout(Duration::from_millis(10));
    }
}

/// The child: an engine with the store of this folder. Says what it hears of `other`, and when it does not live.
fn live_until_killed(way: Way, folder: &Path) {
    let calls = Calls::done();
    let runtime = runtime(way);
    let (gate, opens) = mpsc::channel::<()>();
    let engine = runtime.block_on(async {
        let store = open(folder).await;
        let stands = store.check_cluster(&cluster()).await.unwrap();
        let short = Duration::from_millis(100);
        let options = ReconcilerOptions { timeout: Some(short), cancel_grace: short, ..options() };
        let elector = Arc::new(LocalElector::new(store.clone(), &stands));
        let blocks = Blocks { way, gate: Mutex::new(opens), calls: calls.clone() };
        builder(blocks).hasty().options(options).store(store).elector(elector).build().unwrap()
    });
    let handle = engine.handle();
    let watcher = std::thread::spawn(move || {
        wait("other is admitted", || handle.trigger("other").is_ok());
        if way == Way::Task {
            wait("other runs", || calls.count("other") > 0);
            println!("ran other");
        }
        wait("it does not live", || !handle.health().live);
        println!("dead {}", handle.health().problems.join("; "));
    });
    let ended = runtime.block_on(engine.run(std::future::pending()));
    println!("ended {}", ended.unwrap_err());
    let _ = watcher.join();
    drop(gate);
    // What blocks would be waited for, for ever.
    std::process::exit(1);
}

/// A child with what it said.
struct Lives {
    child: Child,
    lines: mpsc::Receiver<String>,
}

impl Lives {
    fn start(test: &str, way: Way, folder: &Path) -> Self {
        let mode = format!("{way:?} {}", folder.display());
        let command = again(Command::new(this_binary()), &format!("engine_blocked::{test}"), &mode);
        Self::spawn(command)
    }

    fn spawn(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let (send, lines) = mpsc::channel();
        let output = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| send.send(line)));
        Self { child, lines }
    }

    /// What comes after these words.
    #[track_caller]
    fn says(&self, words: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("it never said {words:?}"));
            // The harness writes the name of the test before the first line.
            if let Some((_, rest)) = line.split_once(words) {
                return rest.trim().to_owned();
            }
        }
    }
}

impl Drop for Lives {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// If this is the child, lives as one.
fn is_child() -> bool {
    let Some(mode) = child() else { return false };
    let (way, folder) = mode.split_once(' ').unwrap();
    let way = Way::ALL.into_iter().find(|known| format!("{known:?}") == way).unwrap();
    live_until_killed(way, Path::new(folder));
    true
}

async fn records(folder: &Path) -> Vec<OwedRecord> {
    let store = open(folder).await;
    let store: &dyn RecordStore = &*store;
    load_all(store, SHARD).await
}

/// Writes the record that brings `poison` into the next process.
async fn owe(folder: &Path, stuck: u8) {
    let store = open(folder).await;
    store.check_cluster(&cluster()).await.unwrap();
    let term = evenkeel::Term { shard: SHARD, incarnation: 1, revision: store.next_revision(SHARD).await.unwrap() };
    let owed =
        OwedRecord { due: std::time::SystemTime::UNIX_EPOCH, attempt: u32::from(stuck), stuck, ..record("poison") };
    store.commit(term, &[evenkeel::RecordChange::Put(owed)]).await.unwrap();
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// Three times the process is ended, and three times the attempt was recorded before; then the id is parked, and the
/// process lives.
fn third_time_parked(test: &str, way: Way, already: u8) {
    let folder = tempfile::tempdir().unwrap();
    block_on(owe(folder.path(), already));
    for stuck in already + 1..=3 {
        let lives = Lives::start(test, way, folder.path());
        let dead = lives.says("dead ");
        assert!(dead.contains("a run of \"poison\" blocks its thread and cannot be stopped"), "{dead}");
        // The liveness check must not fail before the attempt is recorded, or the process could be ended too early.
        drop(lives);
        let records = block_on(records(folder.path()));
        let poison = records.iter().find(|record| record.id == "poison").unwrap();
        assert_eq!(poison.stuck, stuck, "{way:?}: {poison:?}");
        assert_eq!(poison.attempt, u32::from(stuck), "{way:?}: the attempt counts: {poison:?}");
        assert!(poison.error.as_deref().unwrap().contains("blocks its thread"), "{poison:?}");
    }
    let calls = Calls::done();
    let (other, poison) = block_on(async {
        let store = open(folder.path()).await;
        let stands = store.check_cluster(&cluster()).await.unwrap();
        let elector = Arc::new(LocalElector::new(store.clone(), &stands));
        let running = super::engine_world::Running::start(builder(calls.clone()).store(store).elector(elector)).await;
        running.trigger("other", evenkeel::engine::view::WaitFor::Done).await;
        let explained = running.explain("poison").await;
        assert!(running.handle.health().live);
        running.stop().await.unwrap();
        (calls.count("other"), explained)
    });
    assert_eq!((other, calls.count("poison")), (1, 0));
    assert_eq!(poison.entry.as_ref().unwrap().parked, Some(OwedReason::Stuck), "{poison:?}");
    assert!(poison.why.contains("blocked their threads three times"), "{}", poison.why);
}

#[test]
fn c4_a_run_that_blocks_the_loop_is_named_recorded_and_parked_the_third_time() {
    if !is_child() {
        let test = "c4_a_run_that_blocks_the_loop_is_named_recorded_and_parked_the_third_time";
        third_time_parked(test, Way::Inline, 0);
    }
}

#[test]
fn c4_a_run_that_blocks_its_task_is_named_recorded_and_parked_the_third_time() {
    if !is_child() {
        let test = "c4_a_run_that_blocks_its_task_is_named_recorded_and_parked_the_third_time";
        third_time_parked(test, Way::Task, 2);
    }
}

#[test]
fn c4_a_run_that_blocks_the_only_thread_is_named_recorded_and_parked_the_third_time() {
    if !is_child() {
        let test = "c4_a_run_that_blocks_the_only_thread_is_named_recorded_and_parked_the_third_time";
        third_time_parked(test, Way::OnlyThread, 2);
    }
}

/// L8: a loop that is silent for 30 seconds (here for 3) ends the engine, so that another can lead; nobody has to
/// look at `/livez`.
#[test]
fn l8_a_loop_that_is_silent_ends_the_engine() {
    if is_child() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    block_on(owe(folder.path(), 0));
    let mut lives = Lives::start("l8_a_loop_that_is_silent_ends_the_engine", Way::OnlyThread, folder.path());
    let ended = lives.says("ended ");
    assert!(ended.contains("the loop of shard 0 is silent for 3 s") && ended.contains("poison"), "{ended}");
    assert_eq!(lives.child.wait().unwrap().code(), Some(1));
}

/// A run that blocks its thread for long and then goes on: the process is well again, and nothing is left of it.
#[test]
fn c4_a_run_that_goes_on_after_all_leaves_no_trace() {
    for way in Way::ALL {
        let folder = tempfile::tempdir().unwrap();
        let calls = Calls::done();
        let runtime = runtime(way);
        let (gate, opens) = mpsc::channel::<()>();
        let engine = runtime.block_on(async {
            let store = open(folder.path()).await;
            let stands = store.check_cluster(&cluster()).await.unwrap();
            let short = Duration::from_millis(100);
            let options = ReconcilerOptions { timeout: Some(short), cancel_grace: short, ..options() };
            let elector = Arc::new(LocalElector::new(store.clone(), &stands));
            let blocks = Blocks { way, gate: Mutex::new(opens), calls: calls.clone() };
            builder(blocks).hasty().options(options).store(store).elector(elector).build().unwrap()
        });
        let handle = engine.handle();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let running = runtime.spawn(engine.run(async { _ = stopped.await }));
        wait("it is admitted", || handle.trigger("poison").is_ok());
        wait("it does not live", || !handle.health().live);
        gate.send(()).unwrap();
        // From now on the gate is open: the next attempt does not block.
        drop(gate);
        wait("it lives again", || handle.health().live && handle.health().ready);
        // It took too long, so it is tried again; a success of that leaves nothing owed.
        wait("nothing is owed", || {
            let explained = runtime.block_on(handle.explain("poison")).unwrap();
            let status = runtime.block_on(handle.status()).unwrap();
            explained.state == evenkeel::engine::view::IdState::Idle && status.counts.owed_records == 0
        });
        drop(stop);
        runtime.block_on(running).unwrap().unwrap();
        drop(handle);
        assert_eq!(block_on(records(folder.path())), Vec::new(), "{way:?}");
    }
}

/// A stop while a run blocks: the engine says that it cannot end it, in time, instead of saying that all is well.
#[test]
fn c4_b89_a_stop_says_which_run_it_could_not_end() {
    for way in [Way::Task, Way::Inline] {
        let calls = Calls::done();
        let runtime = runtime(way);
        let inside = runtime.enter();
        let (engine, handle, gate) = blocked(way, &calls);
        drop(inside);
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let running = runtime.spawn(engine.run(async { _ = stopped.await }));
        wait("it is admitted", || handle.trigger("poison").is_ok());
        wait("it blocks", || calls.count("poison") == 1);
        drop(stop);
        if way == Way::Inline {
            // The loop itself is blocked: it can stop only when the run lets go of it.
            wait("it does not live", || !handle.health().live);
            gate.send(()).unwrap();
            drop(gate);
            runtime.block_on(running).unwrap().unwrap();
            continue;
        }
        let error = runtime.block_on(running).unwrap().unwrap_err().to_string();
        // Its thread may hold the loop's next turn too; then the loop is found silent.
        assert!(error.contains("poison"), "{error}");
        assert!(!handle.health().live);
        drop(gate);
    }
}
