//! The webhook against servers and networks that do everything wrong (B73; the webhook row of bad input).

use std::time::Duration;

use tokio::net::TcpListener;

use super::server::{Reply, Server, json, reply};
use super::support::{PATIENCE, TRANSIENT, failure, reconcile, run_of};
use crate::contract::Reconciler;
use crate::hooks::{ANSWER_BYTES_MAX, HookError, HttpSettings, Webhook, WebhookSettings};

async fn failure_of(reply: Reply) -> String {
    let server = Server::saying(reply).await;
    let failure = failure(&Webhook::new(WebhookSettings::new(server.url())).unwrap()).await;
    assert_eq!(failure.kind(), TRANSIENT, "{failure}");
    failure.message().to_owned()
}

fn head(rest: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n{rest}\r\n").into_bytes()
}

#[tokio::test]
async fn b73_a_body_of_one_byte_at_a_time_ends_with_the_runs_time() {
    for status in ["200 OK", "500 Internal Server Error"] {
        let start = format!("HTTP/1.1 {status}\r\nContent-Length: 1000000\r\n\r\n").into_bytes();
        let server = Server::saying(Reply::Drip(start, b' ', Duration::from_millis(20))).await;
        let webhook = Webhook::new(WebhookSettings::new(server.url())).unwrap();
        let run = run_of("a", Some(Duration::from_secs(3)));
        let failure = tokio::time::timeout(PATIENCE, webhook.reconcile(&run)).await.expect("held").unwrap_err();
        // What a bad status has to say is not worth the whole time.
        let says = if status.starts_with('5') { "500 Internal" } else { "it took longer than 3s" };
        assert!(failure.message().contains(says), "{}", failure.message());
        assert!(server.bytes_said() > 0);
    }
}

#[tokio::test]
async fn b73_headers_that_never_come_end_with_the_runs_time() {
    for reply in [Reply::Hang, Reply::Drip(b"HTTP/1.1 200 OK\r\nX: ".to_vec(), b'x', Duration::from_millis(20))] {
        let server = Server::saying(reply).await;
        let webhook = Webhook::new(WebhookSettings::new(server.url())).unwrap();
        let run = run_of("a", Some(Duration::from_millis(500)));
        let failure = tokio::time::timeout(PATIENCE, webhook.reconcile(&run)).await.expect("held").unwrap_err();
        assert!(failure.message().contains("it took longer than 500ms"), "{}", failure.message());
    }
}

#[tokio::test]
async fn b73_an_endless_body_is_read_no_further_than_the_cap() {
    for rest in ["Content-Length: 10737418240\r\n", "Connection: close\r\n"] {
        let server = Server::saying(Reply::Drip(head(rest), b' ', Duration::ZERO)).await;
        let webhook = Webhook::new(WebhookSettings::new(server.url())).unwrap();
        let failure = failure(&webhook).await;
        assert!(failure.message().contains("larger than 1048576 bytes"), "{}", failure.message());
        // The rest is what the sockets' buffers took.
        assert!(server.bytes_said() < 64 * ANSWER_BYTES_MAX, "{}", server.bytes_said());
    }
    let endless_headers = Reply::Drip(b"HTTP/1.1 200 OK\r\nX: ".to_vec(), b'x', Duration::ZERO);
    let server = Server::saying(endless_headers).await;
    failure(&Webhook::new(WebhookSettings::new(server.url())).unwrap()).await;
    assert!(server.bytes_said() < 64 * ANSWER_BYTES_MAX, "{}", server.bytes_said());
}

#[tokio::test]
async fn answers_that_are_no_http_or_break_off_are_failures() {
    let random: Vec<u8> = (0..4096_u32).map(|n| u8::try_from((n * 7919) % 251).unwrap()).collect();
    for (bytes, says) in [
        (random, ""),
        (Vec::new(), ""),
        (b"SSH-2.0-OpenSSH_9.2\r\n".to_vec(), ""),
        (b"HTTP/1.1 99999 OK\r\n\r\n".to_vec(), ""),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n{}".to_vec(), ""),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}".to_vec(), ""),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n".to_vec(), "the answer broke off"),
        ([head("Content-Length: 50\r\n"), b"{}".to_vec()].concat(), "the answer broke off"),
        ([head("Transfer-Encoding: chunked\r\n"), b"2\r\n{}\r\n".to_vec()].concat(), "the answer broke off"),
        // More than was announced: the rest is not this answer's.
    ] {
        let message = failure_of(Reply::SayAndClose(bytes)).await;
        assert!(message.starts_with("POST http://127.0.0.1:") && message.contains(says), "{message}");
    }
}

