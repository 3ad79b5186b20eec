//! Slow, silent and many peers (reliability: HTTP API), and a process without file descriptors (B74).

use std::io::{Read, Write};
use std::time::Duration;

use evenkeel::service::admin::AdminOptions;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;

use crate::admin_world::{Answer, PATIENCE, World, eventually};

fn impatient() -> World {
    let options = AdminOptions::new("127.0.0.1:0".parse().unwrap(), None);
    World::with(options.with_patience(Duration::from_millis(200), Duration::from_millis(200)))
}

/// What comes until the server ends the connection.
fn rest(stream: &mut impl Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    // A reset is an end as well.
    let _ = stream.read_to_end(&mut bytes);
    bytes
}

#[test]
fn a_head_that_never_ends_is_not_waited_for() {
    let world = impatient();
    for head in ["", "G", "GET /v1/status HTTP/1.1\r\nHost: localhost\r\nX: "] {
        let mut stream = world.connect();
        stream.write_all(head.as_bytes()).unwrap();
        assert!(rest(&mut stream).is_empty(), "{head:?}");
    }
    // Nor one that comes a byte at a time, whatever the time between two bytes.
    let mut stream = world.connect();
    let mut bytes = b"GET /v1/status HTTP/1.1\r\nHost: localhost\r\nX: ".iter().copied().chain(std::iter::repeat(b'x'));
    stream.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
    eventually("the connection is ended", || {
        let sent = stream.write_all(&[bytes.next().unwrap()]).is_ok();
        let ended = match stream.read(&mut [0; 64]) {
            Ok(n) => n == 0,
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        };
        !sent || ended
    });
    assert_eq!(world.get("/livez").status, 200);
}

#[test]
fn a_connection_that_idles_after_a_request_is_ended() {
    let world = impatient();
    let mut stream = world.connect();
    stream.write_all(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    assert_eq!(Answer::parse(&rest(&mut stream)).status, 200);
}

#[test]
fn a_probe_finds_a_place_among_idle_and_waiting_peers() {
    let world = World::open();
    // More than the usual places.
    let idle: Vec<_> = (0..280).map(|_| world.connect()).collect();
    assert_eq!(world.get("/livez").status, 200);
    drop(idle);
    // Requests that wait for a run are many, but not all there can be.
    let request = b"POST /v1/trigger?wait=done HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                    Content-Length: 18\r\n\r\n{\"ids\": [\"hangs\"]}";
    let mut waiting = Vec::new();
    let asked = |world: &World| world.script.calls().len();
    for n in 1..=128 {
        let mut stream = world.connect();
        stream.write_all(request).unwrap();
        waiting.push(stream);
        eventually("the request has arrived", || asked(&world) == n);
    }
    world.post("/v1/trigger?wait=done", r#"{"ids": ["a"]}"#).is_problem(503, "busy", "too many requests wait");
    assert_eq!((world.get("/livez").status, world.post("/v1/trigger", r#"{"ids": ["a"]}"#).status), (200, 202));
    // A peer that goes frees its place.
    drop(waiting.pop());
    eventually("the place is free", || world.post("/v1/trigger?wait=done", r#"{"ids": ["a"]}"#).status == 200);
}

#[test]
fn a_body_that_is_never_sent_is_not_waited_for() {
    let world = impatient();
    let mut stream = world.connect();
    let head =
        "POST /v1/trigger HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 18\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    Answer::parse(&rest(&mut stream)).is_problem(408, "body-too-slow", "200ms");
    assert!(world.script.calls().is_empty());
}

const CHILD: &str = "IT_FEW_DESCRIPTORS";

/// Runs itself again as a process of its own, since the limit is the whole process's.
#[test]
fn b74_probes_are_answered_without_a_free_file_descriptor() {
    if std::env::var_os(CHILD).is_some() {
        return probe_without_descriptors();
    }
    let this = std::env::current_exe().unwrap();
    let name = "admin_limits::b74_probes_are_answered_without_a_free_file_descriptor";
    let output = std::process::Command::new("sh")
        .args(["-c", r#"ulimit -n 96; exec "$0" --exact "$1" --nocapture"#])
        .arg(this)
        .arg(name)
        .env(CHILD, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stdout));
    assert!(said.contains("answered without a descriptor"), "the child did its work: {said}");
}

fn probe_without_descriptors() {
    let world = World::open();
    let quiet = sockets();
    assert_eq!(world.get("/livez").status, 200);
    eventually("the server is done with the connection", || sockets() == quiet);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    // The client's sockets exist before the process runs out; the server has to accept them afterwards.
    let probes: Vec<_> = (0..8).map(|_| TcpSocket::new_v4().unwrap()).collect();
    let mut used = Vec::new();
    while let Ok(file) = std::fs::File::open("/dev/null") {
        used.push(file);
    }
    assert_eq!(std::fs::File::open("/dev/null").unwrap_err().raw_os_error(), Some(24));
    let mut used_sockets = Vec::new();
    for probe in probes {
        let answer = runtime.block_on(async {
            let mut stream = probe.connect(world.address).await.unwrap();
            stream.write_all(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
            let mut answer = Vec::new();
            tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await.unwrap().unwrap();
            // The client's end stays open: closed, it would be a free descriptor.
            used_sockets.push(stream);
            Answer::parse(&answer)
        });
        assert_eq!((answer.status, answer.header("connection")), (200, Some("close")), "{answer:?}");
    }
    drop(used);
    assert_eq!(world.get("/v1/status").status, 200, "afterwards all is as before");
    eprintln!("answered without a descriptor");
}

/// How many sockets this process has open.
fn sockets() -> usize {
    let links = std::fs::read_dir("/proc/self/fd").unwrap();
    let links = links.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    links.filter(|link| link.to_string_lossy().starts_with("socket:")).count()
}
