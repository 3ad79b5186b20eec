//! The fleet: processes, services, events that keep coming, and the count of what happened.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use evenkeel::RecordStore as _;
use evenkeel::etcd::{EtcdStore, Keys};
use evenkeel::id::{Partitioner, Router, ShardId};

use crate::broker::Broker;
use crate::engine_kill::{behave, is_success};
use crate::engine_world::{More, Target};
use crate::member::Members;
use crate::recorder::{Recorder, Seen};
use crate::run_world::Process;
use crate::support::{Hand, until};

const PARTITIONS: i32 = 4;
pub(crate) const SHARDS: u16 = 2;
/// How many ids are published at once, and how often.
const BATCH: usize = 10;
const EVERY: Duration = Duration::from_millis(100);

type Places = Arc<Mutex<Vec<(String, i32, i64)>>>;

/// Two processes of one controller: one leads, the other stands by.
pub(crate) struct Fleet {
    pub(crate) members: Members,
    pub(crate) recorder: Recorder,
    pub(crate) target: Target,
    pub(crate) ttl: Duration,
    pub(crate) leader: Process,
    pub(crate) standby: Process,
    places: Places,
    stop: Arc<AtomicBool>,
    producer: tokio::task::JoinHandle<()>,
    /// Offsets below a committed one that were neither done nor recorded, over all looks.
    committed_undone: usize,
}

impl Fleet {
    /// Starts everything; the first process leads all shards before the second one starts.
    pub(crate) async fn start(members: usize, ttl: Duration) -> Option<Self> {
        let broker = Broker::shared()?;
        let members = Members::start(members)?;
        let recorder = Recorder::start(behave);
        let top = format!(
            "shards: {SHARDS}\ntiming: {{max_hold: 1s}}\ndrain_timeout: 5s\netcd: {{endpoints: {:?}, ttl: {}s}}\n",
            members.endpoints(),
            ttl.as_secs()
        );
        let more = More {
            reconciler: "  concurrency: 32\n  timeout: 5s\n  cancel_grace: 1s\n  retry: {initial: 250ms, max_delay: 2s}\n",
            stream: ", dead_letter: none",
            top: &top,
            ..More::default()
        };
        let target = Target::new(broker, &recorder, PARTITIONS, &more).await;
        let leader = target.start();
        let standby = spawn(&target);
        standby.until_started();
        let (places, stop) = (Places::default(), Arc::new(AtomicBool::new(false)));
        let sender = (Hand::new(broker), target.topic.clone());
        let producer = tokio::spawn(produce(sender, Arc::clone(&stop), Arc::clone(&places)));
        Some(Self { members, recorder, target, ttl, leader, standby, places, stop, producer, committed_undone: 0 })
    }

    /// A process that joins and stands by.
    pub(crate) fn spawn(&self) -> Process {
        spawn(&self.target)
    }

    /// Waits until so many runs more have begun.
    pub(crate) async fn until_works(&self, runs: usize) {
        let before = self.recorder.total();
        until("it works", || self.recorder.total() >= before + runs).await;
    }

    /// Waits until the two lead all shards. One that leads them all is the leader from now on.
    pub(crate) async fn until_led(&mut self) {
        let mut by_standby = 0;
        until("all shards are led", || {
            by_standby = led(&self.standby);
            by_standby + led(&self.leader) == u64::from(SHARDS)
        })
        .await;
        if by_standby == u64::from(SHARDS) {
            std::mem::swap(&mut self.leader, &mut self.standby);
        }
    }

    /// Everything below the committed offsets is done or recorded (B04). What is committed is read first: what was
    /// recorded then may be done now.
    pub(crate) async fn look(&mut self) {
        let committed = self.target.committed();
        let recorded = self.recorded().await;
        let done = self.done();
        let undone = |(id, partition, offset): &&(String, i32, i64)| {
            *offset < committed[partition] && !done.contains(id) && !recorded.contains(id)
        };
        self.committed_undone += self.places.lock().unwrap().iter().filter(undone).count();
    }

