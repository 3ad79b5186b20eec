//! Bad input to the admin API (reliability: Bad input, HTTP API): each row with the status that it must get, and a
//! message that says what is wrong and what is allowed.

use evenkeel::service::admin::{BODY_BYTES_MAX, IDS_MAX};

use crate::admin_world::World;

#[test]
fn i2_a_body_is_understood_as_a_whole_or_not_at_all() {
    let world = World::open();
    let deep = format!("{{\"ids\": {}", "[".repeat(10_000));
    for (body, detail) in [
        ("", "must be a JSON object"),
        ("[]", "must be a JSON object"),
        (r#"[["a"]]"#, "must be a JSON object"),
        ("\u{feff}{\"ids\": [\"a\"]}", "without a byte order mark"),
        ("{", "EOF while parsing an object at line 1 column 1"),
        ("{}", "missing field `ids`"),
        (r#"{"ids": []}"#, "at least one id"),
        (r#"{"ids": null}"#, "ids: invalid type: null, expected a sequence"),
        (r#"{"ids": "a"}"#, "ids: invalid type: string \"a\", expected a sequence"),
        (r#"{"ids": ["a", 5]}"#, "ids[1]: invalid type: integer `5`, expected a string"),
        (r#"{"ids": ["a"], "id": "b"}"#, "id: unknown field `id`, expected `ids`"),
        (r#"{"ids": ["a"], "ids": ["b"]}"#, "duplicate field `ids`"),
        (r#"{"ids": ["a"]} x"#, "trailing characters"),
        (r#"{"ids": ["\ud800"]}"#, "unexpected end of hex escape"),
        (r#"{"ids": [1e999]}"#, "number out of range"),
        (&deep, "ids"),
    ] {
        let answer = world.post("/v1/trigger", body);
        answer.is_problem(400, "invalid-request", detail);
        answer.is_problem(400, "invalid-request", "body: ");
        let answer = world.post("/v1/cancel", body);
        answer.is_problem(400, "invalid-request", detail);
    }
    let bytes = [
        b"POST /v1/trigger HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n\
                   Content-Length: 13\r\n\r\n{\"ids\": [\""
            .as_slice(),
        b"\xff\"]}",
    ]
    .concat();
    world.raw(&bytes).is_problem(400, "invalid-request", "");
    world.post("/v1/drain", r#"{"now": true}"#).is_problem(400, "invalid-request", "unknown field `now`");
    let many = serde_json::json!({ "ids": vec!["x"; IDS_MAX + 1] }).to_string();
    world.post("/v1/trigger", &many).is_problem(400, "invalid-request", "10001 ids; at most 10000");
    assert!(world.script.calls().is_empty(), "nothing half-applied: {:?}", world.script.calls());
    let most = serde_json::json!({ "ids": vec!["x"; IDS_MAX] }).to_string();
    assert_eq!(world.post("/v1/trigger", &most).status, 202);
}

#[test]
fn i2_a_query_is_understood_as_a_whole_or_not_at_all() {
    let world = World::open();
    for (path, detail) in [
        ("/v1/queues?limit=0", "limit: 0 is out of range; use 1 to 1000"),
        ("/v1/queues?limit=1001", "limit: 1001 is out of range"),
        ("/v1/queues?limit=-1", "limit: invalid digit"),
        ("/v1/queues?limit=1e9", "limit: invalid digit"),
        ("/v1/queues?limit=99999999999999999999", "limit: number too large"),
        ("/v1/queues?limit=", "limit: cannot parse integer from empty string"),
        ("/v1/queues?state=lost", "unknown variant `lost`, expected one of `idle`"),
        ("/v1/queues?shard=65536", "shard: number too large"),
        ("/v1/queues?shard=-1", "shard: invalid digit"),
        ("/v1/queues?after=forged", "after: no page ended there"),
        ("/v1/queues?sate=parked", "unknown field `sate`, expected one of `state`"),
        ("/v1/queues?limit=1&limit=2", "duplicate field `limit`"),
        ("/v1/journal?limit=0", "limit: 0 is out of range"),
        ("/v1/journal?id=", "id: an id is empty"),
        ("/v1/journal?id=a%00b", "U+0000 at byte 1"),
        ("/v1/journal?follow=maybe", "follow: provided string was not `true` or `false`"),
        ("/v1/journal?after=5", "unknown field `after`, expected one of `id`, `limit`, `follow`"),
        ("/v1/explain", "missing field `id`"),
        ("/v1/explain?id=a&id=b", "duplicate field `id`"),
        ("/v1/explain?id=x%E2%80%AEy", "U+202E"),
        ("/v1/explain?id=%FF", "not UTF-8"),
    ] {
        let answer = world.get(path);
        answer.is_problem(400, "invalid-request", detail);
    }
    let long = format!("/v1/explain?id={}", "x".repeat(513));
    world.get(&long).is_problem(400, "invalid-request", "513 bytes; at most 512");
    for (query, detail) in [
        ("durable=yes", "durable: provided string was not `true` or `false`"),
        ("wait=forever", "unknown variant `forever`, expected `done`"),
        ("wait=done&durable=true", "not both"),
        ("wiat=done", "unknown field `wiat`, expected `durable` or `wait`"),
    ] {
        let answer = world.post(&format!("/v1/trigger?{query}"), r#"{"ids": ["a"]}"#);
        answer.is_problem(400, "invalid-request", detail);
    }
    assert!(world.script.calls().is_empty(), "{:?}", world.script.calls());
}

#[test]
fn i1_any_id_that_keeps_the_rules_goes_through_unchanged() {
    let world = World::open();
    for (encoded, id) in
        [("..%2f..", "../.."), ("a%252f", "a%2f"), ("%2Fv1%2Fdrain", "/v1/drain"), ("caf%C3%A9", "café")]
    {
        assert_eq!(world.get(&format!("/v1/explain?id={encoded}")).json()["id"], id);
    }
}

#[test]
fn paths_are_compared_not_walked() {
    let world = World::open();
    for path in [
        "/v1",
        "/v1/",
        "/v1/status/",
        "//v1/status",
        "/v1//status",
        "/v1/../v1/status",
        "/v1/..%2fstatus",
        "/v1/%2e%2e/livez",
        "/v1/%252e%252e%252fstatus",
        "/v1/status%00",
        "/V1/status",
        "/livez/x",
        "/v1/explain/a",
        "/etc/passwd",
        "/v1/..\\status",
    ] {
        let answer = world.get(path);
        assert!(answer.status == 404 || answer.status == 400, "{path}: {answer:?}");
        if answer.status == 404 {
            answer.is_problem(404, "not-found", "openapi.json");
        }
    }
    world.ask("BREW", "/v1/status", &[], "").is_problem(405, "method-not-allowed", "Allow");
}

#[test]
fn bodies_have_a_bound() {
    let world = World::open();
    let large = format!("{{\"ids\": [\"{}\"]}}", "x".repeat(BODY_BYTES_MAX));
    world.post("/v1/trigger", &large).is_problem(413, "body-too-large", "1048576 bytes");
    // A length that is announced is believed before a byte is read.
    let head =
        "POST /v1/trigger HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n";
    let answer = world.raw(format!("{head}Content-Length: 1099511627776\r\n\r\n").as_bytes());
    answer.is_problem(413, "body-too-large", "");
    // One that is not announced is counted.
    let chunk = format!("{:x}\r\n{}\r\n", 1 << 16, "x".repeat(1 << 16));
    let chunked = format!("{head}Transfer-Encoding: chunked\r\n\r\n5\r\n{{\"ids\r\n{}0\r\n\r\n", chunk.repeat(17));
    world.raw(chunked.as_bytes()).is_problem(413, "body-too-large", "");
    assert!(world.script.calls().is_empty());
}

#[test]
fn bodies_are_plain_json() {
    let world = World::open();
    let body = r#"{"ids": ["a"]}"#;
    for good in ["application/json", "Application/JSON; charset=utf-8"] {
        assert_eq!(world.ask("POST", "/v1/trigger", &[&format!("Content-Type: {good}")], body).status, 202, "{good}");
    }
    for bad in ["text/json", "application/jsonx", "application/problem+json", "", "application"] {
        let answer = world.ask("POST", "/v1/trigger", &[&format!("Content-Type: {bad}")], body);
        answer.is_problem(415, "media-type", "Content-Type: application/json");
    }
    world.ask("POST", "/v1/trigger", &[], body).is_problem(415, "media-type", "");
    // No decompression, so no bomb.
    for encoding in ["gzip", "deflate, gzip", "br", "zstd"] {
        let headers = ["Content-Type: application/json", &format!("Content-Encoding: {encoding}")];
        world.ask("POST", "/v1/trigger", &headers, body).is_problem(415, "media-type", "uncompressed");
    }
}

#[test]
fn heads_have_a_bound() {
    let world = World::open();
    let answer = world.get(&format!("/v1/explain?id={}", "x".repeat(8 * 1024)));
    answer.is_problem(414, "uri-too-long", "8192 bytes");
    // hyper answers these itself, without a body.
    assert_eq!(world.ask("GET", "/v1/status", &[&format!("X: {}", "x".repeat(1 << 20))], "").status, 431);
    let many = vec!["X: y"; 200];
    assert_eq!(world.ask("GET", "/v1/status", &many, "").status, 431);
    assert!(world.script.calls().is_empty());
}

/// Two readings of one stream of bytes must not lead to a second request: the connection ends instead.
#[test]
fn requests_cannot_be_smuggled() {
    let world = World::open();
    let head = "POST /v1/trigger HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
    let hidden =
        "POST /v1/drain HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}";
    for framing in [
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "Transfer-Encoding : chunked\r\n",
        "Transfer-Encoding: chunked, identity\r\n",
        "Content-Length: 5\r\nContent-Length: 6\r\n",
        "Content-Length: +5\r\n",
        "Content-Length: 5, 5\r\n",
        "Content-Length: 0x5\r\n",
        "Content-Length: -1\r\n",
    ] {
        let answer = world.raw(format!("{head}{framing}\r\n0\r\n\r\n{hidden}").as_bytes());
        assert!(answer.status == 400 || answer.status == 0, "{framing:?}: {answer:?}");
        assert!(!answer.body.contains("HTTP/1.1"), "{framing:?}: a second answer: {answer:?}");
        assert!(!world.script.drained.load(std::sync::atomic::Ordering::SeqCst), "{framing:?}");
    }
    for broken in ["GET /v1/status\r\n\r\n", "GET /v1/status HTTP/9\r\n\r\n", "\0\r\n\r\n", "GET /a b HTTP/1.1\r\n\r\n"]
    {
        let answer = world.raw(broken.as_bytes());
        assert!(answer.status == 400 || answer.status == 0, "{broken:?}: {answer:?}");
    }
    assert_eq!(world.get("/livez").status, 200);
}
