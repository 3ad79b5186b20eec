//! Golden lines of the log: the human form and the JSON form, of runs and of everything else.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use evenkeel::engine::Engine;
use evenkeel::service::telemetry::logs::{LogError, LogFormat, LogOptions, RUN_TARGET, dispatch};
use evenkeel::{Action, Failure, Reconciler, Run};
use jiff::ZonedDateTime;
use tracing_subscriber::fmt::MakeWriter;

/// Keeps what was written.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Lines {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

fn noon() -> ZonedDateTime {
    "2030-02-03T12:00:01.5+01:00[+01:00]".parse().unwrap()
}

/// What these events look like.
fn lines(format: LogFormat, colour: bool, level: &str, events: impl FnOnce()) -> String {
    let lines = Lines::default();
    let dispatch = dispatch(LogOptions { format, colour, now: noon }, level, lines.clone()).unwrap();
    tracing::dispatcher::with_default(&dispatch, events);
    lines.text()
}

/// One run that went well and one that failed, with the fields that the engine gives.
fn runs() {
    tracing::info!(
        target: RUN_TARGET,
        outcome = "done", id = "prod/Database/orders", attempt = 1_u32, duration_seconds = 0.031,
        shard = 7_u16, worker = 3_u16, causes = "orders/7@991", more_causes = 0_u32, next_seconds = None::<f64>,
        message = "",
    );
    tracing::warn!(
        target: RUN_TARGET,
        outcome = "failed", id = "zone-a", attempt = 2_u32, duration_seconds = 1.25,
        shard = 0_u16, worker = 0_u16, causes = "all,retry after attempt 1", more_causes = 3_u32,
        next_seconds = Some(0.5), message = "no route\n\u{1b}[2J\u{202e}",
    );
}

#[test]
fn t5_a_run_has_one_human_line() {
    assert_eq!(
        lines(LogFormat::Human, false, "info", runs),
        "12:00:01 done  prod/Database/orders  attempt 1  31 ms  shard 7  cause orders/7@991\n\
         12:00:01 failed  zone-a  attempt 2  1.2 s  shard 0  cause all, retry after attempt 1 \
         and 3 more  next in 500 ms: no route\\n\\u{1b}[2J\\u{202e}\n"
    );
}

#[test]
fn t5_a_run_has_one_json_line_with_stable_keys() {
    let text = lines(LogFormat::Json, false, "info", runs);
    let wanted = concat!(
        r#"{"timestamp":"2030-02-03T11:00:01.500000Z","level":"INFO","outcome":"done","id":"prod/Database/orders","#,
        r#""attempt":1,"duration_seconds":0.031,"shard":7,"worker":3,"causes":"orders/7@991","more_causes":0,"#,
        r#""message":"","target":"evenkeel::run"}"#,
        "\n",
        r#"{"timestamp":"2030-02-03T11:00:01.500000Z","level":"WARN","outcome":"failed","id":"zone-a","attempt":2,"#,
        r#""duration_seconds":1.25,"shard":0,"worker":0,"causes":"all,retry after attempt 1","more_causes":3,"#,
        r#""next_seconds":0.5,"message":"no route\n\u001b[2J"#,
        "\u{202e}",
        r#"","target":"evenkeel::run"}"#,
        "\n",
    );
    assert_eq!(text, wanted);
    for line in text.lines() {
        serde_json::from_str::<serde_json::Value>(line).unwrap();
    }
}

/// What is no run: a message with fields, a message alone, fields alone.
fn others() {
    tracing::warn!(stream = "orders", after_seconds = 2.5, "cannot reach\tthe broker");
    tracing::info!("listening on {}", "127.0.0.1:7070");
    tracing::error!(code = ?Some("x\ny"));
}

#[test]
fn other_lines_are_as_spare() {
    assert_eq!(
        lines(LogFormat::Human, false, "info,it=info", others),
        "12:00:01 warn  cannot reach\\tthe broker  stream=orders  after_seconds=2.5\n\
         12:00:01 info  listening on 127.0.0.1:7070\n\
         12:00:01 error  code=Some(\"x\\ny\")\n"
    );
}

#[test]
fn colour_is_the_only_difference_that_colour_makes() {
    let all = || {
        runs();
        others();
    };
    let plain = lines(LogFormat::Human, false, "info,it=info", all);
    let coloured = lines(LogFormat::Human, true, "info,it=info", all);
    assert!(!plain.contains('\u{1b}') && coloured.contains('\u{1b}'));
    assert_eq!(anstream::adapter::strip_str(&coloured).to_string(), plain);
}

#[test]
fn the_level_decides_and_a_bad_one_is_refused() {
    let count = |level| lines(LogFormat::Human, false, level, runs).lines().count();
    assert_eq!((count("info"), count("warn"), count("error"), count("info,evenkeel::run=warn")), (2, 1, 0, 1));
    let options = LogOptions { format: LogFormat::Json, colour: false, now: noon };
    let refused = dispatch(options, "verbose", Lines::default()).unwrap_err();
    assert!(matches!(refused, LogError::Level(_)));
    assert!(refused.to_string().contains("use off, error, warn, info, debug or trace"), "{refused}");
}

/// Fails with what a broken server may say.
struct Rude;

impl Reconciler for Rude {
    async fn reconcile(&self, _: &Run) -> Result<Action, Failure> {
        Err(Failure::terminal("HTTP 500: \u{1b}[2J\nTraceback"))
    }
}

/// The line of a real run; the engine works on this thread, so that its lines come here.
#[tokio::test]
async fn t5_the_engine_gives_the_fields_that_the_line_needs() {
    let (human, json) = (Lines::default(), Lines::default());
    for (format, lines) in [(LogFormat::Human, &human), (LogFormat::Json, &json)] {
        let dispatch = dispatch(LogOptions { format, colour: false, now: noon }, "info", lines.clone()).unwrap();
        let _guard = tracing::dispatcher::set_default(&dispatch);
        let engine = Engine::builder("dns").reconciler(Rude).build().unwrap();
        let (handle, running) = (engine.handle(), tokio::spawn(engine.run(std::future::pending())));
        while handle.trigger("zone-a").is_err() {
            tokio::task::yield_now().await;
        }
        while !lines.text().contains("zone-a") {
            tokio::task::yield_now().await;
        }
        handle.drain();
        running.await.unwrap().unwrap();
    }
    let line = human.text().lines().find(|line| line.contains("zone-a")).unwrap().to_owned();
    let (before, after) = line.split_once(" ms").unwrap();
    assert!(before.starts_with("12:00:01 given_up  zone-a  attempt 1  "), "{line}");
    assert_eq!(after, "  shard 0  cause trigger: HTTP 500: \\u{1b}[2J\\nTraceback");
    let line = json.text().lines().find(|line| line.contains("zone-a")).unwrap().to_owned();
    let line: serde_json::Value = serde_json::from_str(&line).unwrap();
    for key in ["timestamp", "level", "outcome", "id", "attempt", "duration_seconds", "shard", "worker", "causes"] {
        assert!(!line[key].is_null(), "{key} is missing: {line}");
    }
    assert_eq!((&line["level"], &line["message"]), (&"ERROR".into(), &"HTTP 500: \u{1b}[2J\nTraceback".into()));
}