    async fn recorded(&self) -> BTreeSet<String> {
        let store = EtcdStore::new(self.members.etcd(), Keys::new(&self.target.name));
        let mut ids = BTreeSet::new();
        for shard in 0..SHARDS {
            let records = store.load(ShardId(shard), None, usize::MAX).await.unwrap();
            ids.extend(records.into_iter().map(|record| record.id));
        }
        ids
    }

    /// The requests of each id, in order.
    fn by_id(&self) -> BTreeMap<String, Vec<Seen>> {
        let mut by_id: BTreeMap<String, Vec<Seen>> = BTreeMap::new();
        for seen in self.recorder.seen() {
            by_id.entry(seen.id.clone()).or_default().push(seen);
        }
        by_id
    }

    fn done(&self) -> BTreeSet<String> {
        let is_done = |(id, seen): &(String, Vec<Seen>)| {
            seen.iter().enumerate().any(|(place, seen)| seen.ended.is_some() && is_success(id, place + 1))
        };
        self.by_id().into_iter().filter(is_done).map(|(id, _)| id).collect()
    }

    /// Publishes no more, waits until all is done, stops both processes, and counts.
    pub(crate) async fn finish(&mut self) -> Counted {
        self.stop.store(true, Ordering::SeqCst);
        (&mut self.producer).await.unwrap();
        let published = self.places.lock().unwrap().len();
        let quiet =
            || self.recorder.in_flight().0 == 0 && self.target.is_all_committed() && self.done().len() == published;
        until("everything is done and committed", quiet).await;
        for process in [&mut self.standby, &mut self.leader] {
            let (status, _) = process.stop();
            assert!(status.success(), "{}", process.log());
        }
        self.look().await;
        let counted = self.count(published).await;
        println!("{counted:?}");
        counted
    }

    async fn count(&self, published: usize) -> Counted {
        let done = self.done();
        let mut counted = Counted {
            published,
            runs: self.recorder.total(),
            lost: published - done.len(),
            committed_undone: self.committed_undone,
            late_writes: self.late_writes().await,
            ..Counted::default()
        };
        for seen in self.by_id().into_values() {
            let mut highest = String::new();
            for pair in seen.windows(2) {
                let overlap = pair[0].left.is_none_or(|left| left > pair[1].begun);
                let equal = term(&pair[0].token) == term(&pair[1].token);
                counted.overlaps_equal += usize::from(overlap && equal);
                counted.overlaps += usize::from(overlap);
            }
            for seen in seen {
                counted.refused += usize::from(seen.token <= highest);
                highest = highest.max(seen.token);
            }
        }
        counted
    }

    /// Changes of records that an earlier term made after a later one had made some, in all of etcd's history.
    async fn late_writes(&self) -> usize {
        let mut late = 0;
        for shard in 0..SHARDS {
            let key = Keys::new(&self.target.name).head(ShardId(shard));
            let mut hand = self.members.hand(0).await;
            let current = hand.get(key.clone(), None).await.unwrap();
            let Some(last) = current.kvs().first().map(etcd_client::KeyValue::version) else { continue };
            let from = etcd_client::WatchOptions::new().with_start_revision(1);
            let mut watch = hand.watch(key, Some(from)).await.unwrap();
            let (mut seen, mut highest) = (0, 0);
            while seen < last {
                for event in watch.message().await.unwrap().expect("the watch goes on").events() {
                    let value = event.kv().unwrap().value_str().unwrap().to_owned();
                    let term: u64 = value.split(' ').next().unwrap().parse().unwrap();
                    late += usize::from(term < highest);
                    highest = highest.max(term);
                    seen += 1;
                }
            }
        }
        late
    }

