//! The binary and a real OpenTelemetry Collector (T1, T2, K7, B28, B29, B77).

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use evenkeel::service::telemetry::otlp::LAST_TELEMETRY;
use rdkafka::message::{Header, OwnedHeaders};
use serde_json::Value;

use crate::broker::Broker;
use crate::engine_world::{More, Target};
use crate::otelcol::{Otelcol, attribute};
use crate::recorder::{Recorder, Reply};
use crate::run_world::{Process, Project, wait};

/// A stop takes this much longer on a busy machine, whatever telemetry does.
const MARGIN: Duration = Duration::from_secs(30);

/// Spans and records that wait, and what the process does between two looks, stay below this.
const GROWTH_MAX_KB: u64 = 64 * 1024;

/// All three signals by both protocols; one trace through the retries, linked to the producer's span.
#[tokio::test(flavor = "multi_thread")]
async fn t1_t2_k7_b29_all_signals_arrive_by_grpc_and_by_http() {
    let (Some(broker), Some(collector)) = (Broker::shared(), Otelcol::start()) else { return };
    let recorder = Recorder::start(|_, number| if number < 3 { Reply::Status(503) } else { Reply::Done });
    for (number, protocol) in (1_u64..).zip(["grpc", "http/protobuf"]) {
        let top = format!("telemetry: {{logs: json, otlp: {{{}}}}}\n", collector.otlp(protocol));
        let more = More { reconciler: "  retry: {initial: 300ms, jitter: 0%}\n", top: &top, ..More::default() };
        let target = Target::new(broker, &recorder, 1, &more).await;
        let mut process = target.start();
        let (trace, span) = (format!("{:032x}", 0xabc0 + number), format!("{:016x}", 0xdef0 + number));
        let parent = format!("00-{trace}-{span}-01");
        let headers = OwnedHeaders::new().insert(Header { key: "traceparent", value: Some(&parent) });
        let id = format!("traced-{number}");
        target.hand.send_with(&target.topic, 0, Some(id.as_bytes()), Some(b"x"), Some(headers)).await;
        wait("the item's root", || roots(&collector, &id).len() == 1);
        let root = roots(&collector, &id).remove(0);
        assert_eq!(root["name"], format!("reconcile {}", target.name));
        let links = root["links"].as_array().unwrap();
        assert_eq!((links[0]["traceId"].as_str(), links[0]["spanId"].as_str()), (Some(&*trace), Some(&*span)), "K7");
        wait("its attempts", || attempts(&collector, &root).len() == 3);
        let outcomes: Vec<String> =
            attempts(&collector, &root).iter().map(|span| attribute(span, "evenkeel.outcome")).collect();
        assert_eq!(outcomes, ["failed", "failed", "done"], "{protocol}");
        wait("metrics", || missing(&metrics(&collector)).is_empty());
        wait("the line of the run", || {
            let records = collector.read("logRecords");
            records.iter().any(|record| attribute(record, "id") == id && record["traceId"] == root["traceId"])
        });
        let (status, stop) = process.stop();
        assert_eq!(status.code(), Some(0), "{}", process.log());
        assert!(!process.log().contains("telemetry is lost"), "{}", process.log());
        println!(
            "{protocol}: {} spans, {} metrics, {} records; the stop took {} ms",
            collector.read("spans").len(),
            collector.read("metrics").len(),
            collector.read("logRecords").len(),
            stop.as_millis()
        );
    }
}

fn roots(collector: &Otelcol, id: &str) -> Vec<Value> {
    let is_root = |span: &Value| span["name"] != "attempt" && attribute(span, "evenkeel.id") == id;
    collector.read("spans").into_iter().filter(is_root).collect()
}

