//! The contract as it is written down: schemas, examples and tables of docs/reconcilers.md, held against the code.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use proptest::prelude::{prop_assert, proptest};
use serde_json::Value;

use super::server::{Server, reply};
use super::support::{PATIENCE, reconcile, run_of, write_program};
use crate::contract::{Action, Cause, DURATION_MAX, Failure, FailureKind, Position, Reconciler, Requeue};
use crate::hooks::text::Secrets;
use crate::hooks::{Answer, Exec, ExecSettings, Request, Webhook, WebhookSettings, answer_schema, request_schema};

fn in_docs(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(name)
}

/// The text between a comment and the end of the code block that follows it, for each such comment.
fn blocks(comment: &str) -> Vec<String> {
    let text = std::fs::read_to_string(in_docs("reconcilers.md")).unwrap();
    let marker = format!("<!-- {comment} -->\n```");
    let blocks = text.split(&marker).skip(1).map(|rest| {
        let (code, _) = rest.split_once("\n```").unwrap();
        code.split_once('\n').unwrap().1.to_owned() + "\n"
    });
    let blocks: Vec<_> = blocks.collect();
    assert!(!blocks.is_empty(), "docs/reconcilers.md has no block marked {comment}");
    blocks
}

/// The rows of the table that follows a comment, as their numbers and their outcome.
fn table(comment: &str) -> Vec<(u16, String)> {
    let text = std::fs::read_to_string(in_docs("reconcilers.md")).unwrap();
    let (_, rest) = text.split_once(&format!("<!-- {comment} -->\n")).unwrap();
    let rows = rest.lines().take_while(|line| line.starts_with('|')).skip(2);
    rows.flat_map(|row| {
        let cells: Vec<_> = row.trim_matches('|').split('|').map(str::trim).collect();
        let outcome = cells[1].to_owned();
        cells[0].split(", ").map(|n| (n.parse().unwrap(), outcome.clone())).collect::<Vec<_>>()
    })
    .collect()
}

fn in_words(outcome: &Result<Action, Failure>) -> &'static str {
    match outcome {
        Ok(action) if *action == Action::done() => "done",
        Ok(action) if action.message() == Some("an answer") => "by the answer",
        Ok(_) => "something else",
        Err(failure) if failure.kind() == FailureKind::Terminal => "given up",
        Err(_) => "tried again",
    }
}

#[test]
fn schemas_are_those_of_the_code() {
    for (name, schema) in
        [("reconcile-request.v1.json", request_schema()), ("reconcile-answer.v1.json", answer_schema())]
    {
        let path = in_docs("schema").join(name);
        let wanted = serde_json::to_string_pretty(&schema).unwrap() + "\n";
        if std::env::var_os("EVENKEEL_TEST_UPDATE").is_some() {
            std::fs::write(&path, &wanted).unwrap();
        }
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(found == wanted, "run this test with EVENKEEL_TEST_UPDATE=1 to write {name}, and say it in CHANGELOG");
        jsonschema::validator_for(&schema).unwrap();
    }
}

#[test]
fn the_documented_examples_keep_the_contract() {
    for text in blocks("request") {
        let value: Value = serde_json::from_str(&text).unwrap();
        jsonschema::validate(&request_schema(), &value).unwrap();
        let request: Request = serde_json::from_str(&text).unwrap();
        assert_eq!(serde_json::to_value(request).unwrap(), value, "the example has every field and no other");
    }
    for text in blocks("answer") {
        jsonschema::validate(&answer_schema(), &serde_json::from_str(&text).unwrap()).unwrap();
        Answer::parse(text.as_bytes()).unwrap();
    }
    for text in blocks("refused") {
        assert!(jsonschema::validate(&answer_schema(), &serde_json::from_str(&text).unwrap()).is_err(), "{text}");
        Answer::parse(text.as_bytes()).unwrap_err();
    }
}

