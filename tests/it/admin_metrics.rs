//! docs/metrics.md against the Prometheus page: names, kinds and attributes of what a real engine exports (T3, T4,
//! B75).

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use evenkeel::engine::view::{RunOutcome, TriggerResult, WaitFor};
use evenkeel::engine::{Engine, Handle, ReconcilerOptions};
use evenkeel::local::Resync;
use evenkeel::service::telemetry::metrics::{DURATION_BUCKETS, Metrics};
use evenkeel::{Action, Failure, Reconciler, Run};
use opentelemetry::metrics::Meter;

use crate::admin_world::PATIENCE;

const DOCS: &str = include_str!("../../docs/metrics.md");

/// A row of the table.
#[derive(Debug, Clone)]
struct Row {
    instrument: String,
    kind: String,
    unit: String,
    labels: BTreeSet<String>,
    family: String,
}

/// The rows below this heading, as cells without backticks.
fn table(heading: &str) -> Vec<Vec<String>> {
    let rows = DOCS.lines().skip_while(|line| !line.starts_with(heading)).skip_while(|line| !line.starts_with('|'));
    let cells = |line: &str| line.split('|').map(|cell| cell.trim().trim_matches('`').to_owned()).collect();
    rows.skip(2).take_while(|line| line.starts_with('|')).map(cells).collect()
}

fn documented() -> Vec<Row> {
    let label = |name: &str| match name {
        "error" => name.to_owned(),
        "system" => "messaging_system".into(),
        "topic" => "messaging_destination_name".into(),
        "partition" => "messaging_destination_partition_id".into(),
        "group" => "messaging_consumer_group_name".into(),
        other => format!("evenkeel_{other}"),
    };
    let rows: Vec<Row> = table("## What there is")
        .into_iter()
        .map(|cells| Row {
            instrument: cells[1].clone(),
            kind: cells[2].clone(),
            unit: cells[3].clone(),
            labels: cells[4].split(", ").map(label).collect(),
            family: cells[5].clone(),
        })
        .collect();
    assert!(rows.len() > 20, "{rows:?}");
    rows
}

/// The families of a page: their types, and the labels of their series.
fn exported(page: &str) -> BTreeMap<String, (String, BTreeSet<String>)> {
    let mut families: BTreeMap<String, (String, BTreeSet<String>)> = BTreeMap::new();
    for line in page.lines() {
        if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            families.insert(name.into(), (kind.into(), BTreeSet::new()));
        } else if let Some((series, rest)) = line.split_once('{') {
            let part = ["_bucket", "_sum", "_count"].iter().find_map(|end| series.strip_suffix(end));
            let family =
                families.get_mut(part.filter(|name| page.contains(&format!("# TYPE {name} "))).unwrap_or(series));
            let labels =
                rest.rsplit_once('}').unwrap().0.split("\",").filter_map(|label| Some(label.split_once('=')?.0));
            family.unwrap().1.extend(labels.filter(|label| *label != "le").map(str::to_owned));
        }
    }
    families.retain(|name, _| name != "target_info");
    families
}

/// An instrument as the table describes it, with one value.
fn make(meter: &Meter, row: &Row) {
    let (name, unit) = (row.instrument.clone(), row.unit.clone());
    match row.kind.as_str() {
        "counter" => meter.u64_counter(name).with_unit(unit).build().add(1, &[]),
        "gauge" => meter.u64_gauge(name).with_unit(unit).build().record(1, &[]),
        "histogram" => meter.f64_histogram(name).with_unit(unit).build().record(1.0, &[]),
        other => panic!("no kind of instrument: {other}"),
    }
}

#[test]
fn t4_the_names_on_the_page_follow_from_the_instruments() {
    let metrics = Metrics::new("dns").unwrap();
    let rows = documented();
    rows.iter().for_each(|row| make(&metrics.meter(), row));
    let page = metrics.page().render().unwrap();
    let exported: BTreeMap<String, String> =
        exported(&page).into_iter().map(|(name, (kind, _))| (name, kind)).collect();
    let documented = rows.into_iter().map(|row| (row.family, row.kind)).collect();
    assert_eq!(exported, documented);
}

