//! Lists of ids against real servers and processes: whole lists arrive, anything else is no list (Q9).

use std::time::Duration;

use tokio::sync::mpsc;

use super::server::{Reply, Server, json, reply};
use super::support::{PATIENCE, capture_logs, unique_id, until};
use crate::contract::IdList;
use crate::hooks::{ExecList, ExecSettings, HttpList, HttpSettings, LIST_BYTES_MAX};
use crate::id;

/// What a list gives, and what it says of itself.
async fn all(list: &impl IdList) -> (Vec<String>, Result<u64, String>) {
    let (into, mut ids) = mpsc::channel(4);
    let taking = async {
        let mut taken = Vec::new();
        while let Some(id) = ids.recv().await {
            taken.push(id);
        }
        taken
    };
    let (outcome, taken) = tokio::join!(list.list(into), taking);
    (taken, outcome.map_err(|error| error.to_string()))
}

fn command(text: &str) -> ExecList {
    ExecList::new(ExecSettings::new(["sh", "-c", text], "/"), PATIENCE).unwrap()
}

fn url(server: &Server) -> HttpList {
    HttpList::new(HttpSettings::new(server.url()), PATIENCE).unwrap()
}

/// A list is well if all its ids came and were counted.
async fn gives(list: &impl IdList, wanted: &[&str]) {
    let (ids, outcome) = all(list).await;
    assert_eq!(ids, wanted);
    assert_eq!(outcome, Ok(wanted.len() as u64));
}

/// A list that failed: nothing is concluded from it, and what it says.
async fn fails(list: &impl IdList, says: &str) {
    let (ids, outcome) = all(list).await;
    assert!(ids.is_empty(), "{ids:?} of a list that is not whole");
    let error = outcome.unwrap_err();
    assert!(error.contains(says) && error.len() < 4096 && !error.chars().any(char::is_control), "{error:?}");
}

#[tokio::test]
async fn q9_ids_come_as_lines_or_as_a_json_array() {
    for (text, wanted) in [
        ("", &[][..]),
        ("\n\n", &[]),
        ("a\nb\n", &["a", "b"]),
        ("a\r\n b \r\n\r\nprod/Database/orders", &["a", " b ", "prod/Database/orders"]),
        ("[]", &[]),
        (" \n [ \"a\" , \"b/c\" ] \n", &["a", "b/c"]),
        (r#"["\u00e9\n", "日本"]"#, &["é\n", "日本"]),
        ("{\"an\": \"id\"}\n", &["{\"an\": \"id\"}"]),
    ] {
        gives(&url(&Server::saying(reply("200 OK", &[("Content-Type", "text/plain")], text)).await), wanted).await;
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("ids"), text).unwrap();
        let cat = ExecSettings::new(["cat", "ids"], dir.path());
        gives(&ExecList::new(cat, PATIENCE).unwrap(), wanted).await;
    }
    let folder = tempfile::tempdir().unwrap();
    for name in ["zone-a", "zone-b"] {
        std::fs::write(folder.path().join(name), "").unwrap();
    }
    let ls = ExecSettings::new(["ls", folder.path().to_str().unwrap()], "/");
    gives(&ExecList::new(ls, PATIENCE).unwrap(), &["zone-a", "zone-b"]).await;
}

#[tokio::test]
async fn q9_nothing_is_concluded_from_a_list_by_http_that_failed() {
    let text = [("Content-Type", "text/plain")];
    let cut_off = "HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\na\nb\nc".to_owned().into_bytes();
    let chunks = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\na\nb\n\r\n".to_vec();
    let packed = [("Content-Encoding", "gzip")];
    for (reply, says) in [
        (reply("500 Internal Server Error", &text, "a\nb\n"), "answered 500 Internal Server Error, not 200: a b"),
        (reply("404 Not Found", &text, ""), "404"),
        (reply("204 No Content", &[], ""), "answered 204 No Content, not 200"),
        (reply("206 Partial Content", &text, "a\nb\n"), "206"),
        (reply("302 Found", &[("Location", "/login")], ""), "redirects are not followed; if http://127.0.0.1:"),
        (reply("200 OK", &packed, "a\nb\n"), "compressed"),
        (Reply::SayAndClose(cut_off), "the answer broke off"),
        (Reply::SayAndClose(chunks), "the answer broke off"),
        (Reply::SayAndClose(b"what?".to_vec()), "GET http://127.0.0.1:"),
    ] {
        fails(&url(&Server::saying(reply).await), says).await;
    }
}

#[tokio::test]
async fn q9_nothing_is_concluded_from_a_list_by_a_command_that_failed() {
    for (text, says) in [
        ("echo a; echo b; echo no access >&2; exit 1", "sh ended with exit status 1: no access"),
        ("echo a; kill -KILL $$", "sh was killed by signal 9"),
    ] {
        fails(&command(text), says).await;
    }
    let missing = ExecList::new(ExecSettings::new(["./no-such-list"], "/"), PATIENCE).unwrap();
    fails(&missing, "cannot run ./no-such-list: /./no-such-list does not exist").await;
}