#[test]
fn every_cause_fits_the_schema() {
    let stream = || "s".into();
    let position = Position { topic: "t".into(), partition: 0, offset: u64::MAX };
    let causes = vec![
        Cause::Event { stream: stream(), position: None },
        Cause::Event { stream: stream(), position: Some(position) },
        Cause::Resync { stream: stream() },
        Cause::Trigger {},
        Cause::Retry { attempt: 1, error: None },
        Cause::Retry { attempt: u32::MAX, error: Some("x".into()) },
        Cause::Requested {},
        Cause::Recovered {},
        Cause::Redrive {},
        Cause::Cancelled {},
    ];
    for cause in causes {
        // A cause that is added must be added here and to the docs.
        match cause {
            Cause::Event { .. } | Cause::Resync { .. } | Cause::Trigger {} | Cause::Retry { .. } => {}
            Cause::Requested {} | Cause::Recovered {} | Cause::Redrive {} | Cause::Cancelled {} => {}
        }
        let mut request = Request::of(&run_of("a", None));
        request.causes = vec![cause];
        let value = serde_json::to_value(&request).unwrap();
        assert!(value.get("timeout_seconds").is_none());
        jsonschema::validate(&request_schema(), &value).unwrap();
        assert_eq!(serde_json::from_value::<Request>(value).unwrap(), request);
    }
}

