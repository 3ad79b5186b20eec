//! The binary and a collector over HTTP, which takes, refuses, or never answers (T1, T2, B28, B29, B77, B79, B87).
//!
//! `tests/live/otlp.rs` does the same with a real one, over gRPC too.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use evenkeel::service::telemetry::otlp::LAST_TELEMETRY;
use opentelemetry_proto::tonic::trace::v1::Span;

use super::otlp_collector::{Collector, Mode, attribute, text};
use super::recorder::{Recorder, Reply};
use super::run_world::{Process, Project, wait};

const CANARY: &str = "canary-5f1e";

/// A stop takes this much longer on a busy machine, whatever telemetry does.
const MARGIN: Duration = Duration::from_secs(20);

/// Fails twice for ids that begin with "fails", never otherwise.
fn recorder() -> Recorder {
    Recorder::start(|id, number| match number {
        1 | 2 if id.starts_with("fails") => Reply::Status(503),
        _ => Reply::Done,
    })
}

fn project(recorder: &Recorder, otlp: &str, level: &str) -> Project {
    Project::new(&format!(
        "name: test\nreconciler:\n  webhook: {}\n  retry: {{initial: 20ms, jitter: 0%}}\n\
         timing: {{min_requeue: 10ms}}\n\
         telemetry: {{logs: json, level: {level}, otlp: {{{otlp}}}}}\n",
        recorder.url()
    ))
}

fn over_http(url: &str, more: &str) -> String {
    format!("endpoint: '{url}', protocol: http/protobuf, delay: 50ms, interval: 1s{more}")
}

