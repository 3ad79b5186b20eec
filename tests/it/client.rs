//! The verbs that ask a running process: through the binary, against a listening server.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use evenkeel::service::admin::AdminOptions;
use evenkeel::service::cli::{Color, GlobalArgs, Output as Form};
use evenkeel::service::client::{ClientVerb, Terminal, TriggerArgs};
use serde_json::{Value, json};

use crate::admin_world::{World, eventually, run};

const TOKEN: &str = "canary-token-5f2c9a7e";

/// The binary, asking this server.
fn evenkeel(server: &str, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
    command.env_clear().env("EVENKEEL_SERVER", server).env("TZ", "UTC").args(args).stdin(Stdio::null());
    command
}

fn ask(world: &World, args: &[&str]) -> Output {
    evenkeel(&format!("http://{}", world.address), args).output().unwrap()
}

/// Starts the binary with pipes for all that goes in and out.
fn start(world: &World, args: &[&str]) -> Child {
    let mut command = evenkeel(&format!("http://{}", world.address), args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn out(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

fn err(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

/// Checks the exit code, and that nothing was printed that a terminal would obey.
#[track_caller]
fn assert_code(output: &Output, code: i32) {
    let all = format!("{}{}", out(output), err(output));
    assert_eq!(output.status.code(), Some(code), "{all}");
    assert!(!all.contains('\u{1b}') && !all.contains('\u{7}') && !all.contains("panicked"), "{all:?}");
}

#[track_caller]
fn assert_fails(output: &Output, code: i32, says: &[&str]) {
    assert_code(output, code);
    for text in says {
        assert!(err(output).contains(text), "{text:?} is not in {:?}", err(output));
    }
}

/// The lines without spaces at their ends.
fn lines(output: &Output) -> Vec<&str> {
    out(output).lines().map(str::trim_end).collect()
}

#[test]
fn status_reads_at_a_glance() {
    let world = World::open();
    let output = ask(&world, &["status"]);
    assert_code(&output, 0);
    let lines = lines(&output);
    assert!(lines[0].starts_with("dns runs, started ") && lines[0].contains("leads 2 of 12 shards"), "{lines:#?}");
    assert_eq!(
        lines[1..],
        [
            "pending 10  running 2  delayed 5  parked 1  owed records 6",
            "admitted 18 of 1,000,000  timers 0 of 1,000,000",
            "the oldest event that is not done came 12.5 s ago",
            "",
            "STREAM  STATE     EVENTS  ERRORS  RESTARTS",
            "orders  degraded     991       3         1",
            "",
            "problem: stream orders: broker kafka:9092 does not answer",
        ]
    );
    assert!(err(&output).contains("`evenkeel queues --state parked`"), "{}", err(&output));
}

#[test]
fn tables_show_shards_and_queues() {
    let world = World::open();
    let output = ask(&world, &["shards"]);
    assert_code(&output, 0);
    assert_eq!(
        lines(&output),
        [
            "SHARD  LED        TERM                      PENDING  RUNNING  DELAYED  PARKED  RUNS",
            "    0  here       0001-0000000000000004711       10        2        5       1    42",
            "    1  host-2/17",
        ]
    );
    let output = ask(&world, &["queues", "--limit", "3"]);
    assert_code(&output, 0);
    let rows = lines(&output);
    let header: Vec<_> = rows[0].split_whitespace().collect();
    assert_eq!(header, ["ID", "STATE", "SHARD", "FAILED", "SINCE", "NEXT", "ERROR"]);
    assert_eq!(rows.len(), 4, "both pages: {rows:#?}");
    assert!(rows[1].starts_with("a   parked: given_up      7       3"), "{rows:#?}");
    assert!(rows[3].ends_with("no route\\u{1b}[2J\\nto host"), "{rows:#?}");
    let output = ask(&world, &["queues", "--limit", "2", "--state", "parked", "--shard", "7"]);
    assert!(err(&output).contains("there are more than 2"), "{}", err(&output));
    let calls = world.script.calls();
    assert!(
        calls.last().unwrap().contains("state: Some(Parked), shard: Some(ShardId(7)), limit: Some(2)"),
        "{calls:?}"
    );
}

#[test]
fn x4_explain_and_journal_read_like_the_log() {
    let world = World::open();
    let yesterday = run(1, "prod/Database/orders");
    world.script.journal.lock().unwrap().extend([yesterday, run(2, "b")]);
    let causes = "orders/7@991, channel, all, trigger, retry after attempt 1, requested time, owed record, redrive, \
                  cancelled run and 2 more";
    let line = |id: &str, attempt: u32| {
        format!(
            "2030-02-03 11:00:01 failed  {id}  attempt {attempt}  31 ms  shard 7  cause {causes}  next in 500 ms: \
             no route\\u{{1b}}[2J"
        )
    };
    let output = ask(&world, &["journal"]);
    assert_code(&output, 0);
    assert_eq!(lines(&output), [line("prod/Database/orders", 1), line("b", 2)], "the latest comes last");
    let output = ask(&world, &["journal", "b", "--limit", "5"]);
    assert_eq!(lines(&output), [line("b", 2)]);
    let output = ask(&world, &["journal", "nobody"]);
    assert_code(&output, 0);
    assert_eq!((out(&output), err(&output)), ("", "no runs yet\n"));
    let output = ask(&world, &["explain", "prod/Database/orders"]);
    assert_code(&output, 0);
    assert_eq!(
        lines(&output),
        [
            "prod/Database/orders  delayed  shard 7  worker 3",
            "it failed and runs again at 12:00",
            "failed 3 times in a row",
            "last error: no route\\u{1b}[2J\\nto host",
            &format!("cause: {causes}"),
            &line("prod/Database/orders", 1),
        ]
    );
}

#[test]
fn programs_get_what_the_api_answers() {
    let world = World::open();
    world.script.journal.lock().unwrap().extend([run(1, "a"), run(2, "b")]);
    for (args, path) in [
        (&["status"][..], "/v1/status"),
        (&["shards"], "/v1/shards"),
        (&["queues", "--limit", "2"], "/v1/queues?limit=2"),
        (&["journal"], "/v1/journal?limit=20"),
        (&["journal", "a"], "/v1/journal?limit=20&id=a"),
        (&["explain", "a/b c"], "/v1/explain?id=a%2Fb%20c"),
    ] {
        let wanted = world.get(path).json();
        let output = ask(&world, &[args, &["-o", "json"]].concat());
        assert_code(&output, 0);
        assert_eq!(serde_json::from_str::<Value>(out(&output)).unwrap(), wanted, "{args:?}");
        let output = ask(&world, &[args, &["-o", "yaml"]].concat());
        assert_code(&output, 0);
        assert_eq!(serde_saphyr::from_str::<Value>(out(&output)).unwrap(), wanted, "{args:?}");
    }
}

#[test]
fn x1_what_is_steered_is_told_per_id() {
    let world = World::open();
    let output = ask(&world, &["redrive", "a", "b"]);
    assert_code(&output, 0);
    assert_eq!(lines(&output), ["ID  DONE  WHY", "a   yes   released", "b   yes   released"]);
    let output = ask(&world, &["cancel", "a", "idle-b"]);
    assert_code(&output, 1);
    assert_eq!(lines(&output)[2], "idle-b  no    it is not parked");
    let output = ask(&world, &["redrive", "--match", "prod/*", "-o", "json"]);
    assert_code(&output, 0);
    assert_eq!(serde_json::from_str::<Value>(out(&output)).unwrap()["answers"][1]["id"], "b");
    let output = ask(&world, &["drain"]);
    assert_code(&output, 0);
    assert!(
        world.script.drained.load(Ordering::SeqCst) && out(&output).contains("evenkeel status"),
        "{}",
        out(&output)
    );
    assert_eq!(world.script.calls()[2], r#"redrive Match("prod/*")"#);
}

#[test]
fn x7_typed_ids_are_answered_one_by_one() {
    let world = World::open();
    let output = ask(&world, &["trigger", "a", "present-b"]);
    assert_code(&output, 0);
    assert_eq!(lines(&output), ["a  admitted", "present-b  already present"]);
    let output = ask(&world, &["trigger", "--durable", "a", "lost-b"]);
    assert_code(&output, 1);
    assert_eq!(lines(&output), ["a  recorded", "lost-b  not recorded: the disk is full"]);
    let output = ask(&world, &["trigger", "--wait", "a", "fails-b"]);
    assert_code(&output, 1);
    assert_eq!(lines(&output), ["a  done", "fails-b  failed: no route\\u{1b}[2J"]);
    let output = ask(&world, &["trigger", "full-a", "full-b"]);
    assert_code(&output, 1);
    assert_eq!(lines(&output)[0], "full-a  not admitted: its shard is full; try again later");
    let output = ask(&world, &["trigger", "away-a", "b", "-o", "json"]);
    assert_code(&output, 1);
    let answers: Vec<Value> = lines(&output).iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(
        answers,
        [
            json!({"id": "away-a", "result": "unavailable", "reason": "shard 3 is led by another process"}),
            json!({"id": "b", "result": "admitted"}),
        ]
    );
    let output = ask(&world, &["trigger", "a", "b", "-o", "yaml"]);
    let answers: Value = serde_saphyr::from_str(out(&output)).unwrap();
    assert_eq!(answers[1], json!({"id": "b", "result": "admitted"}));
    // An id may look like an option.
    let output = ask(&world, &["trigger", "--", "-x", "--wait"]);
    assert_eq!(lines(&output), ["-x  admitted", "--wait  admitted"]);
}

#[test]
fn ids_come_from_standard_input_as_they_come() {
    let world = World::open();
    let mut child = start(&world, &["trigger", "-"]);
    let mut input = child.stdin.take().unwrap();
    input.write_all(b"first\n").unwrap();
    eventually("the first id is sent before the input ends", || !world.script.calls().is_empty());
    for n in 0..2_500 {
        writeln!(input, "id-{n}\r").unwrap();
    }
    input.write_all(b"\n  \nbad\x00\nsoon-a\nsoon-b\naway-c\n").unwrap();
    drop(input);
    let output = child.wait_with_output().unwrap();
    assert_code(&output, 1);
    assert_eq!(
        lines(&output),
        [
            "away-c  unavailable: shard 3 is led by another process",
            "2,506 ids: 2,504 admitted, 1 refused, 1 unavailable"
        ],
        "the id of two spaces is one"
    );
    assert!(err(&output).starts_with("line 2504: an id holds U+0000 at byte 3"), "{}", err(&output));
    let sent: Vec<usize> =
        world.script.calls().iter().map(|call| call.rsplit(' ').next().unwrap().parse().unwrap()).collect();
    assert!(sent.iter().all(|n| *n <= 1_000), "{sent:?}");
    assert_eq!(sent.iter().sum::<usize>(), 2_505 + 2, "only those that found no room are sent again: {sent:?}");
    let output = ask(&world, &["trigger", "-"]);
    assert_code(&output, 0);
    assert_eq!(out(&output), "no ids came\n");
}

#[test]
fn a_followed_journal_shows_runs_at_once_and_says_why_it_ends() {
    let mut world = World::open();
    world.script.journal.lock().unwrap().push(run(1, "old"));
    let mut child = start(&world, &["journal", "--follow", "-o", "json"]);
    let mut shown = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut id = || serde_json::from_str::<Value>(&shown.next().unwrap()).unwrap()["id"].clone();
    assert_eq!(id(), "old");
    world.script.journal.lock().unwrap().push(run(2, "new"));
    assert_eq!(id(), "new");
    world.script.journal.lock().unwrap().extend((0..300).map(|_| run(3, "many")));
    assert_eq!(id(), "many");
    let server = world.server.take().unwrap();
    tokio::runtime::Runtime::new().unwrap().block_on(server.stop());
    let output = child.wait_with_output().unwrap();
    assert_fails(&output, 1, &["100 runs are not shown", "ended the stream: the process is stopping"]);
}

#[test]
fn wrong_usage_is_2_and_nothing_is_asked() {
    let world = World::open();
    let long = "x".repeat(1 << 16);
    for (args, says) in [
        (&["trigger"][..], "<ID>..."),
        (&["trigger", ""], "an id is empty"),
        (&["trigger", "a", "b\u{202e}"], "U+202E at byte 1"),
        (&["trigger", &long], "an id has 65536 bytes; at most 512"),
        (&["trigger", "-x"], "unexpected argument '-x'"),
        (&["trigger", "--wait", "--durable", "a"], "cannot be used with"),
        (&["explain"], "<ID>"),
        (&["explain", "a\nb"], "U+000A"),
        (&["explain", "-"], "does not read"),
        (&["cancel"], "<ID>..."),
        (&["cancel", "-"], "does not read"),
        (&["redrive"], "<ID|--match <PATTERN>>"),
        (&["redrive", "a", "--match", "b"], "cannot be used with"),
        (&["queues", "--state", "lost"], "[possible values: pending, running, delayed, parked]"),
        (&["queues", "--limit", "0"], "0 is not in 1.."),
        (&["queues", "--shard", "-1"], "unexpected argument '-1'"),
        (&["journal", "--limit", "1001"], "1001 is not in 1..=1000"),
        (&["status", "extra"], "unexpected argument 'extra'"),
        (&["status", "--server", "localhost:7070"], "give it as http://HOST:PORT"),
        (&["status", "--server", "http://me:canary@localhost"], "comes from --token-file"),
        (&["status", "--token-file", "/no/such/file"], "--token-file /no/such/file: No such file"),
        (&["status", "--token-file", "/dev/null"], "it is empty"),
    ] {
        let output = ask(&world, args);
        assert_fails(&output, 2, &[says]);
        assert!(err(&output).len() < 2_000 && !err(&output).contains("canary"), "{}", err(&output));
    }
    assert!(world.script.calls().is_empty(), "{:?}", world.script.calls());
    // What only the server can know to be wrong.
    assert_fails(&ask(&world, &["redrive", "--match", ""]), 2, &["either ids or match"]);
}

#[test]
fn a_server_that_cannot_be_had_says_what_to_do() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = closed.local_addr().unwrap();
    drop(closed);
    let output = evenkeel(&format!("http://{address}"), &["status"]).output().unwrap();
    let refused = format!("error: cannot reach http://{address}: connection refused");
    assert_fails(&output, 1, &[&refused, "is `evenkeel run` running?", "EVENKEEL_SERVER says which process"]);
    let output = evenkeel("http://no-such-host.invalid", &["status"]).output().unwrap();
    assert_fails(&output, 1, &["cannot reach http://no-such-host.invalid", "--server"]);
    // Proxies of the environment are for elsewhere.
    let world = World::open();
    let mut command = evenkeel(&format!("http://{}", world.address), &["shards"]);
    let output = command.env("http_proxy", format!("http://{address}")).output().unwrap();
    assert_code(&output, 0);
}

/// Answers every connection with these bytes.
fn impostor(answer: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(answer);
        }
    });
    format!("http://{address}")
}

#[test]
fn what_is_no_admin_server_is_told_from_one() {
    let page = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 21\r\n\r\n<h1>\x1b[2JWelcome!</h1>";
    let moved = b"HTTP/1.1 301 Moved\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n";
    let json = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 8\r\n\r\n{\"a\": 1}";
    let cut = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{\"a\": 1}";
    for (answer, says) in [
        (&page[..], "HTTP 200 <h1>\\u{1b}[2JWelcome!"),
        (moved, "HTTP 301"),
        (b"SSH-2.0-OpenSSH_9\r\n", "broke off"),
        (b"", "broke off"),
        (cut, "broke off"),
    ] {
        let server = impostor(answer);
        for args in [&["status"][..], &["trigger", "a"], &["journal", "-f"]] {
            let output = evenkeel(&server, args).output().unwrap();
            assert_fails(&output, 1, &["error: "]);
            assert!(err(&output).contains(says) || args == ["journal", "-f"], "{args:?}: {}", err(&output));
        }
    }
    let output = evenkeel(&impostor(json), &["status"]).output().unwrap();
    assert_fails(&output, 1, &["missing field"]);
}

#[test]
fn b87_a_token_opens_the_door_and_is_never_shown() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("token");
    std::fs::write(&path, format!("{TOKEN}\n")).unwrap();
    let world = World::with(AdminOptions::new("127.0.0.1:0".parse().unwrap(), Some(path.clone())));
    let file = path.to_str().unwrap();
    assert_code(&ask(&world, &["status", "--token-file", file]), 0);
    assert_fails(&ask(&world, &["status"]), 1, &["asks for a token", "--token-file FILE or EVENKEEL_TOKEN_FILE"]);
    std::fs::write(dir.path().join("wrong"), "canary-wrong-token").unwrap();
    let wrong = dir.path().join("wrong");
    std::fs::write(dir.path().join("broken"), "canary\u{7f}\u{e9}").unwrap();
    let broken = dir.path().join("broken");
    for (file, code) in [(wrong.to_str().unwrap(), 1), (broken.to_str().unwrap(), 2)] {
        let output = ask(&world, &["status", "--token-file", file]);
        assert_code(&output, code);
        assert!(!err(&output).contains("canary"), "{}", err(&output));
    }
    let mut command = evenkeel(&format!("http://{}", world.address), &["trigger", "a", "full-b", "-o", "json"]);
    let output = command.env("EVENKEEL_TOKEN_FILE", file).env("RUST_LOG", "trace").output().unwrap();
    assert_code(&output, 1);
    assert!(!format!("{}{}", out(&output), err(&output)).contains("canary"));
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let world = World::open();
    world.script.journal.lock().unwrap().extend((0..500).map(|n| run(n, "a")));
    for args in [
        &["status"][..],
        &["queues", "-o", "json"],
        &["journal", "--limit", "500"],
        &["journal", "--follow", "--limit", "500"],
        &["trigger", "a"],
        &["explain", "a", "-o", "yaml"],
    ] {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let output = evenkeel(&format!("http://{}", world.address), args).stdout(writer).output().unwrap();
        assert_code(&output, 0);
    }
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let output = evenkeel(&format!("http://{}", world.address), &["status"]).stdout(full).output().unwrap();
    assert_fails(&output, 1, &["No space left on device"]);
}

#[test]
fn colour_is_for_those_who_ask() {
    let world = World::open();
    world.script.journal.lock().unwrap().push(run(1, "a"));
    let plain = ask(&world, &["journal"]);
    let coloured = ask(&world, &["journal", "--color", "always"]);
    assert!(out(&coloured).contains("\u{1b}[33mfailed"), "{:?}", out(&coloured));
    assert_eq!(anstream::adapter::strip_str(out(&coloured)).to_string(), out(&plain));
    let json = ask(&world, &["journal", "--color", "always", "-o", "json"]);
    assert_code(&json, 0);
}

/// Keeps what was printed.
#[derive(Clone, Default)]
struct Page(Arc<Mutex<Vec<u8>>>);

impl Page {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Page {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn global(world: &World) -> GlobalArgs {
    let server = format!("http://{}", world.address);
    GlobalArgs { server, token_file: None, output: Form::Table, color: Color::Never }
}

#[test]
fn no_terminal_is_too_narrow() {
    let world = World::open();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for width in [0, 1, 2, 20, 80] {
        for verb in [ClientVerb::Status, ClientVerb::Shards, ClientVerb::Cancel { ids: vec!["a".into()] }] {
            let page = Page::default();
            let mut terminal = Terminal::new(io::empty(), page.clone(), io::sink());
            terminal.width = Some(width);
            runtime.block_on(verb.run_on(&global(&world), terminal)).unwrap();
            assert!(!page.text().is_empty());
        }
    }
}

#[test]
fn what_takes_long_says_so() {
    let world = World::open();
    let (page, shown) = (Page::default(), Page::default());
    let (out, err, global) = (page.clone(), shown.clone(), global(&world));
    let asking = std::thread::spawn(move || {
        let mut terminal = Terminal::new(io::empty(), out, err);
        terminal.is_watched = true;
        let args = TriggerArgs { ids: vec!["holds-a".into()], wait: true, durable: false };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(ClientVerb::Trigger(args).run_on(&global, terminal)).unwrap();
    });
    eventually("two seconds are shown", || shown.text().contains("\r\u{1b}[Kwaiting for 1 ids … 2 s"));
    world.script.gate.add_permits(1);
    asking.join().unwrap();
    assert!(shown.text().ends_with("\r\u{1b}[K"), "the line is gone afterwards: {:?}", shown.text());
    assert_eq!(page.text(), "holds-a  done\n");
}

#[test]
fn every_verb_shows_how_to_use_it() {
    for verb in ["trigger", "status", "shards", "queues", "journal", "explain", "redrive", "cancel", "drain"] {
        let output = evenkeel("http://127.0.0.1:1", &[verb, "--help"]).output().unwrap();
        assert_code(&output, 0);
        assert!(out(&output).contains(&format!("Examples:\n  evenkeel {verb}")), "{}", out(&output));
        assert!(out(&output).lines().all(|line| line.chars().count() <= 110), "{}", out(&output));
    }
}

#[test]
fn health_needs_no_token_and_says_it_with_its_exit_code() {
    let world = World::open();
    for args in [&["health"][..], &["health", "--ready"]] {
        let output = ask(&world, args);
        assert_code(&output, 0);
        assert_eq!(lines(&output), ["ok"]);
    }
    world.script.health.lock().unwrap().ready = false;
    assert_code(&ask(&world, &["health"]), 0);
    let output = ask(&world, &["health", "--ready", "-o", "json"]);
    assert_code(&output, 1);
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(answer["ok"] == false && answer["problem"].as_str().unwrap().contains("has not started yet"), "{answer}");
    world.script.health.lock().unwrap().live = false;
    assert_code(&ask(&world, &["health"]), 1);

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("token");
    std::fs::write(&path, format!("{TOKEN}\n")).unwrap();
    let locked = World::with(AdminOptions::new("127.0.0.1:0".parse().unwrap(), Some(path)));
    assert_code(&ask(&locked, &["health"]), 0);
    locked.script.health.lock().unwrap().live = false;
    let output = ask(&locked, &["health"]);
    assert_code(&output, 1);
    assert!(out(&output).contains("ask with a token"), "{}", out(&output));

    // Nothing listens: one line, no hang.
    let output = evenkeel("http://127.0.0.1:1", &["health"]).output().unwrap();
    assert_fails(&output, 1, &["connection refused"]);
}