#[tokio::test]
async fn an_answer_that_nobody_asked_to_compress_is_a_failure() {
    for encoding in ["gzip", "br", "deflate, gzip"] {
        let headers = [("Content-Type", "application/json"), ("Content-Encoding", encoding)];
        let message = failure_of(reply("200 OK", &headers, "\u{1f}bomb")).await;
        assert!(message.contains(&format!("compressed ({encoding})")), "{message}");
    }
}

#[tokio::test]
async fn b45_answers_that_break_the_contract_name_the_field() {
    let patches = format!(r#"{{"apply": [{}{{}}]}}"#, r#"{"kind":"A"},"#.repeat(50_000));
    let many_patches = format!(r#"{{"apply": [{}{{}}]}}"#, "{},".repeat(1_000_000));
    for (body, says) in [
        (r#"{"requeue_after": "-5s"}"#, "requeue_after: \"-5s\" is negative"),
        (r#"{"requeue_after": -5}"#, "requeue_after: invalid type: integer `-5`, expected a text with a unit"),
        (r#"{"requeue_after": 0}"#, "requeue_after: invalid type"),
        (r#"{"requeue_after": 0.4}"#, "requeue_after: invalid type"),
        (r#"{"requeue_after": 1e308}"#, "requeue_after: invalid type"),
        (r#"{"requeue_after": 1e999}"#, "requeue_after: number out of range"),
        (r#"{"requeue_after": "1e6"}"#, "requeue_after: \"e\" in \"1e6\" is not a unit"),
        (r#"{"requeue_after": "30"}"#, "requeue_after: \"30\" has no unit"),
        (r#"{"requeue_after": "5 minutes"}"#, "requeue_after: \" minutes\""),
        (r#"{"requeue_after": "NaN"}"#, "requeue_after: \"NaN\" is not a number"),
        (r#"{"requeue_after": NaN}"#, "requeue_after"),
        (r#"{"error": {"retry_after": "soon"}}"#, "error.retry_after: \"soon\" is not a number"),
        (r#"{"error": "boom"}"#, "error: invalid type: string \"boom\", expected a JSON object"),
        (r#"{"error": ["boom", true, null]}"#, "error: invalid type: sequence, expected a JSON object"),
        (r#"{"error": {"code": 5}}"#, "unknown field `code`"),
        (r#"{"requeueAfter": "30s"}"#, "unknown field `requeueAfter`, expected one of"),
        (r#"{"unchanged": "yes"}"#, "unchanged: invalid type"),
        (r#"{"message": 5}"#, "message: invalid type"),
        (r#"{"message": "a", "message": "b"}"#, "duplicate field `message`"),
        (r#"{"error": {"terminal": true, "terminal": false}}"#, "duplicate field `terminal`"),
        (r#"{"state": {"ready": true}}"#, "state: needs resources"),
        (r#"{"apply": []}"#, "apply: needs resources"),
        (r#"{"delete": ["prod/Role/x"]}"#, "delete: needs resources"),
        (&patches, "apply: needs resources"),
        (&many_patches, "larger than 1048576 bytes"),
        (&format!(r#"{{"state": {}"#, "[".repeat(10_000)), "recursion limit"),
        (&"[".repeat(10_000), "expected a JSON object"),
    ] {
        let message = failure_of(json(body)).await;
        assert!(message.contains(says), "{}: {message}", &body[..body.len().min(60)]);
        assert!(message.len() < 4096);
    }
}

#[tokio::test]
async fn b45_odd_but_good_answers_are_taken() {
    for body in [
        r#"{"requeue_after": null, "error": null, "state": null, "apply": null, "message": null}"#,
        r#"{"requeue_after": "0s"}"#,
        r#"{"requeue_after": "36500d"}"#,
    ] {
        let server = Server::saying(json(body)).await;
        let action = reconcile(&Webhook::new(WebhookSettings::new(server.url())).unwrap()).await.unwrap();
        let year = Duration::from_secs(365 * 24 * 60 * 60);
        if let Some(crate::contract::Requeue::After(delay)) = action.requeue() {
            assert!(delay.is_zero() || delay == year, "{delay:?}");
        }
    }
}

#[tokio::test]
async fn a_target_that_cannot_be_reached_is_named_with_what_to_check() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let nobody = listener.local_addr().unwrap();
    drop(listener);
    for (url, says) in [
        (
            format!("http://{nobody}/hook?token=canary"),
            format!("POST http://{nobody}/hook: connection refused: nothing"),
        ),
        ("http://nowhere.invalid/hook".to_owned(), "the host name does not resolve".to_owned()),
    ] {
        let failure = failure(&Webhook::new(WebhookSettings::new(url)).unwrap()).await;
        assert_eq!(failure.kind(), TRANSIENT);
        assert!(failure.message().contains(&says), "{}", failure.message());
        assert!(!failure.message().contains("canary"), "{}", failure.message());
    }
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let other = Server::saying(json("{}")).await;
    for status in
        ["301 Moved Permanently", "302 Found", "303 See Other", "307 Temporary Redirect", "308 Permanent Redirect"]
    {
        let location = other.url().replace("http://", "http://user:canary@") + "?token=canary";
        let message = failure_of(reply(status, &[("Location", &location)], "")).await;
        assert!(message.contains(&format!("if {} is right", other.url())), "{message}");
        assert!(!message.contains("canary") && !message.contains("user"), "{message}");
    }
    assert_eq!(other.connections(), 0);
}

#[test]
fn settings_that_cannot_be_used_are_refused_without_a_secret() {
    let dir = tempfile::tempdir().unwrap();
    let bad_secret = dir.path().join("secret");
    std::fs::write(&bad_secret, "whsec_canary!canary!canary!canary!canary!").unwrap();
    let short_secret = dir.path().join("short");
    std::fs::write(&short_secret, "Y2FuYXJ5").unwrap();
    let with = |change: &dyn Fn(&mut WebhookSettings)| {
        let mut settings = WebhookSettings::new("http://127.0.0.1/");
        change(&mut settings);
        settings
    };
    let cases: Vec<(WebhookSettings, &str)> = vec![
        (WebhookSettings::new("user:canary@host"), "its scheme is user"),
        (WebhookSettings::new("ftp://user:canary@host/"), "its scheme is ftp"),
        (WebhookSettings::new("file:///etc/passwd"), "its scheme is file"),
        (WebhookSettings::new("/reconcile"), "the url is not usable"),
        (WebhookSettings::new("http://"), "the url is not usable"),
        (WebhookSettings::new("http://host:99999/"), "the url is not usable"),
        (with(&|s| s.http.headers = vec![("bad name".into(), "canary".into())]), "header bad name is no header name"),
        (with(&|s| s.http.headers = vec![("x".into(), "canary\nx".into())]), "header x has a value with control"),
        (with(&|s| s.http.headers = vec![("Host".into(), "canary".into())]), "header Host frames the message"),
        (with(&|s| s.http.authorization_file = Some("/no/such".into())), "cannot use /no/such: No such file"),
        (with(&|s| s.http.ca_file = Some(bad_secret.clone())), "holds no certificate in PEM form"),
        (with(&|s| s.secret_file = Some(bad_secret.clone())), "secret 1 is not base64"),
        (with(&|s| s.secret_file = Some(short_secret.clone())), "secret 1 is shorter than 24 bytes"),
        (
            with(&|s| {
                s.http = HttpSettings::new("http://user:canary@host/");
                s.http.authorization_file = Some("/no/such".into());
            }),
            "http://host/ has a user in its url and an authorization_file",
        ),
    ];
    for (settings, says) in cases {
        let shown = format!("{settings:?}");
        let error: HookError = Webhook::new(settings).err().expect(says);
        assert!(error.to_string().contains(says), "{error}");
        assert!(!error.to_string().contains("canary"), "{error}");
        assert!(!shown.contains("canary"), "{shown}");
    }
}
