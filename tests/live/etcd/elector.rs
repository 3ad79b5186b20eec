//! The elector against real members: handed over, lost in every way, taken over, and led again.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use evenkeel::etcd::{Connection, ElectorSettings, Etcd, EtcdElector, Keys, User, agree, compare};
use evenkeel::id::{Partitioner, ShardId};
use evenkeel::{ClusterRecord, Elector, Leadership, Secret, StoreError};
use tokio::time::timeout;

use crate::member::Members;
use crate::support::SOON;

const SHARD: ShardId = ShardId(1);
const SHORT: Duration = Duration::from_secs(3);
const LONG: Duration = Duration::from_secs(10);
/// How long it is watched that nothing happens.
const A_WHILE: Duration = Duration::from_millis(700);

/// An elector under a name, and how often it found that runs went on for too long.
struct Process {
    elector: EtcdElector,
    overruns: Arc<AtomicU32>,
}

impl Process {
    fn start(name: &str, connection: Connection, ttl: Duration) -> Self {
        let overruns = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&overruns);
        let overrun = Arc::new(move |_| {
            counted.fetch_add(1, Ordering::SeqCst);
        });
        let settings = ElectorSettings { overrun, ..Self::settings(name, connection, ttl) };
        Self { elector: EtcdElector::start(settings).unwrap(), overruns }
    }

    fn settings(name: &str, connection: Connection, ttl: Duration) -> ElectorSettings {
        ElectorSettings {
            connection,
            keys: Keys::new("dns"),
            process: name.to_owned(),
            shards: 4,
            ttl,
            incarnation: 1,
            overrun: Arc::new(|shard| panic!("shard {shard} goes on")),
        }
    }

    fn of(name: &str, members: &Members, ttl: Duration) -> Self {
        Self::start(name, Connection::new(members.endpoints()), ttl)
    }

    async fn lead(&self) -> Leadership {
        timeout(SOON, self.elector.lead(SHARD)).await.expect("it leads in time").unwrap()
    }

    async fn release(&self, leadership: Leadership) {
        timeout(SOON, self.elector.release(leadership)).await.expect("it is given back in time");
    }

    /// Whether the shard is still not won after a while.
    async fn is_kept_waiting(&self) -> bool {
        timeout(A_WHILE, self.elector.lead(SHARD)).await.is_err()
    }
}

async fn ends(leadership: &Leadership) {
    timeout(SOON, leadership.ended.cancelled()).await.expect("it ends in time");
}