#[tokio::test]
async fn q9_a_json_array_that_is_broken_is_no_list() {
    for (text, says) in [
        (r#"["a", "b""#, "EOF while parsing a list"),
        (r#"["a", 5]"#, "invalid type: integer `5`, expected a string"),
        (r#"["a"] ["b"]"#, "trailing characters"),
        ("[1e999]", "number out of range"),
        ("[[[[", "invalid type: sequence"),
    ] {
        // Of a list that says it is whole, the ids before the fault were handed on; the list as such has failed.
        let (_, outcome) = all(&url(&Server::saying(json(text)).await)).await;
        let error = outcome.unwrap_err();
        assert!(error.contains(says), "{error}");
    }
}

#[tokio::test]
async fn q1_lines_that_are_no_ids_do_not_stop_the_list() {
    let (logs, _guard) = capture_logs();
    let long = "é".repeat(40_000);
    let text = format!("printf 'a\\n\\377\\376\\nb\\n{long}\\nc\\n'");
    let (ids, outcome) = all(&command(&text)).await;
    assert_eq!(outcome, Ok(4));
    assert_eq!((&ids[0], &ids[1], &ids[3]), (&"a".to_owned(), &"b".to_owned(), &"c".to_owned()));
    // What is too long for an id is handed on so far that the engine refuses and counts it.
    assert!(ids[2].len() < 4096 && id::check(&ids[2]).is_err());
    assert!(logs.text().contains("has 1 lines that are not UTF-8"), "{}", logs.text());
}

#[tokio::test]
async fn a_list_beyond_its_cap_is_no_list_and_is_not_read_on() {
    let endless = Reply::Drip(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n".to_vec(), b'\n', Duration::ZERO);
    let server = Server::saying(endless).await;
    let mut list = url(&server);
    list.bytes_max = 3_000_000;
    fails(&list, "too large; at most 268435456 bytes").await;
    until("the connection is closed", || server.closed() == 1).await;
    let mut list = command("yes");
    list.bytes_max = 3_000_000;
    fails(&list, "too large").await;
    const { assert!(LIST_BYTES_MAX == 268_435_456) };
}

#[tokio::test]
async fn a_list_that_takes_too_long_is_no_list_and_its_source_is_ended() {
    let limit = Duration::from_secs(1);
    let drip = Reply::Drip(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n".to_vec(), b'\n', Duration::from_millis(20));
    let server = Server::saying(drip).await;
    fails(&HttpList::new(HttpSettings::new(server.url()), limit).unwrap(), "it took longer than 1s").await;
    let marker = unique_id("list");
    let text = format!("echo a; : {marker}; sleep 300 & sleep 300");
    let settings = ExecSettings::new(["sh", "-c", &text], "/");
    fails(&ExecList::new(settings, limit).unwrap(), "it took longer than 1s").await;
    until("the command is gone", || !is_running(&marker)).await;
}

/// Whether a command with this in its arguments runs.
fn is_running(marker: &str) -> bool {
    std::fs::read_dir("/proc").unwrap().flatten().any(|entry| {
        let arguments = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&arguments).contains(marker)
    })
}

#[tokio::test]
async fn a_receiver_that_is_slow_costs_no_time_and_one_that_is_gone_ends_the_list() {
    let list = ExecList::new(ExecSettings::new(["seq", "100"], "/"), Duration::from_secs(3)).unwrap();
    let (into, mut ids) = mpsc::channel(1);
    let slow = async {
        let mut count = 0;
        while ids.recv().await.is_some() {
            // Three and a half seconds in all: more than the source may take.
            tokio::time::sleep(Duration::from_millis(35)).await;
            count += 1;
        }
        count
    };
    let (outcome, count) = tokio::join!(list.list(into), slow);
    assert_eq!((outcome.unwrap(), count), (100, 100));

    let (into, ids) = mpsc::channel(1);
    drop(ids);
    assert!(list.list(into).await.unwrap_err().to_string().contains("nobody takes the ids any more"));
}

#[tokio::test]
async fn a_million_ids_arrive_in_order() {
    let list = ExecList::new(ExecSettings::new(["seq", "1000000"], "/"), PATIENCE).unwrap();
    let (into, mut ids) = mpsc::channel(1024);
    let taking = async {
        let mut next = 1_u64;
        while let Some(id) = ids.recv().await {
            assert_eq!(id, next.to_string());
            next += 1;
        }
        next - 1
    };
    let (outcome, count) = tokio::join!(list.list(into), taking);
    assert_eq!((outcome.unwrap(), count), (1_000_000, 1_000_000));
}

#[tokio::test]
async fn a_list_command_sees_what_it_is_asked_for() {
    let text = "echo $EVENKEEL_OPERATION; echo $EVENKEEL_TIMEOUT_SECONDS; test -z \"$EVENKEEL_ID$EVENKEEL_ANSWER\" && echo ok; cat";
    gives(&command(text), &["list", "60", "ok"]).await;
}

#[tokio::test]
async fn a_dropped_list_ends_its_command() {
    let marker = unique_id("dropped");
    let list = command(&format!("echo a; : {marker}; sleep 300 & sleep 300"));
    let (into, _ids) = mpsc::channel(1);
    tokio::select! {
        _ = list.list(into) => panic!("it does not end by itself"),
        () = until("it runs", || is_running(&marker)) => {}
    }
    until("the command is gone", || !is_running(&marker)).await;
}
