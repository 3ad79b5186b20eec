//! The journal as server-sent events: what a reader is shown, and what becomes of one that is slow.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use evenkeel::engine::view::JournalEntry;
use evenkeel::service::admin::AdminOptions;

use crate::admin_world::{World, eventually, run};

/// One server-sent event: its name and its data.
type Event = (String, serde_json::Value);

struct Reader(BufReader<TcpStream>);

impl Reader {
    /// Asks, and reads the answer's head.
    fn open(world: &World, query: &str) -> Self {
        let mut stream = world.connect();
        let host = world.address;
        write!(stream, "GET /v1/journal?follow=true{query} HTTP/1.1\r\nHost: {host}\r\n\r\n").unwrap();
        let mut reader = Self(BufReader::new(stream));
        assert_eq!(reader.line(), "HTTP/1.1 200 OK");
        let mut kind = String::new();
        loop {
            match reader.line() {
                line if line.is_empty() => break,
                line if line.starts_with("content-type") => kind = line,
                _ => {}
            }
        }
        assert_eq!(kind, "content-type: text/event-stream");
        reader
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        assert!(self.0.read_line(&mut line).unwrap() > 0, "the stream has ended");
        line.trim_end().to_owned()
    }

    /// The next event; the lengths of chunks between the lines are passed over.
    fn event(&mut self) -> Event {
        let mut name = String::new();
        loop {
            let line = self.line();
            match line.split_once(": ") {
                Some(("event", value)) => name = value.to_owned(),
                Some(("data", value)) => return (name, serde_json::from_str(value).unwrap()),
                _ => {}
            }
        }
    }

    /// The next event is a run; which attempt it was.
    fn attempt(&mut self) -> u64 {
        let (name, data) = self.event();
        assert_eq!(name, "run", "{data}");
        data["attempt"].as_u64().unwrap()
    }
}

fn add(world: &World, runs: impl IntoIterator<Item = JournalEntry>) {
    world.script.journal.lock().unwrap().extend(runs);
}

#[test]
fn x4_runs_are_shown_as_they_end() {
    let world = World::open();
    add(&world, (1..=5).map(|n| run(n, if n % 2 == 0 { "even" } else { "odd" })));
    let mut news = Reader::open(&world, "");
    let mut last = Reader::open(&world, "&limit=2");
    let mut of_one = Reader::open(&world, "&limit=2&id=odd");
    assert_eq!((last.attempt(), last.attempt()), (4, 5));
    assert_eq!((of_one.attempt(), of_one.attempt()), (3, 5));
    add(&world, [run(6, "even"), run(7, "odd")]);
    for reader in [&mut news, &mut last] {
        assert_eq!((reader.attempt(), reader.attempt()), (6, 7));
    }
    let (_, data) = of_one.event();
    assert_eq!(data, serde_json::to_value(run(7, "odd")).unwrap(), "an event holds what the journal shows");
}

#[test]
fn a_reader_that_misses_runs_is_told_how_many() {
    let world = World::open();
    add(&world, [run(1, "a")]);
    let mut reader = Reader::open(&world, "");
    // More runs at once than a page holds: the latest are shown.
    add(&world, (2..=1_001).map(|n| run(n, "a")));
    let (name, data) = reader.event();
    assert_eq!((name.as_str(), &data["runs"]), ("skipped", &800.into()));
    assert_eq!(reader.attempt(), 802);
}

#[test]
fn a_reader_hears_why_the_stream_ends() {
    let mut world = World::open();
    let mut reader = Reader::open(&world, "");
    let server = world.server.take().unwrap();
    tokio::runtime::Runtime::new().unwrap().block_on(server.stop());
    let (name, data) = reader.event();
    assert_eq!((name.as_str(), data["reason"].as_str()), ("closed", Some("the process is stopping")));
}

#[test]
fn readers_that_never_read_lose_their_places_and_nobody_waits_for_them() {
    let options = AdminOptions::new("127.0.0.1:0".parse().unwrap(), None);
    let world = World::with(options.with_patience(Duration::from_secs(10), Duration::from_millis(200)));
    let silent: Vec<_> = (0..32).map(|_| Reader::open(&world, "")).collect();
    let full = world.get("/v1/journal?follow=true");
    full.is_problem(503, "busy", "too many readers");
    let message: Arc<str> = "x".repeat(8_192).into();
    let is_admitted = || {
        // So many bytes that no socket holds them.
        add(&world, (0..200).map(|n| JournalEntry { message: Some(Arc::clone(&message)), ..run(n, "a") }));
        assert_eq!(world.get("/livez").status, 200, "nobody waits for them");
        let mut stream = world.connect();
        write!(stream, "GET /v1/journal?follow=true HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let mut status = String::new();
        BufReader::new(stream).read_line(&mut status).unwrap();
        status.starts_with("HTTP/1.1 200")
    };
    eventually("a silent reader has lost its place", is_admitted);
    drop(silent);
}