#[tokio::test(flavor = "multi_thread")]
async fn l5_l9_a_shard_is_handed_over_in_order_without_a_wait() {
    let Some(members) = Members::start(1) else { return };
    let (a, b) = (Process::of("a", &members, LONG), Process::of("b", &members, LONG));
    let mut held = a.lead().await;
    assert_eq!(held.term.shard, SHARD);
    assert!(b.is_kept_waiting().await);
    let leader = b.elector.leader(SHARD).unwrap();
    assert_eq!((leader.name.as_str(), leader.until), ("a", None));
    assert!(a.elector.leader(SHARD).unwrap().until.is_some());
    let mut gaps = Vec::new();
    for round in 0..20 {
        let (from, to) = if round % 2 == 0 { (&a, &b) } else { (&b, &a) };
        let mut next = to.elector.lead(SHARD);
        assert!(timeout(Duration::from_millis(50), &mut next).await.is_err(), "the other one leads");
        let begun = Instant::now();
        from.release(held.clone()).await;
        assert!(held.is_over() && held.ending.is_cancelled());
        let won = timeout(SOON, next).await.expect("handed over").unwrap();
        gaps.push(begun.elapsed());
        assert!(won.term.revision > held.term.revision, "the token grows (L4)");
        held = won;
    }
    gaps.sort();
    println!("handed over in order 20 times: median {:?}, worst {:?}", gaps[10], gaps[19]);
    // A successor that waited for a lease would need seconds.
    assert!(gaps[10] < LONG / 4, "{gaps:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn l3_l9_b07_b61_a_key_deleted_by_hand_ends_the_term_and_a_successor_waits_for_its_runs() {
    let Some(members) = Members::start(1) else { return };
    let (a, b) = (Process::of("a", &members, LONG), Process::of("b", &members, LONG));
    let held = a.lead().await;
    let leases = members.ctl(&["lease", "list"]);
    members.ctl(&["del", &Keys::new("dns").leader(SHARD)]);
    ends(&held).await;
    assert!(held.is_over());
    // Its runs have not ended: the key is free, and nobody may lead.
    assert!(b.is_kept_waiting().await && a.is_kept_waiting().await);
    a.release(held.clone()).await;
    let next = b.lead().await;
    assert!(next.term.revision > held.term.revision);
    b.release(next.clone()).await;
    let again = a.lead().await;
    assert!(again.term.revision > next.term.revision, "it leads again, with a key of its own (B61)");
    assert!(members.ctl(&["get", &Keys::new("dns").leader(SHARD)]).contains(r#""process":"a""#));
    assert!(members.ctl(&["lease", "list"]).lines().count() >= leases.lines().count());
    assert_eq!((a.overruns.load(Ordering::SeqCst), b.overruns.load(Ordering::SeqCst)), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn l3_b08_b59_an_etcd_that_does_not_answer_ends_the_term_in_time_and_it_leads_again() {
    let Some(members) = Members::start(1) else { return };
    let a = Process::of("a", &members, SHORT);
    let mut before = 0;
    for _ in 0..2 {
        let held = a.lead().await;
        assert!(held.term.revision > before);
        before = held.term.revision;
        members.freeze(0);
        let begun = Instant::now();
        timeout(SOON, held.ending.cancelled()).await.expect("it stops starting");
        ends(&held).await;
        println!("ended {:?} after etcd fell silent, of a lease of {SHORT:?}", begun.elapsed());
        assert!(held.is_over() && a.elector.problem().is_some(), "{:?}", a.elector.problem());
        // Given back while nobody answers: the key follows once somebody does.
        let giving = a.elector.release(held);
        assert!(timeout(A_WHILE, giving).await.is_err());
        members.thaw(0);
    }
    let held = a.lead().await;
    assert!(held.term.revision > before && !held.is_over());
    crate::support::until("etcd confirms the lease again", || a.elector.problem().is_none()).await;
    assert_eq!(a.overruns.load(Ordering::SeqCst), 0);
}

/// Runs that go on after the deadline are told of, so that the process can be ended (L3).
#[tokio::test(flavor = "multi_thread")]
async fn l3_runs_that_outlive_the_deadline_end_the_process() {
    let Some(members) = Members::start(1) else { return };
    let a = Process::of("a", &members, SHORT);
    let held = a.lead().await;
    members.freeze(0);
    ends(&held).await;
    let overruns = Arc::clone(&a.overruns);
    crate::support::until("the process is to end", move || overruns.load(Ordering::SeqCst) == 1).await;
    members.thaw(0);
}

#[tokio::test(flavor = "multi_thread")]
async fn l9_after_a_crash_a_standby_leads_when_the_lease_has_run_out() {
    let Some(members) = Members::start(1) else { return };
    let (a, b) = (Process::of("a", &members, SHORT), Process::of("b", &members, SHORT));
    let held = a.lead().await;
    let next = b.elector.lead(SHARD);
    // Gone without a word: the thread ends, and the lease with its keys stays behind.
    drop(a);
    let begun = Instant::now();
    let next = timeout(SOON, next).await.expect("taken over").unwrap();
    println!("taken over {:.2} leases after a crash", begun.elapsed().as_secs_f64() / SHORT.as_secs_f64());
    assert!(next.term.revision > held.term.revision);
    assert!(begun.elapsed() > SHORT / 2, "the lease had to run out first");
}

/// Of three endpoints one refuses and one takes connections and never answers.
#[tokio::test(flavor = "multi_thread")]
async fn b62_dead_endpoints_cost_no_leadership() {
    let Some(members) = Members::start(1) else { return };
    let refuses = {
        let closed = TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}", closed.local_addr().unwrap())
    };
    let swallows = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = format!("http://{}", swallows.local_addr().unwrap());
    let endpoints = vec![refuses, silent, members.endpoints().remove(0)];
    let a = Process::start("a", Connection::new(endpoints), LONG);
    let held = a.lead().await;
    let lost = timeout(2 * LONG, held.ending.cancelled()).await;
    assert!(lost.is_err() && !held.is_over(), "{:?}", a.elector.problem());
}

/// Tokens that run out, with etcd's memory of them gone too; and a wrong password, which is said and does no harm.
#[tokio::test(flavor = "multi_thread")]
async fn b62_b87_tokens_run_out_and_a_wrong_password_is_said() {
    let Some(members) = Members::start_with(1, "http", &["--auth-token-ttl", "2", "--bcrypt-cost", "4"]) else {
        return;
    };
    let prefix = Keys::new("dns").prefix().to_owned();
    for args in [
        &["user", "add", "root:top"][..],
        &["user", "grant-role", "root", "root"],
        &["user", "add", "dns:canary-5f1e"],
        &["role", "add", "dns"],
        &["role", "grant-permission", "dns", "readwrite", &prefix, "--prefix"],
        &["user", "grant-role", "dns", "dns"],
        &["auth", "enable"],
    ] {
        members.ctl(args);
    }
    let with = |password: &str| Connection {
        user: Some(User { name: "dns".into(), password: Secret::new(password) }),
        ..Connection::new(members.endpoints())
    };
    let wrong = Process::start("wrong", with("canary-wrong"), SHORT);
    let a = Process::start("a", with("canary-5f1e"), SHORT);
    let held = a.lead().await;
    let lost = timeout(4 * SHORT, held.ending.cancelled()).await;
    assert!(lost.is_err() && !held.is_over(), "{:?}", a.elector.problem());
    assert!(wrong.is_kept_waiting().await);
    let said = wrong.elector.problem().expect("it is said");
    assert!(said.contains("etcd denies it") && !said.contains("canary"), "{said}");
}

/// The facts of the cluster: the first process writes them, another must agree (L7).
#[tokio::test(flavor = "multi_thread")]
async fn l7_a_process_of_another_shape_is_refused() {
    let Some(members) = Members::start(1) else { return };
    let (etcd, keys) = (Etcd::new(Connection::new(members.endpoints())).unwrap(), Keys::new("dns"));
    let twelve =
        ClusterRecord { shards: 12, hash: Partitioner::Murmur2, usage: "ids".into(), format: 1, incarnation: 0 };
    compare(&etcd, &keys, &twelve, SOON).await.unwrap();
    assert_eq!(members.ctl(&["get", &keys.cluster()]), "", "a comparison writes nothing");
    let first = agree(&etcd, &keys, &twelve, SOON).await.unwrap();
    assert_eq!(first, ClusterRecord { incarnation: 1, ..twelve.clone() });
    assert_eq!(agree(&etcd, &keys, &twelve, SOON).await.unwrap(), first);
    let six = ClusterRecord { shards: 6, ..twelve.clone() };
    for refused in [agree(&etcd, &keys, &six, SOON).await.map(|_| ()), compare(&etcd, &keys, &six, SOON).await] {
        let error = refused.unwrap_err().to_string();
        assert!(error.contains("shards 12") && error.contains("shards 6") && error.contains("configure"), "{error}");
    }
    members.ctl(&["put", &keys.cluster(), "hello"]);
    let error = agree(&etcd, &keys, &twelve, SOON).await.unwrap_err();
    assert!(matches!(&error, StoreError::Corrupt { .. }) && error.to_string().contains("another program"), "{error}");
}

/// Keys that another program wrote: nobody leads beside it, and once they are gone all is as before.
#[tokio::test(flavor = "multi_thread")]
async fn l1_keys_of_another_program_do_no_harm() {
    let Some(members) = Members::start(1) else { return };
    let keys = Keys::new("dns");
    members.ctl(&["put", &keys.leader(SHARD), "\u{1}not json"]);
    members.ctl(&["put", &keys.term(SHARD), "{}"]);
    members.ctl(&["put", &format!("{}beat/nonsense", keys.leading()), "x"]);
    let a = Process::of("a", &members, SHORT);
    assert!(a.is_kept_waiting().await);
    assert!(a.elector.leader(SHARD).unwrap().name.contains("another program"));
    members.ctl(&["del", &keys.leader(SHARD)]);
    let held = a.lead().await;
    members.ctl(&["put", &keys.leader(SHARD), "mine"]);
    ends(&held).await;
}

/// Every shard of a large controller is led after one start, and the lease is renewed meanwhile; then the member of
/// etcd that leads is killed, and nothing is lost but a moment.
#[tokio::test(flavor = "multi_thread")]
async fn l1_l3_a_thousand_shards_are_led_and_a_lost_leader_of_etcd_costs_none() {
    let Some(members) = Members::start(3) else { return };
    let settings = Process::settings("a", Connection::new(members.endpoints()), LONG);
    let a = Arc::new(EtcdElector::start(ElectorSettings { shards: 1_000, ..settings }).unwrap());
    let begun = Instant::now();
    let won: Vec<_> = (0..1_000)
        .map(|shard| {
            let elector = Arc::clone(&a);
            tokio::spawn(async move { elector.lead(ShardId(shard)).await.unwrap() })
        })
        .collect();
    let mut held = Vec::new();
    for won in won {
        held.push(timeout(SOON, won).await.expect("led in time").unwrap());
    }
    println!("led 1,000 shards within {:?}", begun.elapsed());
    members.kill(members.leader().await);
    let lost = timeout(LONG + SHORT, held[0].ending.cancelled()).await;
    assert!(lost.is_err() && held.iter().all(|leadership| !leadership.is_over()), "{:?}", a.problem());
}
