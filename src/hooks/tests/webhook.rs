//! The webhook against a server that keeps the contract: what it is asked, and what its answers mean.

use std::time::{Duration, Instant};

use super::server::{Reply, Server, json, reply};
use super::support::{PATIENCE, TRANSIENT, cancel, capture_logs, failure, in_own_process, reconcile, run_of, until};
use crate::contract::{Action, CancelReason, FailureKind, Reconciler, Requeue};
use crate::hooks::{Request, Webhook, WebhookSettings, request_schema};

const SECRET: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";

fn webhook(server: &Server) -> Webhook {
    Webhook::new(WebhookSettings::new(server.url())).unwrap()
}

/// What a webhook that answers this ends with.
async fn ends_with(reply: Reply) -> Result<Action, crate::contract::Failure> {
    let server = Server::saying(reply).await;
    reconcile(&webhook(&server)).await
}

#[tokio::test]
async fn a_request_keeps_the_contract() {
    let server = Server::saying(reply("204 No Content", &[], "")).await;
    let run = run_of("prod/Database/orders", Some(PATIENCE));
    assert_eq!(webhook(&server).reconcile(&run).await.unwrap(), Action::done());
    let seen = server.last();
    assert_eq!(seen.line, "POST /reconcile HTTP/1.1");
    for (name, wanted) in [
        ("content-type", Some("application/json")),
        ("evenkeel-fencing-token", Some("0001-0000000000000004711-000000000042")),
        ("traceparent", Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")),
        ("user-agent", Some(concat!("evenkeel/", env!("CARGO_PKG_VERSION")))),
        ("accept-encoding", None),
        ("cookie", None),
        ("referer", None),
        ("webhook-id", None),
        ("authorization", None),
    ] {
        assert_eq!(seen.headers.get(name).map(String::as_str), wanted, "{name}");
    }
    let body: serde_json::Value = serde_json::from_str(&seen.body).unwrap();
    jsonschema::validate(&request_schema(), &body).unwrap();
    let request: Request = serde_json::from_str(&seen.body).unwrap();
    assert_eq!(request.fencing_token, run.fencing_token().to_string());
    assert_eq!((request.key.as_str(), request.shard, request.attempt), ("000000000000feed", 3, 3));
    assert_eq!(body["causes"][0]["event"]["offset"], 991);
    assert_eq!(body["causes"][1]["retry"]["error"], "no route");
    let left = request.timeout_seconds.unwrap();
    assert!(left > 0.0 && left <= PATIENCE.as_secs_f64(), "{left}");
}

#[tokio::test]
async fn b72_the_key_is_the_same_for_all_attempts_and_no_header_of_the_user_replaces_it() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("secret");
    std::fs::write(&file, format!("{SECRET}\n")).unwrap();
    let server = Server::saying(reply("503 Service Unavailable", &[], "")).await;
    let mut settings = WebhookSettings::new(server.url());
    settings.secret_file = Some(file);
    settings.http.headers = ["Webhook-Id", "webhook-signature", "EVENKEEL-FENCING-TOKEN", "content-type", "x-mine"]
        .map(|name| (name.to_owned(), "mine".to_owned()))
        .to_vec();
    let webhook = Webhook::new(settings).unwrap();
    let mut run = run_of("a", Some(PATIENCE));
    for attempt in [1, 2] {
        // Another attempt, in another term, by another process.
        run.parts.attempt = attempt;
        run.parts.term.revision += u64::from(attempt);
        webhook.reconcile(&run).await.unwrap_err();
    }
    run.parts.kept_key = Some(0xfeee);
    webhook.reconcile(&run).await.unwrap_err();
    let ids: Vec<_> = server.requests().iter().map(|seen| seen.headers["webhook-id"].clone()).collect();
    assert_eq!(ids, ["000000000000feed", "000000000000feed", "000000000000feee"]);
    let bodies: Vec<Request> = server.requests().iter().map(|seen| serde_json::from_str(&seen.body).unwrap()).collect();
    assert!(bodies.iter().zip(&ids).all(|(body, id)| body.key == *id));
    let seen = server.last();
    assert_eq!(seen.headers["x-mine"], "mine");
    assert_eq!(seen.headers["content-type"], "application/json");
    assert_eq!(seen.headers["evenkeel-fencing-token"], run.fencing_token().to_string());
}

