//! The file store and kill -9: whatever it has answered for is there, and nothing is there by halves (B66, fault row
//! 32).

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use evenkeel::id::ShardId;
use evenkeel::local::FileStore;
use evenkeel::{RecordChange, RecordStore, Term};

use super::store_conformance::{attempt, load_all};
use super::support::{Chance, again, child, this_binary};

const SHARD: ShardId = ShardId(7);
const TASKS: usize = 4;
/// How many records one commit writes: one of them is deleted by the next commit, the rest are overwritten.
const BATCH: u32 = 5;
const KILLS: usize = 60;
/// How long a child may take to its first answer on a loaded machine.
const DEADLINE: Duration = Duration::from_secs(60);

fn name(task: usize, i: u32) -> String {
    format!("task-{task}/record-{i}")
}

/// Commit `n` of a task: all its records at attempt `n`, the one numbered `n mod BATCH` deleted.
fn batch(task: usize, n: u32) -> Vec<RecordChange> {
    let one = |i| match i == n % BATCH {
        true => RecordChange::Delete(name(task, i)),
        false => RecordChange::Put(attempt(&name(task, i), n)),
    };
    (0..BATCH).map(one).collect()
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(future)
}

/// The child: commits for ever from several tasks, and says what was answered.
async fn commit_until_killed(folder: &Path) {
    let store = Arc::new(FileStore::open(folder).await.unwrap());
    let term = Term { shard: SHARD, incarnation: 1, revision: store.next_revision(SHARD).await.unwrap() };
    let found = states(&store).await;
    let mut tasks = tokio::task::JoinSet::new();
    for (task, found) in found.into_iter().enumerate() {
        let store = Arc::clone(&store);
        tasks.spawn(async move {
            for n in found + 1.. {
                store.commit(term, &batch(task, n)).await.unwrap();
                let line = format!("done {task} {n}\n");
                std::io::stdout().lock().write_all(line.as_bytes()).unwrap();
            }
        });
    }
    tasks.join_all().await;
}

/// Which commit of each task stands in the store; fails on a commit that stands there by halves.
async fn states(store: &FileStore) -> [u32; TASKS] {
    let all = load_all(store, SHARD).await;
    let mut states = [0; TASKS];
    for (task, state) in states.iter_mut().enumerate() {
        let own: Vec<_> = all.iter().filter(|r| r.id.starts_with(&format!("task-{task}/"))).cloned().collect();
        if let Some(first) = own.first() {
            *state = first.attempt;
            let whole = batch(task, *state).into_iter().filter_map(|change| match change {
                RecordChange::Put(record) => Some(record),
                RecordChange::Delete(_) => None,
            });
            assert_eq!(own, whole.collect::<Vec<_>>(), "commit {state} of task {task} is whole");
        }
    }
    states
}

#[test]
fn b66_a_kill_at_any_moment_loses_nothing_that_was_answered() {
    if let Some(folder) = child() {
        return block_on(commit_until_killed(Path::new(&folder)));
    }
    let mut chance = Chance::new();
    let folder = tempfile::tempdir().unwrap();
    let mut before = [0; TASKS];
    for kill in 0..KILLS {
        // One kill in four comes while it starts: makes, opens or repairs the file.
        let (at_start, after) = (chance.below(4) == 0, Duration::from_micros(chance.below(30_000)));
        let answered = run_and_kill(folder.path(), at_start, after);
        let found = block_on(async { states(&FileStore::open(folder.path()).await.unwrap()).await });
        for task in 0..TASKS {
            let answered = answered[task].max(before[task]);
            let stands = found[task];
            assert!(
                stands == answered || stands == answered + 1,
                "kill {kill}, task {task}: commit {answered} was answered, {stands} stands"
            );
        }
        before = found;
    }
    assert!(before.iter().all(|n| *n > 0), "every task got somewhere: {before:?}");
}

/// Starts the child, kills it a while after its start or its first answer, and gives the last answer to each task.
fn run_and_kill(folder: &Path, at_start: bool, after: Duration) -> [u32; TASKS] {
    let test = "store_crash::b66_a_kill_at_any_moment_loses_nothing_that_was_answered";
    let mut command = again(Command::new(this_binary()), test, &folder.display().to_string());
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let (send, lines) = mpsc::channel();
    let output = BufReader::new(child.stdout.take().unwrap());
    let reader = std::thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| send.send(line)));
    let mut answered = [0; TASKS];
    let mut read = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        // The harness writes the name of the test before the first one.
        let [.., "done", task, n] = words[..] else { return false };
        answered[task.parse::<usize>().unwrap()] = n.parse().unwrap();
        true
    };
    while !at_start && !read(&lines.recv_timeout(DEADLINE).expect("the child answers")) {}
    let kill_at = Instant::now() + after;
    while let Ok(line) = lines.recv_timeout(kill_at.saturating_duration_since(Instant::now())) {
        read(&line);
    }
    child.kill().unwrap();
    // What it had said before counts too.
    lines.iter().for_each(|line| _ = read(&line));
    reader.join().unwrap().expect("somebody listened");
    let status = child.wait().unwrap();
    assert_eq!(status.code(), None, "the child was killed, it did not end: {status}");
    answered
}