fn trigger(process: &Process, ids: impl IntoIterator<Item = String>) {
    let args = ["trigger".to_owned(), "--wait".to_owned()].into_iter().chain(ids);
    let output = process.ask(args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn roots(spans: &[Span]) -> Vec<&Span> {
    spans.iter().filter(|span| span.parent_span_id.is_empty()).collect()
}

/// An address where nobody listens.
fn nobody() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").unwrap()
}

/// B29, B79: all three signals arrive, each at its own path, with what the config says about the process; the trace of
/// an item holds its attempts, the log lines belong to them.
#[test]
fn t1_t2_b29_b79_three_signals_arrive_and_belong_together() {
    let (recorder, collector) = (recorder(), Collector::start(Mode::Take));
    let more = format!(", headers: {{x-token: {CANARY}}}, compression: none, resource: {{zone: z1}}");
    let project = project(&recorder, &over_http(&format!("{}/", collector.url()), &more), "info");
    let mut process = project.start();
    process.ask(["trigger", "fails-once"]);
    wait("three attempts", || collector.spans().len() >= 4);
    wait("metrics", || collector.metric_names().contains("evenkeel.run.duration"));
    let run_line =
        |outcome: &str| collector.logs().into_iter().find(|record| attribute(&record.attributes, "outcome") == outcome);
    wait("log records", || run_line("done").is_some());

    let spans = collector.spans();
    let [root] = roots(&spans)[..] else { panic!("{spans:#?}") };
    assert_eq!((root.name.as_str(), root.kind), ("reconcile test", 5), "a consumer");
    assert_eq!(attribute(&root.attributes, "evenkeel.id"), "fails-once");
    let attempts: Vec<&Span> = spans.iter().filter(|span| span.name == "attempt").collect();
    assert_eq!(attempts.len(), 3);
    assert!(attempts.iter().all(|span| span.parent_span_id == root.span_id && span.trace_id == root.trace_id));
    let given: BTreeSet<String> =
        recorder.of("fails-once").iter().map(|seen| seen.headers["traceparent"].clone()).collect();
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let made: BTreeSet<String> =
        attempts.iter().map(|span| format!("00-{}-{}-01", hex(&span.trace_id), hex(&span.span_id))).collect();
    assert_eq!(given, made, "each request carries its attempt's span");

    as_documented(&spans);

    let failed = run_line("failed").unwrap();
    assert_eq!(failed.trace_id, root.trace_id, "a line about a run belongs to its attempt");
    assert!(attempts.iter().any(|span| span.span_id == failed.span_id));
    assert!(text(failed.body.as_ref().unwrap()).contains("503"), "{failed:?}");

    for resource in collector.resources() {
        let of = |name: &str| attribute(&resource.attributes, name);
        assert_eq!((of("service.name"), of("zone")), ("test".into(), "z1".into()));
        assert!(!of("service.instance.id").is_empty() && of("service.version") == env!("CARGO_PKG_VERSION"));
    }
    assert!(collector.headers().iter().all(|headers| headers["x-token"] == CANARY));
    assert_eq!(process.stop().0.code(), Some(0), "{}", process.log());
    assert!(!process.log().contains(CANARY), "B87");
    wait("what happened last arrives", || {
        collector
            .logs()
            .iter()
            .any(|record| record.body.as_ref().is_some_and(|body| text(body) == "evenkeel has stopped"))
    });
}

/// The table of docs/telemetry.md: its spans have these attributes and, but for panics, these events.
fn as_documented(spans: &[Span]) {
    let docs = include_str!("../../docs/telemetry.md");
    for (row, name) in [("| `reconcile KIND`", "reconcile test"), ("| `attempt`", "attempt")] {
        let row = docs.lines().find(|line| line.starts_with(row)).unwrap();
        let cells: Vec<BTreeSet<String>> = row
            .split('|')
            .map(|cell| cell.split(',').map(|word| word.trim().trim_matches('`').to_owned()).collect())
            .collect();
        let of_name = || spans.iter().filter(|span| span.name == name);
        let attributes: BTreeSet<String> = of_name().flat_map(|span| &span.attributes).map(|a| a.key.clone()).collect();
        assert_eq!(attributes, cells[3], "{name}");
        let mut events: BTreeSet<String> = of_name().flat_map(|span| &span.events).map(|e| e.name.clone()).collect();
        if name == "attempt" {
            events.insert("panic".to_owned());
        }
        assert_eq!(events, cells[4], "{name}");
        let kind = if name == "attempt" { ("internal", 1) } else { ("consumer", 5) };
        assert!(cells[2].contains(kind.0) && of_name().all(|span| span.kind == kind.1), "{name}");
    }
}

/// T1: the standard variables alone, without a word in the config, and what is written wins over them.
#[test]
fn t1_the_standard_variables_are_enough() {
    let (recorder, collector) = (recorder(), Collector::start(Mode::Take));
    let project = Project::new(&format!("name: test\nreconciler: {{webhook: '{}'}}\n", recorder.url()));
    let mut command = project.command();
    command.arg("run").envs([
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", format!("{}/v1/traces", collector.url())),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf".to_owned()),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip".to_owned()),
        ("OTEL_SERVICE_NAME", "named".to_owned()),
        ("OTEL_BSP_SCHEDULE_DELAY", "50".to_owned()),
    ]);
    let refused = |collector: &Collector| collector.requests("metrics") + collector.requests("logs");
    // The collector of the test cannot decode gzip; it is enough that it comes.
    collector.set(Mode::Refuse(400));
    let mut process = Process::spawn(command);
    process.until_led();
    trigger(&process, ["x".to_owned()]);
    wait("a request with spans", || collector.requests("traces") > 0);
    assert!(collector.headers().iter().all(|headers| headers["content-encoding"] == "gzip"));
    assert_eq!(refused(&collector), 0, "only the signal that has an endpoint");
    process.stop();
}

/// B77: while the collector refuses, one line says so, however much is lost; what it answers is not repeated. Once it
/// takes, what was kept arrives, and that is said too.
#[test]
fn b77_b87_a_collector_that_refuses_costs_one_line_and_comes_back() {
    let (recorder, collector) = (recorder(), Collector::start(Mode::Refuse(503)));
    let more = format!(", headers: {{x-token: {CANARY}}}, queue: 50, batch: 10, timeout: 300ms");
    let project = project(&recorder, &over_http(&collector.url(), &more), "trace");
    let mut process = project.start();
    trigger(&process, (0..300).map(|number| format!("id-{number}")));
    let line = process.until_line("telemetry is lost");
    assert!(line.contains("status code: 503") || line.contains("queue_full"), "{line}");
    wait("it refused many times", || collector.requests("") > 30);
    let said = |process: &Process, what: &str| process.lines().iter().filter(|line| line.contains(what)).count();
    assert!(said(&process, "telemetry is lost") <= 3, "one for each signal:\n{}", process.log());
    let lines = process.lines();
    let loud: Vec<&String> = lines.iter().filter(|line| line.contains("\"opentelemetry")).collect();
    assert!(loud.is_empty(), "{loud:#?}");
    collector.set(Mode::Take);
    process.until_line("telemetry arrives again");
    trigger(&process, ["after".to_owned()]);
    wait("spans arrive", || {
        roots(&collector.spans()).iter().any(|s| attribute(&s.attributes, "evenkeel.id") == "after")
    });
    wait("the loss is counted", || collector.metric_names().contains("evenkeel.telemetry.lost"));
    assert_eq!(process.stop().0.code(), Some(0));
    assert!(!process.log().contains(CANARY), "B87: what the collector answered was shown");
}