/// The attempts of an item, the first one first.
fn attempts(collector: &Otelcol, root: &Value) -> Vec<Value> {
    let of_root = |span: &Value| span["parentSpanId"] == root["spanId"] && span["traceId"] == root["traceId"];
    let mut found: Vec<Value> = collector.read("spans").into_iter().filter(of_root).collect();
    found.sort_by_key(|span| span["startTimeUnixNano"].as_str().unwrap_or_default().to_owned());
    found
}

fn metrics(collector: &Otelcol) -> BTreeSet<String> {
    collector.read("metrics").iter().map(|metric| metric["name"].as_str().unwrap_or_default().to_owned()).collect()
}

/// What docs/metrics.md names and has not come, but for what needs a fault or a resync.
fn missing(found: &BTreeSet<String>) -> Vec<String> {
    let rows = include_str!("../../docs/metrics.md").lines().filter_map(|line| line.strip_prefix("| `evenkeel."));
    let names = rows.filter_map(|row| row.split('`').next()).map(|name| format!("evenkeel.{name}"));
    let rare = ["evenkeel.resync.items", "evenkeel.resync.duration", "evenkeel.misrouted", "evenkeel.kafka.lost"];
    names.filter(|name| !rare.contains(&name.as_str()) && !found.contains(name)).collect()
}

/// B28, B77: a collector that dies, comes back, and freezes: runs go on as before, memory stays, what was kept arrives,
/// and the stop has its limit.
#[test]
fn b28_b77_a_collector_that_dies_freezes_and_comes_back_harms_nothing() {
    for protocol in ["grpc", "http/protobuf"] {
        let Some(mut collector) = Otelcol::start() else { return };
        let recorder = Recorder::start(|_, _| Reply::Done);
        let project = Project::new(&format!(
            "name: test\nreconciler: {{webhook: '{}'}}\ntelemetry: {{logs: json, otlp: {{{}, timeout: 3s}}}}\n",
            recorder.url(),
            collector.otlp(protocol)
        ));
        let mut process = project.start();
        let healthy = run(&process, "healthy");
        wait("spans", || roots(&collector, "healthy-0").len() == 1);
        let before = resident_kb(&process);
        collector.kill();
        let dead = run(&process, "dead");
        process.until_line("telemetry is lost");
        collector.restart();
        // A loss may have left nothing to send, so something new is said until it arrives.
        wait("telemetry arrives again", || {
            assert!(process.ask(["trigger", "--wait", "back"]).status.success());
            process.log().contains("telemetry arrives again")
        });
        wait("spans again", || !roots(&collector, "back").is_empty());
        collector.freeze();
        let frozen = run(&process, "frozen");
        let grown = resident_kb(&process).saturating_sub(before);
        assert!(grown < GROWTH_MAX_KB, "{protocol}: grown by {grown} KB");
        let (status, stop) = process.stop();
        assert_eq!(status.code(), Some(0), "{protocol}: {}", process.log());
        assert!(stop < LAST_TELEMETRY + MARGIN, "{protocol}: the stop took {stop:?}");
        println!(
            "{protocol}: 2000 runs in {} ms, collector dead {} ms, frozen {} ms; grown by {grown} KB; stop in {} ms",
            healthy.as_millis(),
            dead.as_millis(),
            frozen.as_millis(),
            stop.as_millis()
        );
        let said = process.lines().iter().filter(|line| line.contains("telemetry is lost")).count();
        assert!(said <= 12, "a line a minute and signal:\n{}", process.log());
    }
}

/// Two thousand runs; gives how long they took.
fn run(process: &Process, name: &str) -> Duration {
    let begun = Instant::now();
    for part in 0..4 {
        let ids = (part * 500..(part + 1) * 500).map(|number| format!("{name}-{number}"));
        let args = ["trigger".to_owned(), "--wait".to_owned()].into_iter().chain(ids);
        let output = process.ask(args);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    begun.elapsed()
}

fn resident_kb(process: &Process) -> u64 {
    let path = format!("/proc/{}/status", process.pid().as_raw_nonzero());
    let status = std::fs::read_to_string(path).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}