#[tokio::test]
async fn signatures_are_those_of_standard_webhooks_and_secrets_rotate() {
    let (dir, old, new) = (tempfile::tempdir().unwrap(), "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", SECRET);
    let file = dir.path().join("secret");
    std::fs::write(&file, old).unwrap();
    // The second secret is not known to the receiver yet: it refuses, and so the file is read again.
    let server = Server::start(|seen| {
        let headers = seen.headers.iter().filter_map(|(k, v)| Some((k.parse().ok()?, v.parse().ok()?))).collect();
        let receiver = standardwebhooks::Webhook::new(SECRET).unwrap();
        let verified = receiver.verify(seen.body.as_bytes(), &headers);
        reply(if verified.is_ok() { "204 No Content" } else { "401 Unauthorized" }, &[], "")
    })
    .await;
    let mut settings = WebhookSettings::new(server.url());
    settings.secret_file = Some(file.clone());
    let webhook = Webhook::new(settings).unwrap();
    assert_eq!(failure(&webhook).await.kind(), TRANSIENT);
    std::fs::write(&file, format!("{old}\n{new}\n")).unwrap();
    assert_eq!(reconcile(&webhook).await.unwrap(), Action::done());
    assert_eq!(server.last().headers["webhook-signature"].split(' ').count(), 2);
}

#[tokio::test]
async fn b70_every_status_has_its_meaning() {
    let transient_after = |seconds| FailureKind::Transient(Some(Duration::from_secs(seconds)));
    for (status, headers, body, wanted, says) in [
        ("400 Bad Request", &[][..], "no such zone", FailureKind::Terminal, "400 Bad Request: no such zone"),
        ("422 Unprocessable Entity", &[("Retry-After", "7")], "", FailureKind::Terminal, "422 Unprocessable Entity"),
        ("401 Unauthorized", &[], "", TRANSIENT, "401"),
        ("403 Forbidden", &[], "", TRANSIENT, "403"),
        ("404 Not Found", &[], "", TRANSIENT, "404"),
        ("409 Conflict", &[], "later", TRANSIENT, "409 Conflict: later"),
        ("429 Too Many Requests", &[("Retry-After", "7")], "", transient_after(7), "429"),
        ("503 Service Unavailable", &[("Retry-After", "86400")], "", transient_after(3600), "503"),
        ("503 Service Unavailable", &[("Retry-After", "-1")], "", TRANSIENT, "503"),
        ("503 Service Unavailable", &[("Retry-After", "0")], "", TRANSIENT, "503"),
        ("503 Service Unavailable", &[("Retry-After", "soon")], "", TRANSIENT, "503"),
        ("500 Internal Server Error", &[], "\x1b[31mboom\x1b[0m\n\nat line 1\0", TRANSIENT, "Error: boom at line 1"),
        (
            "301 Moved Permanently",
            &[("Location", "/login?next=x")],
            "",
            TRANSIENT,
            "redirects are not followed; if http://",
        ),
        ("304 Not Modified", &[], "", TRANSIENT, "304"),
        ("599 Odd", &[], "", TRANSIENT, "599"),
    ] {
        let failure = ends_with(reply(status, headers, body)).await.unwrap_err();
        assert_eq!(failure.kind(), wanted, "{status} {headers:?}");
        assert!(failure.message().contains(says), "{}", failure.message());
        assert!(failure.message().starts_with("POST http://127.0.0.1:"), "{}", failure.message());
        assert!(!failure.message().chars().any(char::is_control), "{}", failure.message());
    }
}

#[tokio::test]
async fn retry_after_may_be_a_date() {
    let when = std::time::SystemTime::now() + Duration::from_secs(600);
    let date = httpdate::fmt_http_date(when);
    let failure = ends_with(reply("429 Too Many Requests", &[("Retry-After", &date)], "")).await.unwrap_err();
    let FailureKind::Transient(Some(delay)) = failure.kind() else { panic!("{failure:?}") };
    assert!(delay > Duration::from_secs(500) && delay <= Duration::from_secs(600), "{delay:?}");
}