/// B77: nothing is told about the telling. After the last item is done nothing but metrics is sent.
#[test]
fn b77_telemetry_never_tells_of_itself() {
    let (recorder, collector) = (recorder(), Collector::start(Mode::Take));
    let project = project(&recorder, &over_http(&collector.url(), ""), "trace");
    let mut process = project.start();
    trigger(&process, ["x".to_owned()]);
    wait("the item", || collector.spans().len() == 2);
    let exports = |more: usize| {
        let begun = collector.requests("metrics");
        wait("exports of metrics", || collector.requests("metrics") >= begun + more);
    };
    exports(2);
    let before = (collector.spans().len(), collector.requests("traces"));
    let records = |collector: &Collector| {
        let told = |target: &str| {
            ["hyper", "h2", "reqwest", "tonic", "opentelemetry"].iter().any(|own| target.starts_with(own))
        };
        collector.logs().iter().filter(|record| told(&attribute(&record.attributes, "target"))).count()
    };
    let logs_before = collector.logs().len();
    exports(4);
    assert_eq!((collector.spans().len(), collector.requests("traces")), before, "no work, no spans");
    assert!(collector.logs().len() <= logs_before, "no work, no lines: {:#?}", collector.logs());
    assert_eq!(records(&collector), 0);
    process.stop();
}

/// B28: a collector that is away, or takes connections and never answers, or refuses, holds up no stop beyond its limit
/// and no run at all.
#[test]
fn t1_b28_no_collector_slows_a_run_or_holds_up_a_stop() {
    let silent = Collector::start(Mode::Silent);
    let refusing = Collector::start(Mode::Refuse(500));
    // Taken and dropped: nobody listens there. The other one takes connections and says nothing, as gRPC sees it.
    let (free, deaf) = (nobody().local_addr().unwrap(), nobody());
    let deaf_address = deaf.local_addr().unwrap();
    for (name, otlp, limit) in [
        ("away, HTTP", over_http(&format!("http://{free}"), ""), Duration::ZERO),
        ("away, gRPC", format!("endpoint: 'http://{free}', delay: 50ms, interval: 1s"), Duration::ZERO),
        ("silent, HTTP", over_http(&silent.url(), ""), LAST_TELEMETRY),
        ("silent, gRPC", format!("endpoint: 'http://{deaf_address}', delay: 50ms, interval: 1s"), LAST_TELEMETRY),
        ("refusing, HTTP", over_http(&refusing.url(), ""), Duration::ZERO),
    ] {
        let recorder = recorder();
        let project = project(&recorder, &format!("{otlp}, queue: 100, batch: 50"), "info");
        let mut process = project.start();
        let begun = Instant::now();
        trigger(&process, (0..500).map(|number| format!("id-{number}")));
        let runs = begun.elapsed();
        assert_eq!(recorder.total(), 500, "{name}");
        let (status, stop) = process.stop();
        assert_eq!(status.code(), Some(0), "{name}: {}", process.log());
        assert!(stop < limit + MARGIN, "{name}: the stop took {stop:?}");
        println!("{name}: 500 runs in {} ms, stop in {} ms", runs.as_millis(), stop.as_millis());
        let log = process.log();
        assert_eq!(log.contains("the last telemetry was not taken"), limit == LAST_TELEMETRY, "{name}: {log}");
    }
}