#[test]
fn the_documented_buckets_are_the_buckets() {
    let text = DOCS.split_whitespace().collect::<Vec<_>>().join(" ");
    let text = text.split("durations end at ").nth(1).unwrap().split(". One instrument").next().unwrap();
    let seconds = |text: &str| -> f64 {
        let (number, unit) = text.split_once(' ').unwrap();
        number.parse::<f64>().unwrap()
            * [("ms", 0.001), ("s", 1.0), ("min", 60.0)].iter().find(|u| u.0 == unit).unwrap().1
    };
    let text = text.replace(" and ", ", ");
    let documented: Vec<f64> = text.split(", ").map(seconds).collect();
    assert_eq!(documented, DURATION_BUCKETS);
}

#[test]
fn what_kreconciler_measured_has_a_name_here() {
    let families: BTreeSet<String> = documented().into_iter().map(|row| row.family).collect();
    let rows = table("## Coming from kreconciler");
    assert_eq!(rows.len(), 11);
    for cells in rows {
        assert!(cells[1].starts_with("kreconciler_") && families.contains(&cells[2]), "{cells:?}");
    }
    for word in
        DOCS.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| word.starts_with("evenkeel_"))
    {
        let part = ["_bucket", "_sum", "_count"].iter().find_map(|end| word.strip_suffix(end)).unwrap_or(word);
        let label = documented().iter().any(|row| row.labels.contains(word));
        assert!(families.contains(part) || label, "{word} is neither a metric nor an attribute");
    }
}

/// Does what the id says.
struct Obedient;

impl Reconciler for Obedient {
    async fn reconcile(&self, run: &Run) -> Result<Action, Failure> {
        match run.id() {
            "fails" => Err(Failure::transient("no route").retry_after(Duration::from_secs(3_600))),
            "is-hopeless" => Err(Failure::terminal("no such zone")),
            "panics" => panic!("asked to"),
            "comes-again" => Ok(Action::done().requeue_after(Duration::from_secs(3_600))),
            "hangs" => std::future::pending().await,
            _ => Ok(Action::done()),
        }
    }
}

/// The page once it holds all these lines: the shard's numbers are those of its last turn.
async fn wait_until(metrics: &Metrics, lines: &[&str]) -> String {
    let began = Instant::now();
    loop {
        let page = metrics.page().render().unwrap();
        let missing: Vec<_> = lines.iter().filter(|wanted| !page.lines().any(|line| line == **wanted)).collect();
        if missing.is_empty() {
            return page;
        }
        assert!(began.elapsed() < PATIENCE, "{missing:#?}\nnot in\n{page}");
        tokio::task::yield_now().await;
    }
}

