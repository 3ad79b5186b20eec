//! The journal as server-sent events: what a reader is shown, and what becomes of one that is slow.

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

use evenkeel::engine::view::JournalEntry;
use evenkeel::service::admin::AdminOptions;

use crate::admin_world::{World, eventually, run};

/// One server-sent event: its id, its name, its data.
type Event = (Option<u64>, String, serde_json::Value);

struct Reader(BufReader<TcpStream>);

impl Reader {
    /// Asks, and reads the answer's head.
    fn open(world: &World, query: &str, headers: &str) -> Self {
        let mut stream = world.connect();
        let host = world.address;
        write!(stream, "GET /v1/journal?follow=true{query} HTTP/1.1\r\nHost: {host}\r\n{headers}\r\n").unwrap();
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
        let (mut id, mut name) = (None, String::new());
        loop {
            let line = self.line();
            match line.split_once(": ") {
                Some(("id", value)) => id = Some(value.parse().unwrap()),
                Some(("event", value)) => name = value.to_owned(),
                Some(("data", value)) => return (id, name, serde_json::from_str(value).unwrap()),
                _ => {}
            }
        }
    }

    fn number(&mut self) -> u64 {
        let (id, name, data) = self.event();
        assert_eq!((name.as_str(), id), ("run", data["number"].as_u64()), "{data}");
        id.unwrap()
    }
}

fn add(world: &World, runs: impl IntoIterator<Item = JournalEntry>) {
    world.script.journal.lock().unwrap().extend(runs);
}

#[test]
fn x4_runs_are_shown_as_they_end() {
    let world = World::open();
    add(&world, (1..=5).map(|n| run(n, if n % 2 == 0 { "even" } else { "odd" })));
    let mut news = Reader::open(&world, "", "");
    let mut last = Reader::open(&world, "&limit=2", "");
    let mut of_one = Reader::open(&world, "&limit=2&id=odd", "");
    let mut again = Reader::open(&world, "", "Last-Event-ID: 3\r\n");
    let mut since = Reader::open(&world, "&after=4", "");
    assert_eq!((last.number(), last.number()), (4, 5));
    assert_eq!((of_one.number(), of_one.number()), (3, 5));
    assert_eq!((again.number(), again.number()), (4, 5));
    assert_eq!(since.number(), 5);
    add(&world, [run(6, "even"), run(7, "odd")]);
    for reader in [&mut news, &mut last, &mut again, &mut since] {
        assert_eq!((reader.number(), reader.number()), (6, 7));
    }
    let (_, _, data) = of_one.event();
    assert_eq!(data, serde_json::to_value(run(7, "odd")).unwrap(), "an event holds what the journal shows");
}

#[test]
fn a_reader_that_misses_runs_is_told_how_many() {
    let world = World::open();
    add(&world, [run(1, "a")]);
    let mut reader = Reader::open(&world, "&after=1", "");
    // The ring has turned: the next 99 runs are gone.
    add(&world, (101..=102).map(|n| run(n, "a")));
    let (id, name, data) = reader.event();
    assert_eq!((id, name.as_str(), &data["runs"]), (None, "skipped", &99.into()));
    assert_eq!((reader.number(), reader.number()), (101, 102));
    // More runs at once than a page holds: the latest are shown.
    add(&world, (103..=1_102).map(|n| run(n, "a")));
    let (_, name, data) = reader.event();
    assert_eq!((name.as_str(), &data["runs"]), ("skipped", &800.into()));
    assert_eq!(reader.number(), 903);
}

#[test]
fn a_reader_hears_why_the_stream_ends() {
    let mut world = World::open();
    let mut reader = Reader::open(&world, "", "");
    let server = world.server.take().unwrap();
    tokio::runtime::Runtime::new().unwrap().block_on(server.stop());
    let (_, name, data) = reader.event();
    assert_eq!((name.as_str(), data["reason"].as_str()), ("closed", Some("the process is stopping")));
}

#[test]
fn readers_that_never_read_lose_their_places_and_nobody_waits_for_them() {
    let options = AdminOptions::new("127.0.0.1:0".parse().unwrap(), None);
    let world = World::with(options.with_patience(Duration::from_secs(10), Duration::from_millis(200)));
    let silent: Vec<_> = (0..32).map(|_| Reader::open(&world, "", "")).collect();
    let full = world.get("/v1/journal?follow=true");
    full.is_problem(503, "busy", "too many readers");
    let (mut number, message) = (0, "x".repeat(8_192));
    let is_admitted = || {
        // So many bytes that no socket holds them.
        add(
            &world,
            (number + 1..=number + 200).map(|n| JournalEntry { message: Some(message.as_str().into()), ..run(n, "a") }),
        );
        number += 200;
        let mut journal = world.script.journal.lock().unwrap();
        let old = journal.len().saturating_sub(400);
        journal.drain(..old);
        drop(journal);
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
