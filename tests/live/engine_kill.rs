//! The kill test (K4): a process under load is killed with SIGKILL again and again, at moments of chance, while
//! somebody outside writes down what it does. Resync is off and each id is published exactly once, so that whatever
//! is lost stays lost and is counted.
//!
//! The same with a planted fault, which lets go of an event when its run begins, must lose some: else this test would
//! show nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use evenkeel::hooks::{Webhook, WebhookSettings};
use evenkeel::id::ShardId;
use evenkeel::kafka::{Connection, KafkaStream, StreamSettings};
use evenkeel::local::{FileStore, LocalElector};
use evenkeel::{ClusterRecord, Engine, RECORD_FORMAT, ReconcilerOptions, RecordStore, Retry, Sharding, Timing};

use crate::broker::Broker;
use crate::engine_world::{More, Target};
use crate::recorder::{Recorder, Reply, Seen};
use crate::run_world::{Process, wait};
use crate::support::until;

const PARTITIONS: i32 = 4;
const SHARDS: u16 = 2;
/// Names what the child is to do, when this test runs as a child.
const CHILD: &str = "EVENKEEL_CHILD_OF_KILL_TEST";
/// How many ids are published at once, and how often.
const BATCH: usize = 25;
const EVERY: Duration = Duration::from_millis(100);

/// Numbers by chance from a seed that is printed (splitmix64).
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) fn new() -> Self {
        let given = std::env::var("EVENKEEL_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = given.unwrap_or_else(|| {
            use std::hash::{BuildHasher, RandomState};
            RandomState::new().hash_one(0)
        });
        println!("to repeat the moments of the kills: EVENKEEL_TEST_SEED={seed}");
        Self(seed)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}

/// Some answer fast and some slowly, some fail at first, some ask to be called again.
pub(crate) fn behave(id: &str, number: usize) -> Reply {
    let digits: u64 = id.rsplit('-').next().unwrap().parse().unwrap();
    let answer = match (digits % 20, number) {
        (3, 1) => Reply::Status(503),
        (7, 1..=3) => Reply::Json(serde_json::json!({"error": {"message": "not yet", "retry_after": "700ms"}})),
        (11, 1) => Reply::Json(serde_json::json!({"requeue_after": "300ms"})),
        _ => Reply::Done,
    };
    Reply::After(Duration::from_millis(digits * 7919 % 200), Box::new(answer))
}

/// Whether a request that was answered was a success. It failed where `behave` says so: the number is its place among
/// the requests of its id.
pub(crate) fn is_success(id: &str, number: usize) -> bool {
    match behave(id, number) {
        Reply::After(_, answer) => !matches!(*answer, Reply::Status(_)) && !is_error(&answer),
        _ => unreachable!("every answer takes its time"),
    }
}

fn is_error(answer: &Reply) -> bool {
    matches!(answer, Reply::Json(json) if json.get("error").is_some())
}

/// What was found out.
#[derive(Debug, Default)]
struct Counted {
    published: usize,
    kills: usize,
    runs: usize,
    /// Ids without any run that ended in success.
    lost: usize,
    /// Successes beyond the first of an id, but for those that asked to be called again.
    repeated: usize,
    /// Two runs of one id at a time.
    overlaps: usize,
    /// Offsets below a committed one that were neither done nor recorded, looked at after each kill.
    committed_undone: usize,
    /// Runs with a token that is not greater than the one before.
    tokens_back: usize,
    /// Attempts to answer the same event under another key.
    keys_changed: usize,
}

struct Killing<'a> {
    target: &'a Target,
    recorder: &'a Recorder,
    /// Where each id stands, as far as the broker has said.
    places: Places,
    /// When each process was started, and when it was killed.
    lives: Vec<(Instant, Instant)>,
    counted: Counted,
}

type Places = Arc<Mutex<Vec<(String, i32, i64)>>>;