async fn trigger(handle: &Handle, ids: &[&str], wait: WaitFor) {
    let ids = ids.iter().map(|id| (*id).to_owned()).collect();
    for answer in handle.trigger_batch(ids, wait).await {
        assert!(matches!(answer.result, TriggerResult::Admitted | TriggerResult::Ended { .. }), "{answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn t3_b75_what_an_engine_exports_is_what_is_documented() {
    let metrics = Metrics::new("dns").unwrap();
    let options = ReconcilerOptions { cancel_grace: Duration::from_millis(1), ..ReconcilerOptions::default() };
    let list = Resync::every(Duration::from_secs(3_600)).list_fn(|| async { vec!["from-a-stream".to_owned()] });
    let engine = Engine::builder("dns").stream("all", list).reconciler(Obedient).options(options);
    let engine = engine.meter(metrics.meter()).build().unwrap();
    let (handle, running) = (engine.handle(), tokio::spawn(engine.run(std::future::pending())));
    wait_until(&metrics, &[r#"evenkeel_leader{evenkeel_controller="dns",evenkeel_shard="0"} 1"#]).await;
    trigger(&handle, &["done", "fails", "is-hopeless", "panics", "comes-again"], WaitFor::Done).await;
    trigger(&handle, &["hangs"], WaitFor::Admitted).await;
    let lines = [
        r#"evenkeel_runs_active{evenkeel_controller="dns",evenkeel_shard="0"} 1"#,
        // "fails" and "panics" wait for their retry, "comes-again" for its time; "is-hopeless" is parked.
        r#"evenkeel_delayed{evenkeel_controller="dns",evenkeel_shard="0"} 3"#,
        r#"evenkeel_parked{evenkeel_controller="dns",evenkeel_shard="0"} 1"#,
        r#"evenkeel_queue_depth{evenkeel_controller="dns",evenkeel_reason="event",evenkeel_shard="0"} 0"#,
        r#"evenkeel_dequeues_total{evenkeel_controller="dns",evenkeel_shard="0"} 7"#,
        r#"evenkeel_panics_total{evenkeel_controller="dns",evenkeel_shard="0"} 1"#,
        r#"evenkeel_resync_items_total{evenkeel_stream="all"} 1"#,
        r#"evenkeel_stream_events_total{error="false",evenkeel_controller="dns",evenkeel_stream="all"} 1"#,
    ];
    let page = wait_until(&metrics, &lines).await;
    compare(&page, &documented());
    for outcome in
        [RunOutcome::Done, RunOutcome::Failed, RunOutcome::GivenUp, RunOutcome::Panicked, RunOutcome::Requeued]
    {
        let series = format!(r#"evenkeel_outcome="{}""#, outcome.name());
        assert!(page.lines().any(|l| l.starts_with("evenkeel_run_duration_seconds_count") && l.contains(&series)));
    }
    for id in ["from-a-stream", "is-hopeless", "comes-again"] {
        assert!(!page.contains(id), "B76: an id on the page: {id}");
    }
    handle.cancel(vec!["hangs".into()]).await.unwrap();
    let cut_off = r#"evenkeel_runs_cut_off_total{evenkeel_controller="dns",evenkeel_shard="0"} 1"#;
    wait_until(&metrics, &[cut_off]).await;
    handle.drain();
    running.await.unwrap().unwrap();
}

/// Everything on the page is documented, with its type and labels; and of the engine's own metrics none is missing.
fn compare(page: &str, documented: &[Row]) {
    let exported = exported(page);
    for (family, (kind, labels)) in &exported {
        let row = documented.iter().find(|row| row.family == *family);
        let row = row.unwrap_or_else(|| panic!("docs/metrics.md lacks {family}"));
        assert_eq!((kind, labels), (&row.kind, &row.labels), "{family}");
    }
    // Those with a topic need a broker, those of telemetry a collector.
    let elsewhere = |row: &&Row| {
        row.labels.contains("messaging_system")
            || ["evenkeel.kafka.", "evenkeel.telemetry."].iter().any(|start| row.instrument.starts_with(start))
    };
    for row in documented.iter().filter(|row| !elsewhere(row)) {
        assert!(exported.contains_key(&row.family), "{} is documented but not exported", row.instrument);
    }
}

/// Without a broker Kafka's instruments cannot be seen at work, so their names are compared in the source.
#[test]
fn every_instrument_in_the_source_is_documented() {
    // Attributes of metrics, then those of spans alone.
    let mut attributes = vec!["controller", "shard", "worker", "stream", "kind", "outcome", "reason", "signal"];
    attributes.extend(["id", "attempt", "causes", "delay_seconds", "fencing_token"]);
    let mut named = BTreeSet::new();
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.is_dir() {
                folders.push(entry);
            } else if entry.extension().is_some_and(|end| end == "rs") {
                let text = std::fs::read_to_string(&entry).unwrap();
                let code = text.split("#[cfg(test)]").next().unwrap();
                let names = code.split("\"evenkeel.").skip(1).map(|rest| rest.split('"').next().unwrap().to_owned());
                named.extend(
                    names.filter(|name| name.bytes().all(|b| b == b'.' || b == b'_' || b.is_ascii_lowercase())),
                );
            }
        }
    }
    named.retain(|name| !attributes.contains(&name.as_str()) && name != "yaml");
    let documented: BTreeSet<String> =
        documented().into_iter().map(|row| row.instrument.strip_prefix("evenkeel.").unwrap().to_owned()).collect();
    assert_eq!(named, documented);
}
