//! B87: no secret that a hook was given comes back in an error, a message or a log line, at any level.

use std::path::PathBuf;

use super::server::{Reply, Seen, Server, reply};
use super::support::{PATIENCE, capture_logs, in_own_process, run_of};
use crate::contract::{IdList, Reconciler};
use crate::hooks::{Exec, ExecList, ExecSettings, HttpList, Webhook, WebhookSettings};

/// What must never be seen: each of these holds it.
const CANARY: &str = "canary";
/// `user:canary-password` as Basic credentials have it.
const BASIC: &str = "dXNlcjpjYW5hcnktcGFzc3dvcmQ";
/// A secret to sign with that has the canary in it.
const SECRET: &str = "whsec_canary0canary1canary2canary3canary45";

/// Says all that it was told, in the way that the request's path asks for.
fn parrot(seen: &Seen) -> Reply {
    // A receiver of signed requests knows the secret; who gives a list does not.
    let secret = if seen.line.starts_with("POST") { SECRET } else { "" };
    let said = format!("{} {:?} {secret} {}", seen.line, seen.headers, seen.body);
    let quoted = serde_json::to_string(&said).unwrap();
    let json = [("Content-Type", "application/json")];
    let way = seen.line.split(['/', '?']).nth(1).unwrap();
    match way {
        "error" => reply("200 OK", &json, &format!(r#"{{"error": {{"message": {quoted}}}}}"#)),
        "message" => reply("200 OK", &json, &format!(r#"{{"message": {quoted}}}"#)),
        "unknown" => reply("200 OK", &json, &format!("{{{quoted}: 1}}")),
        "broken" => reply("200 OK", &json, &format!("{{\"message\": {said}")),
        "plain" => reply("200 OK", &[("Content-Type", "text/plain")], &said),
        "redirect" => {
            reply("302 Found", &[("Location", "http://user:canary-password@host/a?token=canary-query")], &said)
        }
        "encoded" => reply("200 OK", &[("Content-Encoding", "canary-query")], &said),
        "hang" => Reply::SayAndClose(said.into_bytes()),
        status => reply(&format!("{status} Whatever"), &[], &said),
    }
}

const WAYS: [&str; 11] =
    ["error", "message", "unknown", "broken", "plain", "redirect", "encoded", "hang", "400", "401", "500"];

/// A webhook that was given every kind of secret.
fn settings(server: &Server, way: &str, files: &(PathBuf, PathBuf), in_url: bool) -> WebhookSettings {
    let user = if in_url { "user:canary-password@" } else { "" };
    let mut settings =
        WebhookSettings::new(format!("http://{user}{}/{way}?token=canary-query#canary-fragment", server.address));
    settings.http.headers = vec![("x-api-key".to_owned(), "canary-header".to_owned())];
    settings.secret_file = Some(files.0.clone());
    settings.http.authorization_file = (!in_url).then(|| files.1.clone());
    settings
}

#[tokio::test]
async fn b87_no_secret_of_a_webhook_is_repeated() {
    let (logs, _guard) = capture_logs();
    let dir = tempfile::tempdir().unwrap();
    let files = (dir.path().join("secret"), dir.path().join("authorization"));
    std::fs::write(&files.0, SECRET).unwrap();
    std::fs::write(&files.1, "Bearer canary-token").unwrap();
    let server = Server::start(parrot).await;
    let mut said = String::new();
    for in_url in [true, false] {
        for way in WAYS {
            let settings = settings(&server, way, &files, in_url);
            said += &format!("{settings:?}\n");
            let (into, mut ids) = tokio::sync::mpsc::channel(100);
            let list = HttpList::new(settings.http.clone(), PATIENCE).unwrap();
            let outcome = Webhook::new(settings).unwrap().reconcile(&run_of("a", Some(PATIENCE))).await;
            said += &format!("{way}: {outcome:?}\n");
            let listed = tokio::join!(list.list(into), async { while ids.recv().await.is_some() {} }).0;
            said += &format!("{way}: {listed:?}\n");
        }
    }
    let sent = server.requests();
    assert!(sent.iter().any(|seen| seen.headers.values().any(|value| value.contains(BASIC))));
    assert!(sent.iter().any(|seen| seen.headers.values().any(|value| value.contains("canary-token"))));
    assert!(sent.iter().all(|seen| seen.headers["x-api-key"] == "canary-header"));
    for text in [said, logs.text()] {
        assert!(!text.contains(CANARY), "{text}");
        assert!(!text.contains(BASIC), "{text}");
    }
}

#[test]
fn b87_no_secret_of_a_command_is_repeated() {
    let variables = [("EVK_API_TOKEN", "canary-token"), ("EVK_PRIVATE", "canary-private"), ("EVK_HOST", "db.internal")];
    if !in_own_process("secrets::b87_no_secret_of_a_command_is_repeated", &variables) {
        return;
    }
    let (logs, _guard) = capture_logs();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut said = String::new();
    // It says all that it knows, in every way that it has. EVK_PRIVATE was not given to it.
    let tells = "(env; echo \"host $EVK_HOST\"; cat /proc/$$/environ | tr '\\0' '\\n') | tee /dev/stderr";
    for text in [
        format!("{tells}; exit 1"),
        format!("{tells}; exit 65"),
        format!("{tells}; printf '{{\"message\": \"%s\"}}' \"$EVK_API_TOKEN\" > $EVENKEEL_ANSWER"),
        "printf '{\"error\": {\"message\": \"%s\"}}' \"$EVK_API_TOKEN\" > $EVENKEEL_ANSWER".to_owned(),
        "printf '{\"%s\": 1}' \"$EVK_API_TOKEN\" > $EVENKEEL_ANSWER".to_owned(),
        format!("{tells}; sleep 300"),
    ] {
        let mut settings = ExecSettings::new(["sh", "-c", &text, "sh", "canary-argument"], "/");
        settings.env = vec!["EVK_API_TOKEN".to_owned(), "EVK_HOST".to_owned()];
        said += &format!("{settings:?}\n");
        let limit = std::time::Duration::from_secs(1);
        let list = ExecList::new(settings.clone(), limit).unwrap();
        let outcome = runtime.block_on(Exec::new(settings).unwrap().reconcile(&run_of("a", Some(limit))));
        said += &format!("{outcome:?}\n");
        let (into, mut ids) = tokio::sync::mpsc::channel(100);
        let listed =
            runtime.block_on(async { tokio::join!(list.list(into), async { while ids.recv().await.is_some() {} }).0 });
        said += &format!("{listed:?}\n");
    }
    assert!(said.contains("host db.internal") && logs.text().contains("EVK_API_TOKEN=***"), "{said}\n{}", logs.text());
    for text in [said, logs.text()] {
        assert!(!text.contains(CANARY), "{text}");
    }
}