impl Killing<'_> {
    /// The requests of each id, in order.
    fn by_id(&self) -> BTreeMap<String, Vec<Seen>> {
        let mut by_id: BTreeMap<String, Vec<Seen>> = BTreeMap::new();
        for seen in self.recorder.seen() {
            by_id.entry(seen.id.clone()).or_default().push(seen);
        }
        by_id
    }

    fn places(&self) -> Vec<(String, i32, i64)> {
        self.places.lock().unwrap().clone()
    }

    fn done(&self) -> BTreeSet<String> {
        let is_done = |(id, seen): &(String, Vec<Seen>)| {
            seen.iter().enumerate().any(|(place, seen)| seen.ended.is_some() && is_success(id, place + 1))
        };
        self.by_id().into_iter().filter(is_done).map(|(id, _)| id).collect()
    }

    /// After a kill: everything below the committed offsets is done or recorded (B04).
    async fn look(&mut self) {
        let (done, committed) = (self.done(), self.target.committed());
        let recorded = recorded(&self.target.project.path().join("evenkeel-data")).await;
        let undone = self.places().into_iter().filter(|(id, partition, offset)| {
            *offset < committed[partition] && !done.contains(id) && !recorded.contains(id)
        });
        self.counted.committed_undone += undone.count();
    }

    fn count(&mut self) {
        let done = self.done();
        self.counted.published = self.places().len();
        self.counted.kills = self.lives.len();
        self.counted.runs = self.recorder.total();
        self.counted.lost = self.places().iter().filter(|(id, _, _)| !done.contains(id)).count();
        for (id, seen) in self.by_id() {
            let successes = seen.iter().enumerate().filter(|(n, seen)| seen.ended.is_some() && is_success(&id, n + 1));
            let again = |answer: &Reply| matches!(answer, Reply::Json(_)) && !is_error(answer);
            let asked = usize::from(matches!(behave(&id, 1), Reply::After(_, answer) if again(&answer)));
            self.counted.repeated += successes.count().saturating_sub(1 + asked);
            for pair in seen.windows(2) {
                self.counted.overlaps += usize::from(self.end_of(&pair[0]) > pair[1].begun);
                self.counted.tokens_back += usize::from(pair[0].token >= pair[1].token);
            }
            let keys: BTreeSet<&String> = seen.iter().map(|seen| &seen.key).collect();
            // The one event of the id has one key; a time that was asked for is no event, and has another.
            self.counted.keys_changed += usize::from(keys.len() > 1 + asked);
        }
    }

    /// When a run had ended: with its answer, or with its process.
    fn end_of(&self, seen: &Seen) -> Instant {
        let own = self.lives.iter().rfind(|(started, _)| *started <= seen.begun);
        // What the network still had in hand when the process died is no run any more.
        let killed = own.map_or_else(Instant::now, |(_, killed)| *killed).max(seen.begun);
        seen.ended.map_or(killed, |ended| ended.min(killed))
    }
}

/// The ids that have an owed record.
async fn recorded(folder: &Path) -> BTreeSet<String> {
    let mut ids = BTreeSet::new();
    if !folder.exists() {
        return ids;
    }
    let store = FileStore::open(folder).await.expect("the store opens after a kill");
    for shard in 0..SHARDS {
        for record in store.load(ShardId(shard), None, usize::MAX).await.unwrap() {
            ids.insert(record.id);
        }
    }
    ids
}

/// Kills a process under load so many times, lets the last one finish, and counts.
async fn kill_again_and_again(kills: usize, planted: bool, start: impl Fn(&Target) -> Process) -> Option<Counted> {
    let broker = Broker::shared()?;
    let recorder = Recorder::start(behave);
    let more = More {
        reconciler: "  concurrency: 32\n  timeout: 5s\n  cancel_grace: 1s\n  retry: {initial: 250ms, max_delay: 2s}\n",
        stream: ", dead_letter: none",
        top: "shards: 2\ntiming: {max_hold: 1s}\ndrain_timeout: 5s\n",
        ..More::default()
    };
    let target = Target::new(broker, &recorder, PARTITIONS, &more).await;
    let mut chance = Chance::new();
    let places = Places::default();
    let counted = Counted::default();
    let mut killing =
        Killing { target: &target, recorder: &recorder, places: Arc::clone(&places), lives: Vec::new(), counted };
    let stop = Arc::new(AtomicBool::new(false));
    let producing = produce(&target, &stop, &places);
    let killing_it = async {
        for kill in 0..kills {
            let started = Instant::now();
            let mut process = start(&target);
            // One kill in five comes while the process starts, the others once it works.
            let working = recorder.total();
            if kill % 5 != 0 {
                until("it works", || recorder.total() > working + 5).await;
            }
            tokio::time::sleep(Duration::from_millis(chance.below(900))).await;
            process.kill();
            killing.lives.push((started, Instant::now()));
            killing.look().await;
        }
        stop.store(true, Ordering::SeqCst);
    };
    tokio::join!(producing, killing_it);
    let mut last = start(&target);
    let quiet = || {
        let idle = recorder.in_flight().0 == 0;
        idle && target.is_all_committed() && (planted || killing.done().len() == killing.places().len())
    };
    until("everything is committed", quiet).await;
    // What waits for a retry is not committed past, so nothing comes any more but what was asked for.
    let total = recorder.total();
    tokio::time::sleep(Duration::from_secs(3)).await;
    println!("{} runs more after the end", recorder.total() - total);
    let (status, _) = last.stop();
    assert!(status.success(), "{}", last.log());
    killing.look().await;
    killing.count();
    println!("{}: {:?}", if planted { "planted" } else { "sound" }, killing.counted);
    Some(killing.counted)
}

