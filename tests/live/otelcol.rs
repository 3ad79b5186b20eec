//! A real OpenTelemetry Collector: starts, kills, freezes and restarts it, and reads what it has written.
//!
//! The program comes from `tests/services/otelcol/install`. A small shell stands between the tests and each collector:
//! when the tests end, in whatever way, its standard input closes, and it kills the collector.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::run_world::wait;

/// Starts the collector, prints its process id, and kills it when standard input closes.
const KEEPER: &str = r#"
"$@" </dev/null >>"$OTELCOL_OUT/log" 2>&1 &
pid=$!
echo $pid
read -r _
kill -KILL $pid 2>/dev/null
wait $pid 2>/dev/null
"#;

/// Where it is installed; `None` where services are to be passed over.
fn installed() -> Option<PathBuf> {
    static FOLDER: OnceLock<Option<PathBuf>> = OnceLock::new();
    let find = || {
        if std::env::var("EVENKEEL_TEST_SKIP_SERVICES").is_ok_and(|value| value == "1") {
            return None;
        }
        if let Some(folder) = std::env::var_os("EVENKEEL_TEST_OTELCOL") {
            return Some(PathBuf::from(folder));
        }
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/services/otelcol/install");
        let found = Command::new(script).arg("--installed").output().expect("bash runs tests/services/otelcol/install");
        assert!(
            found.status.success(),
            "the collector is not installed for the live tests. `make test` sets it up (or run \
             tests/services/otelcol/install); EVENKEEL_TEST_SKIP_SERVICES=1 passes these tests over"
        );
        Some(PathBuf::from(String::from_utf8(found.stdout).unwrap().trim()))
    };
    FOLDER.get_or_init(find).clone()
}

/// A collector, killed when it is dropped.
pub(crate) struct Otelcol {
    out: tempfile::TempDir,
    /// For health, gRPC and HTTP.
    addresses: [String; 3],
    keeper: Option<(Child, Pid)>,
}

impl Otelcol {
    /// Starts one; `None` where services are to be passed over.
    pub(crate) fn start() -> Option<Self> {
        if installed().is_none() {
            println!("passed over, since EVENKEEL_TEST_SKIP_SERVICES=1");
            return None;
        }
        // Held together, so that they differ.
        let free = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let addresses = free.map(|listener| listener.local_addr().unwrap().to_string());
        let mut collector = Self { out: tempfile::tempdir().unwrap(), addresses, keeper: None };
        collector.restart();
        Some(collector)
    }

    /// Starts it again, at the same addresses, and waits until it takes what comes.
    pub(crate) fn restart(&mut self) {
        let folder = installed().unwrap();
        let [health, grpc, http] = &self.addresses;
        let mut command = Command::new("sh");
        command.args(["-c", KEEPER, "sh"]).arg(folder.join("otelcol")).arg("--config").arg(folder.join("otelcol.yaml"));
        command.env("OTELCOL_OUT", self.out.path()).env("OTELCOL_HEALTH", health);
        command.env("OTELCOL_GRPC", grpc).env("OTELCOL_HTTP", http);
        let mut shell = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(shell.stdout.take().unwrap()).read_line(&mut line).unwrap();
        self.keeper = Some((shell, Pid::from_raw(line.trim().parse().unwrap()).unwrap()));
        wait("the collector listens", || self.addresses.iter().all(|a| std::net::TcpStream::connect(a).is_ok()));
    }

    /// Kills it.
    pub(crate) fn kill(&mut self) {
        if let Some((mut shell, _)) = self.keeper.take() {
            drop(shell.stdin.take());
            shell.wait().unwrap();
        }
    }

    /// Stops it where it stands: connections are made, and nobody answers.
    pub(crate) fn freeze(&self) {
        kill_process(self.keeper.as_ref().unwrap().1, Signal::STOP).unwrap();
    }

    /// The endpoint of a protocol, as the config names both.
    pub(crate) fn otlp(&self, protocol: &str) -> String {
        let [_, grpc, http] = &self.addresses;
        let address = if protocol == "grpc" { grpc } else { http };
        format!("endpoint: 'http://{address}', protocol: {protocol}, delay: 50ms, interval: 1s")
    }

    /// All spans, metrics or log records that it wrote: `spans`, `metrics` or `logRecords`.
    pub(crate) fn read(&self, what: &str) -> Vec<Value> {
        let (file, resource, scope) = match what {
            "spans" => ("traces.jsonl", "resourceSpans", "scopeSpans"),
            "metrics" => ("metrics.jsonl", "resourceMetrics", "scopeMetrics"),
            _ => ("logs.jsonl", "resourceLogs", "scopeLogs"),
        };
        let text = std::fs::read_to_string(self.out.path().join(file)).unwrap_or_default();
        let list = |value: &Value, key: &str| value[key].as_array().cloned().unwrap_or_default();
        text.lines()
            // The last line may be half written.
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .flat_map(|line| list(&line, resource))
            .flat_map(|of| list(&of, scope))
            .flat_map(|of| list(&of, what))
            .collect()
    }
}

impl Drop for Otelcol {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The text of an attribute; empty where it is missing.
pub(crate) fn attribute(of: &Value, name: &str) -> String {
    let found = of["attributes"].as_array().into_iter().flatten().find(|attribute| attribute["key"] == name);
    found.map(|attribute| attribute["value"]["stringValue"].as_str().unwrap_or_default().to_owned()).unwrap_or_default()
}
