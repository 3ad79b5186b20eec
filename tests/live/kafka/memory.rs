//! The memory of a reader with a large backlog and a full shard stays bounded (B55).

use std::time::{Duration, Instant};

use evenkeel::id::Partitioner;
use evenkeel::kafka::{Connection, PREFETCH_BYTES, StreamSettings};

use crate::broker::Broker;
use crate::sink::Sink;
use crate::support::{Hand, Live, fresh, quick, until};

const PARTITIONS: i32 = 64;
const VALUE_BYTES: usize = 64 << 10;
const VALUES_EACH: usize = 48;
/// Names the broker and the topic to the test when it runs as a process of its own, so that others do not disturb the
/// figure.
const CHILD: &str = "B55_CHILD";

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn b55_a_large_backlog_stays_in_the_broker() {
    if let Ok(child) = std::env::var(CHILD) {
        let (broker, topic) = child.split_once(' ').unwrap();
        return read_with_a_full_shard(broker, topic).await;
    }
    let Some(broker) = Broker::shared() else { return };
    let (hand, topic) = (Hand::new(broker), fresh("backlog"));
    hand.create(&topic, PARTITIONS).await;
    // 192 MiB, which neither compress nor fit into what may be prefetched.
    let value: Vec<u8> = (0..VALUE_BYTES as u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect();
    for partition in 0..PARTITIONS {
        hand.send_many(&topic, partition, &value, VALUES_EACH).await;
    }
    let child = tokio::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "kafka::memory::b55_a_large_backlog_stays_in_the_broker", "--nocapture"])
        .env(CHILD, format!("{} {topic}", broker.plain()))
        .output()
        .await
        .unwrap();
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
    hand.delete(&topic).await;
}

async fn read_with_a_full_shard(broker: &str, topic: &str) {
    let connection = Connection { brokers: vec![broker.into()], ..Connection::default() };
    let mut settings = StreamSettings::new(connection, fresh("memory"), vec![topic.into()], 1);
    settings.timing = quick();
    let sink = Sink::new(Partitioner::Fnv1a, 1);
    sink.hold();
    sink.set_room(1);
    let before = resident_peak();
    let live = Live::start(settings, sink);
    until("every partition waits", || live.sink.refused() >= usize::try_from(PARTITIONS).unwrap() - 1).await;
    let began = Instant::now();
    until("a while", || began.elapsed() > Duration::from_secs(5)).await;
    let grown = resident_peak() - before;
    println!("grown by {} KiB", grown >> 10);
    // The client's queue, what is on its way, and the allocator's own; half of the backlog.
    let bound = 6 * u64::from(PREFETCH_BYTES);
    assert!(grown < bound, "the process has grown by {grown} bytes, more than {bound}");
    live.sink.stop();
    let _ = live.committer.close(Duration::from_secs(5)).await;
}

/// The most memory that this process ever had, in bytes.
fn resident_peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap() << 10
}