/// Publishes each id once until it is told to stop.
async fn produce(target: &Target, stop: &AtomicBool, places: &Places) {
    let mut tick = tokio::time::interval(EVERY);
    let mut from = 0;
    while !stop.load(Ordering::SeqCst) {
        tick.tick().await;
        let sent = target.send("id", from..from + BATCH).await;
        places.lock().unwrap().extend(sent);
        from += BATCH;
    }
}

#[track_caller]
fn assert_nothing_lost(counted: &Counted) {
    assert!(counted.published > 500, "{counted:?}");
    assert_eq!(counted.lost, 0, "{counted:?}");
    assert_eq!(counted.overlaps, 0, "{counted:?}");
    assert_eq!(counted.committed_undone, 0, "{counted:?}");
    assert_eq!((counted.tokens_back, counted.keys_changed), (0, 0), "{counted:?}");
    // At least once: what was under way at a kill comes again, and no more than that.
    assert!(counted.repeated <= counted.kills * 100, "{counted:?}");
}

/// The real binary.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k4_kill_9_at_any_moment_loses_no_event() {
    if let Some(counted) = kill_again_and_again(20, false, |target| {
        let mut command = target.project.command();
        command.arg("run");
        Process::spawn(command)
    })
    .await
    {
        assert_nothing_lost(&counted);
    }
}

/// An engine that lets go of events when their runs begin loses some of them; the same engine without that fault does
/// not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k4_a_process_that_lets_go_of_events_too_early_loses_some() {
    if let Ok(child) = std::env::var(CHILD) {
        return embedded(&serde_json::from_str(&child).unwrap()).await;
    }
    for planted in [false, true] {
        let Some(counted) = kill_again_and_again(6, planted, |target| child(target, planted)).await else { return };
        if planted {
            assert!(counted.lost > 0 && counted.committed_undone > 0, "the fault was not found: {counted:?}");
        } else {
            assert_nothing_lost(&counted);
        }
    }
}

fn child(target: &Target, planted: bool) -> Process {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let test = "engine_kill::k4_a_process_that_lets_go_of_events_too_early_loses_some";
    let config = std::fs::read_to_string(target.project.path().join("evenkeel.yaml")).unwrap();
    let after = |words: &str| config.split_once(words).unwrap().1;
    let told = serde_json::json!({
        "name": target.name,
        "topic": target.topic,
        "url": after("webhook: ").lines().next().unwrap(),
        "brokers": after("brokers: ['").split_once('\'').unwrap().0,
        "folder": target.project.path().join("evenkeel-data"),
        "planted": planted,
    });
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]).env(CHILD, told.to_string());
    Process::spawn(command)
}

/// The child: the same engine, put together by hand.
async fn embedded(told: &serde_json::Value) {
    let text = |key: &str| told[key].as_str().unwrap().to_owned();
    let store: Arc<dyn RecordStore> = Arc::new(FileStore::open(text("folder")).await.unwrap());
    let wanted = ClusterRecord {
        shards: SHARDS,
        hash: Sharding::default().hash,
        usage: "ids".into(),
        format: RECORD_FORMAT,
        incarnation: 0,
    };
    let stands = store.check_cluster(&wanted).await.unwrap();
    let connection = Connection { brokers: vec![text("brokers")], ..Connection::default() };
    let mut settings = StreamSettings::new(connection, text("name"), vec![text("topic")], SHARDS);
    settings.timing.commit = Duration::from_millis(100);
    let stream = KafkaStream::new(settings).unwrap();
    let committer = stream.committer();
    let retry = Retry { initial: Duration::from_millis(250), max_delay: Duration::from_secs(2), ..Retry::DEFAULT };
    let options = ReconcilerOptions { concurrency: 32, retry, ..ReconcilerOptions::default() };
    let timing = Timing { max_hold: Duration::from_secs(1), drain: Duration::from_secs(5), ..Timing::default() };
    let mut engine = Engine::builder("killed")
        .reconciler(Webhook::new(WebhookSettings::new(text("url"))).unwrap())
        .options(ReconcilerOptions { cancel_grace: Duration::from_secs(1), ..options })
        .timing(timing)
        .sharding(Sharding { shards: SHARDS.into(), ..Sharding::default() })
        .elector(Arc::new(LocalElector::new(Arc::clone(&store), &stands)))
        .incarnation(stands.incarnation)
        .store(store)
        .stream("orders", stream);
    if told["planted"] == true {
        engine = engine.plant("settle");
    }
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()).unwrap();
    engine.build().unwrap().run(async move { _ = terminate.recv().await }).await.unwrap();
    committer.close(Duration::from_secs(10)).await.unwrap();
}

/// Helpers of the world that only this binary's other tests use.
#[test]
fn the_kill_test_knows_what_succeeds() {
    assert!(is_success("id-0", 1) && !is_success("id-3", 1) && is_success("id-3", 2));
    assert!(!is_success("id-7", 3) && is_success("id-7", 4) && is_success("id-11", 1));
    wait("this is so", || true);
}