#[tokio::test]
async fn b70_a_good_status_without_json_is_done_and_broken_json_is_not() {
    let html = ("Content-Type", "text/html");
    let plain = ("Content-Type", "text/plain");
    let json = ("Content-Type", "application/json");
    let problem = ("Content-Type", "application/vnd.mine+json");
    for (status, header, body) in [
        ("204 No Content", json, ""),
        ("200 OK", json, ""),
        ("200 OK", json, " \n"),
        ("200 OK", json, "{}"),
        ("201 Created", problem, "{}"),
        ("202 Accepted", plain, "ok"),
        ("200 OK", html, "<html>please log in</html>"),
        ("200 OK", plain, "[\"no object\"]"),
    ] {
        assert_eq!(
            ends_with(reply(status, &[header], body)).await.unwrap(),
            Action::done(),
            "{status} {header:?} {body}"
        );
    }
    for (header, body) in [
        (json, r#"{"message": "trunca"#),
        (json, "<html>"),
        (json, "null"),
        (json, "[]"),
        (json, "\u{feff}{}"),
        (json, "{} {}"),
        // JSON under a wrong name is still looked at: an error in it must not pass for success.
        (plain, r#"{"error": {"message": "boom"#),
        (problem, "nope"),
    ] {
        let failure = ends_with(reply("200 OK", &[header], body)).await.unwrap_err();
        assert_eq!(failure.kind(), TRANSIENT, "{header:?} {body}");
        assert!(failure.message().contains("does not keep the contract"), "{}", failure.message());
    }
    let failure = ends_with(reply("200 OK", &[plain], r#"{"error": {"message": "boom"}}"#)).await.unwrap_err();
    assert_eq!(failure.message(), "boom");
}

#[tokio::test]
async fn an_answer_decides() {
    let answer = r#"{"requeue_after": "1h", "unchanged": true, "message": "three records"}"#;
    let action = ends_with(json(answer)).await.unwrap();
    assert_eq!(action.requeue(), Some(Requeue::After(Duration::from_secs(3600))));
    assert!(action.is_unchanged());
    assert_eq!(action.message(), Some("three records"));
    let failure = ends_with(json(r#"{"requeue_after": "60s", "error": {"terminal": true}}"#)).await.unwrap_err();
    assert_eq!(failure.kind(), FailureKind::Terminal);
}

#[tokio::test]
async fn a_body_that_is_not_json_is_warned_about_once() {
    let (logs, _guard) = capture_logs();
    let server = Server::saying(reply("200 OK", &[("Content-Type", "text/html")], "<p>ok</p>")).await;
    let webhook = webhook(&server);
    for _ in 0..3 {
        assert!(reconcile(&webhook).await.is_ok());
    }
    assert_eq!(logs.text().matches("a body that is not JSON").count(), 1, "{}", logs.text());
}

#[tokio::test]
async fn connections_are_reused_and_cookies_are_not_kept() {
    let server =
        Server::saying(reply("200 OK", &[("Set-Cookie", "session=1"), ("Content-Type", "text/plain")], "ok")).await;
    let webhook = webhook(&server);
    for _ in 0..5 {
        assert!(reconcile(&webhook).await.is_ok());
    }
    assert_eq!((server.requests().len(), server.connections()), (5, 1));
    assert!(server.requests().iter().all(|seen| !seen.headers.contains_key("cookie")));
}

#[tokio::test]
async fn a_rotated_token_is_used_after_it_was_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("authorization");
    std::fs::write(&file, "Bearer old-token\n").unwrap();
    let server = Server::start(|seen| {
        let known = seen.headers["authorization"] == "Bearer new-token";
        reply(if known { "204 No Content" } else { "401 Unauthorized" }, &[], "")
    })
    .await;
    let mut settings = WebhookSettings::new(server.url());
    settings.http.authorization_file = Some(file.clone());
    let webhook = Webhook::new(settings).unwrap();
    failure(&webhook).await;
    std::fs::write(&file, "Bearer new-token\n").unwrap();
    assert!(reconcile(&webhook).await.is_ok());
    std::fs::remove_file(&file).unwrap();
    // What was taken away is not used for longer than a file's value is fresh.
    let deadline = Instant::now() + PATIENCE;
    let failure = loop {
        assert!(Instant::now() < deadline, "the token is still used");
        if let Err(failure) = reconcile(&webhook).await {
            break failure;
        }
    };
    assert!(failure.message().contains("cannot use /"), "{}", failure.message());
}

#[tokio::test]
async fn c4_a_cancelled_run_and_a_dropped_one_abort_their_request() {
    let server = Server::saying(Reply::Hang).await;
    let webhook = webhook(&server);
    for (reason, says) in [
        (CancelReason::Shutdown, "the process is stopping"),
        (CancelReason::LeadershipLost, "another process leads"),
        (CancelReason::Timeout, "it took longer than 60s"),
    ] {
        let run = run_of("a", Some(PATIENCE));
        let before = server.requests().len();
        let (failed, ()) = tokio::join!(webhook.reconcile(&run), async {
            until("the request came", || server.requests().len() > before).await;
            cancel(&run, reason);
        });
        let failure = failed.unwrap_err();
        assert_eq!(failure.kind(), TRANSIENT);
        assert!(failure.message().contains(says), "{}", failure.message());
    }
    let run = run_of("a", None);
    tokio::select! {
        _ = webhook.reconcile(&run) => panic!("nothing answers"),
        () = until("the request came", || server.requests().len() == 4) => {}
    }
    until("all requests are aborted", || server.closed() == 4).await;
}

#[test]
fn proxies_of_the_environment_are_not_used() {
    let nowhere = "http://127.0.0.1:1";
    let proxies = ["http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"];
    let variables = proxies.map(|name| (name, nowhere));
    if !in_own_process("webhook::proxies_of_the_environment_are_not_used", &variables) {
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let server = Server::saying(reply("204 No Content", &[], "")).await;
        assert!(reconcile(&webhook(&server)).await.is_ok());
    });
}