#[test]
fn schema_and_code_agree_on_answers() {
    let schema = answer_schema();
    let validator = jsonschema::validator_for(&schema).unwrap();
    for (text, good) in [
        ("{}", true),
        (r#"{"requeue_after": "1h30m"}"#, true),
        (r#"{"requeue_after": "1.5µs", "unchanged": false}"#, true),
        (r#"{"requeue_after": null, "error": null, "message": null, "unchanged": null}"#, true),
        (r#"{"error": {}}"#, true),
        (r#"{"error": {"retry_after": "0s", "terminal": false, "message": null}}"#, true),
        (r#"{"requeue_after": "30"}"#, false),
        (r#"{"requeue_after": "5 minutes"}"#, false),
        (r#"{"requeue_after": "1e6s"}"#, false),
        (r#"{"requeue_after": 0.4}"#, false),
        (r#"{"unchanged": 1}"#, false),
        (r#"{"error": "boom"}"#, false),
        (r#"{"error": []}"#, false),
        (r#"{"error": {"code": 1}}"#, false),
        (r#"{"delete": [1]}"#, false),
        (r#"{"ok": true}"#, false),
        ("[]", false),
        ("null", false),
    ] {
        assert_eq!(validator.is_valid(&serde_json::from_str(text).unwrap()), good, "schema: {text}");
        assert_eq!(Answer::parse(text.as_bytes()).is_ok(), good, "code: {text}");
    }
}

proptest! {
    #[test]
    fn b45_no_answer_makes_it_panic_and_no_bad_duration_is_taken_for_soon(
        text in r#"[{}\[\]":,a-z0-9_.\\ -]{0,60}"#,
        wish in "\\PC{0,12}|-?[0-9.]{0,25}(ns|ms|s|m|h|d|e)?",
    ) {
        let _ = Answer::parse(text.as_bytes());
        let answer = serde_json::json!({"requeue_after": wish}).to_string();
        if let Ok(answer) = Answer::parse(answer.as_bytes()) {
            let zero = !wish.bytes().any(|digit| (b'1'..=b'9').contains(&digit));
            let Some(Requeue::After(delay)) = answer.outcome(&Secrets::default()).unwrap().requeue() else {
                panic!("{wish} was passed over");
            };
            prop_assert!(zero == delay.is_zero() && delay <= DURATION_MAX, "{} {:?}", wish, delay);
        }
    }
}

#[test]
fn an_answer_that_is_written_can_be_read() {
    let text = r#"{"requeue_after":"90s","error":{"message":"x","retry_after":"5ms"}}"#;
    let answer = Answer::parse(text.as_bytes()).unwrap();
    assert_eq!(Answer::parse(serde_json::to_string(&answer).unwrap().as_bytes()).unwrap(), answer);
}

#[tokio::test]
async fn b70_the_table_of_statuses_is_as_documented() {
    let rows = table("statuses");
    assert!(rows.len() > 25);
    for (status, wanted) in rows {
        let headers = [("Content-Type", "application/json"), ("Location", "http://127.0.0.1:1/")];
        for body in ["", r#"{"message": "an answer"}"#] {
            let (body, wanted) = match wanted.as_str() {
                "by the answer; without one, done" if body.is_empty() => (body, "done"),
                "by the answer; without one, done" => (body, "by the answer"),
                // These have no body.
                wanted if status == 204 || status == 304 => ("", wanted),
                wanted => (body, wanted),
            };
            let server = Server::saying(reply(&format!("{status} Whatever"), &headers, body)).await;
            let webhook = Webhook::new(WebhookSettings::new(server.url())).unwrap();
            assert_eq!(in_words(&reconcile(&webhook).await), wanted, "{status} {body}");
        }
    }
}

#[tokio::test]
async fn b70_the_table_of_exits_is_as_documented() {
    let rows = table("exits");
    assert!(rows.len() > 10);
    for (status, wanted) in rows {
        for (answer, with_answer) in [(":", false), ("echo '{\"message\": \"an answer\"}' > $EVENKEEL_ANSWER", true)] {
            let wanted = match (wanted.as_str(), with_answer) {
                ("by the answer; without one, done", true) => "by the answer",
                ("by the answer; without one, done", false) => "done",
                (wanted, _) => wanted,
            };
            let script = format!("{answer}; exit {status}");
            let exec = Exec::new(ExecSettings::new(["sh", "-c", &script], "/")).unwrap();
            assert_eq!(in_words(&reconcile(&exec).await), wanted, "{script}");
        }
    }
}

#[tokio::test]
async fn the_documented_script_works() {
    let dir = tempfile::tempdir().unwrap();
    let script = blocks("run: exec").remove(0);
    write_program(&dir.path().join("reconcile.sh"), &script);
    std::fs::create_dir(dir.path().join("zones")).unwrap();
    std::fs::write(dir.path().join("zones/example"), "a\nb\n").unwrap();
    let exec = Exec::new(ExecSettings::new(["./reconcile.sh"], dir.path())).unwrap();
    let action = exec.reconcile(&run_of("example", Some(PATIENCE))).await.unwrap();
    assert_eq!(action.requeue(), Some(Requeue::After(Duration::from_secs(3600))));
    let zone = dir.path().join("out/example.zone");
    assert_eq!(std::fs::read_to_string(&zone).unwrap(), "record a\nrecord b\n");
    std::fs::remove_file(dir.path().join("zones/example")).unwrap();
    assert_eq!(exec.reconcile(&run_of("example", Some(PATIENCE))).await.unwrap(), Action::done());
    assert!(!zone.exists());
    let failure = exec.reconcile(&run_of("../x", Some(PATIENCE))).await.unwrap_err();
    assert_eq!(failure.kind(), FailureKind::Terminal);
    assert!(failure.message().contains("a zone's name has no /"), "{failure}");
}

/// Ends the program with the test.
struct Ended(std::process::Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn the_documented_server_works() {
    const SECRET: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";
    let dir = tempfile::tempdir().unwrap();
    let (program, secret) = (dir.path().join("hook.py"), dir.path().join("secret"));
    std::fs::write(&program, blocks("run: webhook").remove(0)).unwrap();
    std::fs::write(&secret, SECRET).unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let python = Command::new("python3")
        .arg(&program)
        .env("PORT", port.to_string())
        .env("HOOK_SECRET", SECRET)
        .stderr(Stdio::null())
        .spawn()
        .expect("python3 runs the example");
    let _python = Ended(python);
    let mut settings = WebhookSettings::new(format!("http://127.0.0.1:{port}/reconcile"));
    let unsigned = Webhook::new(settings.clone()).unwrap();
    settings.secret_file = Some(secret);
    let webhook = Webhook::new(settings).unwrap();
    let mut run = run_of("prod/zone", Some(PATIENCE));
    let deadline = Instant::now() + PATIENCE;
    let action = loop {
        match webhook.reconcile(&run).await {
            Ok(action) => break action,
            Err(failure) => assert!(Instant::now() < deadline, "{failure}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert_eq!(action.requeue(), Some(Requeue::After(Duration::from_secs(600))));
    assert_eq!(action.message(), Some("attempt 3 went well"));
    run.parts.number -= 1;
    let overtaken = webhook.reconcile(&run).await.unwrap_err();
    assert!(overtaken.message().contains("409"), "{overtaken}");
    let refused = webhook.reconcile(&run_of("test/zone", Some(PATIENCE))).await.unwrap_err();
    assert_eq!((refused.kind(), refused.message()), (FailureKind::Terminal, "test zones are not served here"));
    let stranger = unsigned.reconcile(&run_of("prod/zone", Some(PATIENCE))).await.unwrap_err();
    assert!(
        stranger.message().contains("answered 5")
            || stranger.message().contains("broke")
            || stranger.message().contains("401"),
        "{stranger}"
    );
}