    /// The terms of each shard as the recorder saw them, in order: the term, its first begin and its last end.
    pub(crate) fn terms(&self) -> Vec<Vec<(u64, Instant, Instant)>> {
        let router = Router::new(Partitioner::default(), SHARDS.into(), 1).unwrap();
        let mut shards = vec![BTreeMap::<u64, (Instant, Instant)>::new(); SHARDS.into()];
        for seen in self.recorder.seen() {
            let shard = router.place(&seen.id).unwrap().shard;
            let end = seen.ended.unwrap_or(seen.begun);
            let entry = shards[usize::from(shard.0)].entry(term(&seen.token)).or_insert((seen.begun, end));
            *entry = (entry.0.min(seen.begun), entry.1.max(end));
        }
        shards
            .into_iter()
            .map(|terms| terms.into_iter().map(|(term, (begun, ended))| (term, begun, ended)).collect())
            .collect()
    }

    /// How many terms there were so far.
    pub(crate) fn terms_begun(&self) -> usize {
        self.terms().iter().map(Vec::len).sum()
    }
}

/// What was found out.
#[derive(Debug, Default)]
pub(crate) struct Counted {
    pub(crate) published: usize,
    pub(crate) runs: usize,
    /// Ids without any run that ended in success.
    pub(crate) lost: usize,
    pub(crate) committed_undone: usize,
    /// Two runs of one id at a time, of one term and of any.
    pub(crate) overlaps_equal: usize,
    pub(crate) overlaps: usize,
    /// Calls that a target which checks tokens would have refused.
    pub(crate) refused: usize,
    /// Changes of records by a term that was over.
    pub(crate) late_writes: usize,
}

impl Counted {
    /// What must hold whatever happens.
    #[track_caller]
    pub(crate) fn assert_sound(&self) {
        assert!(self.published > 50 && self.runs >= self.published, "{self:?}");
        assert_eq!((self.lost, self.committed_undone), (0, 0), "{self:?}");
        assert_eq!((self.overlaps_equal, self.late_writes), (0, 0), "{self:?}");
    }

    /// What must hold besides, as long as clocks keep their rate and no process stands still.
    #[track_caller]
    pub(crate) fn assert_alone(&self) {
        self.assert_sound();
        assert_eq!((self.overlaps, self.refused), (0, 0), "{self:?}");
    }
}

/// How many shards a process leads.
pub(crate) fn led(process: &Process) -> u64 {
    process.json(&["status"])["led"].as_u64().unwrap()
}

/// The term in a token.
pub(crate) fn term(token: &str) -> u64 {
    token.split('-').nth(1).unwrap().parse().unwrap()
}

fn spawn(target: &Target) -> Process {
    let mut command = target.project.command();
    command.arg("run");
    Process::spawn(command)
}

/// Publishes each id once until it is told to stop.
async fn produce(sender: (Hand, String), stop: Arc<AtomicBool>, places: Places) {
    let (hand, topic) = sender;
    let mut tick = tokio::time::interval(EVERY);
    let mut from = 0;
    while !stop.load(Ordering::SeqCst) {
        tick.tick().await;
        let ids: Vec<String> = (from..from + BATCH).map(|number| format!("id-{number}")).collect();
        let sent = hand.send_hashed(&topic, PARTITIONS, &ids).await;
        places.lock().unwrap().extend(sent);
        from += BATCH;
    }
}

/// How long gaps were, for people: the middle, the 99th of a hundred, and the longest.
pub(crate) fn summary(what: &str, gaps: &[Duration], ttl: Duration) -> String {
    let mut sorted = gaps.to_vec();
    sorted.sort_unstable();
    let at = |percent: usize| sorted[(sorted.len() * percent).div_ceil(100).saturating_sub(1)];
    let shown = |gap: Duration| format!("{} ms ({:.2} TTL)", gap.as_millis(), gap.as_secs_f64() / ttl.as_secs_f64());
    let (half, most, longest) = (shown(at(50)), shown(at(99)), shown(at(100)));
    format!("{what}, TTL {ttl:?}, n {}: p50 {half}, p99 {most}, longest {longest}", gaps.len())
}
