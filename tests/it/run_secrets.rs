//! B87: a canary in every secret, every failure that could repeat one, and every place where one could show up: the log
//! at its loudest, status, journal, metrics, the dump, what a command gets.

use std::os::unix::fs::PermissionsExt;

use rustix::process::Signal;
use serde_json::json;

use super::recorder::{Recorder, Reply};
use super::run_world::{Process, Project, text, wait};

const CANARY: &str = "canary-7d1c4b";

fn secret(project: &Project, name: &str, content: &str) {
    let path = project.path().join(name);
    std::fs::write(&path, content).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

/// Everything that a process ever tells.
fn all_it_tells(process: &Process, ids: &[&str]) -> String {
    let mut told = String::new();
    for args in [vec!["status"], vec!["shards"], vec!["queues"], vec!["journal"]] {
        told += &text(&process.ask(["-o", "json"].into_iter().chain(args.iter().copied())).stdout);
        told += &text(&process.ask(&args).stdout);
    }
    for id in ids {
        told += &text(&process.ask(["explain", id]).stdout);
    }
    for path in ["/metrics", "/livez", "/readyz", "/v1/status"] {
        told += &super::admin_world::request(process.address(), "GET", path, &[], "").body;
    }
    process.signal(Signal::USR1);
    process.until_line("dump: the state of this process");
    told
}

#[track_caller]
fn assert_clean(what: &str, told: &str) {
    let found = told.lines().find(|line| line.contains("canary") && !line.contains("canary-id"));
    assert!(found.is_none(), "a secret in {what}: {}", found.unwrap());
}

#[test]
fn b87_a_webhooks_secrets_are_told_nowhere() {
    // The server repeats what it was given, as careless servers do.
    let recorder = Recorder::start(|id, _| match id {
        "canary-id-repeats" => Reply::Json(json!({"error": {"message": format!("bad token Bearer {CANARY}-auth")}})),
        "canary-id-message" => Reply::Json(json!({"message": format!("hello {CANARY}-auth")})),
        "canary-id-fails" => Reply::Status(401),
        _ => Reply::Done,
    });
    let address = recorder.url().replace("http://", "");
    let project = Project::new(&format!(
        "name: test\nreconciler:\n  webhook:\n    url: http://{address}?key={CANARY}-query\n    \
         secret_file: hook\n    authorization_file: auth\n\
         streams:\n  all:\n    resync:\n      every: 1h\n      \
         list: {{http: {{url: 'http://{address}', authorization_file: auth}}}}\n\
         telemetry: {{logs: json, level: trace}}\n"
    ));
    let key = "whsec_Y2FuYXJ5LWtleS1jYW5hcnkta2V5LWNhbmFyeS1rZXk=";
    secret(&project, "hook", key);
    secret(&project, "auth", &format!("Bearer {CANARY}-auth"));
    let mut process = project.start();
    let ids = ["canary-id-repeats", "canary-id-message", "canary-id-fails", "good"];
    process.ask(["trigger", "--wait"].into_iter().chain(ids));
    wait("the list has failed too", || process.log().contains("the list of ids failed"));
    let told = all_it_tells(&process, &ids);
    let seen = recorder.of("good").remove(0);
    assert_eq!(seen.headers["authorization"], format!("Bearer {CANARY}-auth"), "it was used");
    assert!(seen.headers.contains_key("webhook-signature"));
    assert_eq!(process.stop().0.code(), Some(0));
    for (what, text) in [("what it tells", &told), ("its log", &process.log())] {
        assert_clean(what, text);
        assert!(!text.contains("Y2FuYXJ5") && !text.contains(&seen.headers["webhook-signature"]), "{what}: the key");
    }
    assert!(process.log().contains("TRACE") || process.log().contains("DEBUG"), "the log was at its loudest");
}

#[test]
fn b87_a_commands_secrets_are_told_nowhere_and_it_gets_only_what_is_allowed() {
    let project = Project::new(
        "name: test\nreconciler:\n  exec: {command: [./reconcile.sh], env: [API_TOKEN]}\n  \
         retry: {max_retries: 1, initial: 100ms}\ntelemetry: {logs: json, level: trace}\n",
    );
    project.script("reconcile.sh", "#!/bin/sh\nenv > environment\necho \"the password is $API_TOKEN\" >&2\nexit 1\n");
    let mut command = project.command();
    let allowed = format!("{CANARY}-allowed");
    command.arg("run").env("API_TOKEN", &allowed).env("FORBIDDEN", format!("{CANARY}-forbidden"));
    let mut process = Process::spawn(command);
    process.until_led();
    process.ask(["trigger", "--wait", "x"]);
    let told = all_it_tells(&process, &["x"]);
    assert_eq!(process.stop().0.code(), Some(0));
    let environment = project.read("environment");
    assert!(environment.contains(&allowed) && !environment.contains("FORBIDDEN"), "{environment}");
    assert!(told.contains("the password is ***"), "{told}");
    assert_clean("what it tells", &told);
    assert_clean("its log", &process.log());
}

/// Kafka's password, the admin token, credentials in addresses; and a start that fails because of them.
#[test]
fn b87_logins_and_tokens_are_told_nowhere() {
    let recorder = Recorder::start(|_, _| Reply::Done);
    let url = recorder.url();
    let in_address = url.replace("http://", &format!("http://user:{CANARY}-url@"));
    let refused = Project::new(&format!("name: test\nreconciler: {{webhook: '{in_address}'}}\n")).run();
    assert_eq!(refused.status.code(), Some(2));
    assert_clean("a refused config", &text(&refused.stderr));
    let project = Project::new(&format!(
        "name: test\nreconciler: {{webhook: '{url}'}}\n\
         kafka:\n  brokers: ['127.0.0.1:1']\n  tls: {{}}\n  \
         sasl: {{mechanism: PLAIN, username: user, password: '${{KAFKA_PASSWORD}}'}}\n\
         streams: {{orders: {{kafka: {{topics: [orders], dead_letter: dlq}}}}}}\n\
         admin: {{listen: '127.0.0.1:0', token_file: token}}\ntelemetry: {{logs: json, level: trace}}\n"
    ));
    secret(&project, "token", &format!("{CANARY}-admin-token-of-some-length\n"));
    let start = || {
        let mut command = project.command();
        command.arg("run").env("KAFKA_PASSWORD", format!("{CANARY}-kafka"));
        Process::spawn(command)
    };
    let mut process = start();
    process.until_started();
    wait("Kafka was tried", || process.log().contains("Kafka"));
    let unauthorised = super::admin_world::request(
        process.address(),
        "GET",
        "/v1/status",
        &["Authorization: Bearer canary-7d1c4b-wrong-token-of-some-length"],
        "",
    );
    assert_eq!(unauthorised.status, 401);
    assert_clean("a refusal", &unauthorised.body);
    let token = format!("Authorization: Bearer {CANARY}-admin-token-of-some-length");
    for path in ["/v1/status", "/v1/queues", "/metrics"] {
        let answer = super::admin_world::request(process.address(), "GET", path, &[&token], "");
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_clean(path, &answer.body);
    }
    process.signal(Signal::USR1);
    process.until_line("dump: the state of this process");
    // A start that fails while all of it is in its hands.
    let mut second = start();
    assert_eq!(second.ended().0.code(), Some(1), "{}", second.log());
    assert_clean("a start that failed", &second.log());
    assert_eq!(process.stop().0.code(), Some(0));
    assert_clean("its log", &process.log());
}
