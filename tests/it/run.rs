//! The binary from start to end: what it refuses, what it answers, what survives it (L6, L7, D12, Q7, B74, B80).

use std::net::TcpListener;
use std::os::unix::process::ExitStatusExt as _;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::recorder::{Recorder, Reply};
use super::run_world::{Process, Project, text, wait};

const HOUR: &str = "  retry: {initial: 1h, max_delay: 1h}\n";

fn webhook(recorder: &Recorder, more: &str) -> Project {
    let url = recorder.url();
    Project::new(&format!("name: test\nreconciler:\n  webhook: {url}\n{more}"))
}

fn scripted() -> Recorder {
    Recorder::start(|id, number| match (id, number) {
        ("fails", 1) | ("down", _) => Reply::Status(503),
        ("hopeless", 1) => Reply::Json(json!({"error": {"message": "no such zone", "terminal": true}})),
        ("asks", 1) => Reply::Json(json!({"requeue_after": "2h", "message": "again in two hours"})),
        ("holds", 1) => Reply::Hold,
        _ => Reply::Done,
    })
}

/// A second process on the same folder or the same port says who has it, and leaves the first one alone.
#[test]
fn l6_a_second_process_is_refused_and_told_why() {
    let recorder = scripted();
    let project = webhook(&recorder, "");
    let mut first = project.start();
    let second = project.run();
    assert_eq!(second.status.code(), Some(1), "{}", text(&second.stderr));
    let said = text(&second.stderr);
    let pid = first.pid().as_raw_nonzero();
    assert!(said.contains(&format!("evenkeel-data is in use by process {pid}: stop that one")), "{said}");
    assert!(said.contains("data_dir"), "{said}");

    let other = webhook(&recorder, &format!("admin: {{listen: '{}'}}\n", first.address()));
    let taken = other.run();
    assert_eq!(taken.status.code(), Some(1));
    let said = text(&taken.stderr);
    assert!(said.contains(&first.address().to_string()) && said.contains("in use"), "{said}");
    assert!(!other.path().join("evenkeel-data").exists(), "it ends before it touches anything");

    let answer = text(&first.ask(["trigger", "--wait", "x"]).stdout);
    assert!(answer.contains("done"), "{answer}");
    assert_eq!(first.stop().0.code(), Some(0), "{}", first.log());
    // Now the folder is free.
    assert_eq!(project.start().stop().0.code(), Some(0));
}

/// L7: what was recorded on first use stands; another number of shards or another hash is refused.
#[test]
fn l7_a_config_that_does_not_fit_the_store_is_refused() {
    let recorder = scripted();
    let url = recorder.url();
    let config = |more: &str| format!("name: test\nreconciler: {{webhook: '{url}'}}\n{more}");
    let project = Project::new(&config("shards: 4\nhash: murmur2\n"));
    assert_eq!(project.start().stop().0.code(), Some(0));
    for (more, says) in [
        ("hash: murmur2\n", "made with shards 4, this process is configured with shards 1"),
        ("shards: 12\nhash: murmur2\n", "made with shards 4, this process is configured with shards 12"),
        ("shards: 4\n", "made with hash murmur2, this process is configured with hash fnv1a"),
    ] {
        project.configure(&config(more));
        let refused = project.run();
        let said = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(1), "{said}");
        assert!(said.contains(says) && said.contains("configure what stands there"), "{said}");
    }
    project.configure(&config("shards: 4\nhash: murmur2\n"));
    assert_eq!(project.start().stop().0.code(), Some(0), "nothing was changed by the refusals");
}

/// What is owed at the end of a process is owed in the next one; and a crash loses nothing that was durable.
#[test]
fn d12_l4_what_is_owed_survives_stops_and_crashes() {
    let recorder = scripted();
    let project = webhook(&recorder, HOUR);
    let mut process = project.start();
    for id in ["fails", "hopeless", "asks"] {
        process.ask(["trigger", "--wait", id]);
    }
    assert_eq!(process.ask(["trigger", "holds"]).status.code(), Some(0));
    let durable = process.ask(["trigger", "--durable", "durable"]);
    assert!(text(&durable.stdout).contains("durable"), "{durable:?}");
    wait("it has run", || recorder.count("durable") == 1 && recorder.in_flight().0 == 1);
    recorder.release(1);
    assert_eq!(process.stop().0.code(), Some(0), "{}", process.log());

    let mut process = project.start();
    assert!(process.log().contains("took over owed records"), "{}", process.log());
    let state = |process: &Process, id: &str| process.json(&["explain", id])["state"].as_str().unwrap().to_owned();
    assert_eq!(["fails", "hopeless", "asks"].map(|id| state(&process, id)), ["delayed", "parked", "delayed"]);
    let explained = process.json(&["explain", "hopeless"]);
    assert_eq!(explained["entry"]["error"], "no such zone", "{explained}");
    let fails = process.json(&["explain", "fails"]);
    assert_eq!(fails["entry"]["attempt"], 1, "{fails}");
    // A crash: nothing is written, and yet nothing is gone.
    process.kill();
    let mut process = project.start();
    assert_eq!(["fails", "hopeless", "asks"].map(|id| state(&process, id)), ["delayed", "parked", "delayed"]);
    // They go on where they were: the second attempt, a fresh count after a redrive, the time that was asked for.
    process.ask(["trigger", "--wait", "fails"]);
    process.ask(["redrive", "--match", "hope*"]);
    wait("both ran again", || recorder.count("fails") == 2 && recorder.count("hopeless") == 2);
    assert_eq!(recorder.of("fails")[1].attempt, 2);
    assert_eq!(recorder.of("hopeless")[1].attempt, 1);
    let tokens: Vec<String> = recorder.of("fails").into_iter().map(|seen| seen.token).collect();
    assert!(tokens[0] < tokens[1], "over two restarts: {tokens:?}");
    wait("only what was asked for is owed", || process.json(&["status"])["counts"]["owed_records"] == 1);
    assert_eq!(recorder.count("asks"), 1);
    assert_eq!(process.stop().0.code(), Some(0));
}

/// A durable trigger, and the process is killed the moment it was answered.
#[test]
fn x7_a_durable_trigger_survives_a_kill() {
    let recorder = scripted();
    let project = webhook(&recorder, "  timeout: none\n");
    let mut process = project.start();
    assert_eq!(process.ask(["trigger", "--durable", "holds"]).status.code(), Some(0));
    process.kill();
    let before = recorder.count("holds");
    let mut process = project.start();
    wait("it runs again", || recorder.count("holds") > before);
    wait("nothing is owed", || process.json(&["status"])["counts"]["owed_records"] == 0);
    assert_eq!(process.stop().0.code(), Some(0));
}

/// The verbs against a real process: what they say is what happened outside.
#[test]
fn x1_x4_the_verbs_tell_what_goes_on() {
    let recorder = scripted();
    let project = webhook(&recorder, HOUR);
    let mut process = project.start();
    let asked = process.ask(["trigger", "--wait", "good", "asks", "hopeless", "fails"]);
    let said = text(&asked.stdout);
    for part in ["done", "requeued", "given_up", "failed", "no such zone", "again in two hours"] {
        assert!(said.contains(part), "{part} is not in {said}");
    }
    assert_eq!(asked.status.code(), Some(1), "a run that failed is told by the exit code");
    let status = process.json(&["status"]);
    assert_eq!((&status["counts"]["parked"], &status["counts"]["delayed"]), (&json!(1), &json!(2)), "{status}");
    let queues = process.json(&["queues", "--state", "parked"]);
    assert!(queues.to_string().contains("hopeless") && !queues.to_string().contains("fails"), "{queues}");
    let journal = process.json(&["journal", "fails"]);
    assert!(journal.to_string().contains("503"), "{journal}");
    let explained = text(&process.ask(["explain", "fails"]).stdout);
    assert!(explained.contains("it failed 1 time"), "{explained}");
    let cancelled = process.ask(["cancel", "fails"]);
    assert_eq!(cancelled.status.code(), Some(0), "{}", text(&cancelled.stderr));
    assert_eq!(process.json(&["explain", "fails"])["state"], "parked");
    process.ask(["redrive", "--match", "*"]);
    wait("both ran again", || recorder.count("fails") == 2 && recorder.count("hopeless") == 2);
    let bad = process.ask(["trigger", "bad\u{7}id"]);
    assert_eq!(bad.status.code(), Some(2), "{bad:?}");
    let drained = process.ask(["drain"]);
    assert_eq!(drained.status.code(), Some(0), "{drained:?}");
    assert_eq!(process.ended().0.code(), Some(0), "{}", process.log());
    assert!(recorder.of("good").iter().all(|seen| seen.headers.contains_key("evenkeel-fencing-token")));
}

/// B74: few file descriptors, a backend that hangs, far more ids than places. The bound holds at the server, the probes
/// answer, and nothing is out of descriptors.
#[test]
fn b74_q7_a_hanging_backend_takes_ten_places_and_the_probes_answer() {
    let recorder = Recorder::start(|_, _| Reply::Hold);
    let project = webhook(&recorder, "  concurrency: 10\n  timeout: none\nshards: 4\n");
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -n 256; exec \"$0\" run", env!("CARGO_BIN_EXE_evenkeel")]);
    let mut process = Process::spawn(project.inside(limited));
    process.until_led();
    let ids: Vec<String> = (0..2_000).map(|number| format!("id-{number}")).collect();
    for batch in ids.chunks(500) {
        let asked = process.ask(["trigger"].into_iter().chain(batch.iter().map(String::as_str)));
        assert_eq!(asked.status.code(), Some(0), "{}", text(&asked.stderr));
    }
    wait("all places are taken", || recorder.in_flight().0 == 10);
    for _ in 0..100 {
        let probe = super::admin_world::request(process.address(), "GET", "/livez", &[], "");
        assert_eq!(probe.status, 200, "{probe:?}");
    }
    let page = super::admin_world::request(process.address(), "GET", "/metrics", &[], "").body;
    assert!(page.contains("evenkeel_runs_active"), "{page}");
    assert_eq!((recorder.total(), recorder.in_flight()), (10, (10, 10)), "and no more than that");
    recorder.release(2_000);
    wait("all ran", || recorder.total() == 2_000 && recorder.in_flight().0 == 0);
    assert_eq!(recorder.in_flight().1, 10, "in flight at the server, at most");
    assert_eq!(process.stop().0.code(), Some(0));
    let log = process.log();
    assert!(!log.contains("Too many open files") && !log.contains("os error 24"), "{log}");
}

/// B80: everything that it depends on is away, and it lives.
#[test]
fn b80_with_all_its_services_away_it_lives_and_says_what_is_wrong() {
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let project = Project::new(&format!(
        "name: test\nreconciler: {{webhook: 'http://{gone}/', retry: {{initial: 100ms, max_delay: 200ms}}}}\n\
         kafka: {{brokers: ['{gone}']}}\nstreams:\n  orders: {{kafka: {{topics: [orders], dead_letter: dlq}}}}\n  \
         all: {{resync: {{every: 1s, list: {{http: 'http://{gone}/'}}}}}}\n"
    ));
    let mut process = project.start();
    process.ask(["trigger", "x"]);
    wait("it has tried for a while", || {
        let probe = super::admin_world::request(process.address(), "GET", "/livez", &[], "");
        assert_eq!(probe.status, 200, "{probe:?}");
        let runs = process.json(&["journal", "x"]);
        runs.to_string().matches("\"failed\"").count() > 5
    });
    wait("both streams are said to be ill", || {
        let ready = super::admin_world::request(process.address(), "GET", "/readyz", &[], "");
        ready.status == 503 && ready.body.contains("stream orders") && ready.body.contains("stream all")
    });
    let (status, took) = process.stop();
    assert_eq!(status.code(), Some(0), "{}", process.log());
    assert!(took < Duration::from_secs(20), "{took:?}");
}

/// A reader of the log that went away, or never reads, is no reason to stop.
#[test]
fn t1_a_log_that_nobody_reads_holds_nothing_up() {
    let recorder = scripted();
    let project = webhook(&recorder, "");
    let mut command = project.command();
    // A pipe of 64 KiB that nobody reads.
    let mut child = command.arg("run").stderr(std::process::Stdio::piped()).spawn().unwrap();
    let port = wait_for_port(child.id());
    let address = format!("127.0.0.1:{port}").parse().unwrap();
    wait("it leads", || super::admin_world::request(address, "GET", "/readyz", &[], "").status == 200);
    let server = format!("http://{address}");
    for round in 0..30 {
        let ids = (0..100).map(|number| format!("a-rather-long-id-so-that-the-pipe-is-full-soon-{round}-{number}"));
        let mut ask = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
        let asked = ask.env_clear().env("EVENKEEL_SERVER", &server).arg("trigger").args(ids).output().unwrap();
        assert_eq!(asked.status.code(), Some(0), "{}", text(&asked.stderr));
    }
    wait("all ran", || recorder.total() == 3_000);
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), Signal::TERM).unwrap();
    wait("it ends", || child.try_wait().unwrap().is_some());
    let status = child.wait().unwrap();
    assert_eq!((status.code(), status.signal()), (Some(0), None));
}

/// The port on which a process listens, from the kernel's table, since its log is not read.
fn wait_for_port(pid: u32) -> u16 {
    let mut port = 0;
    wait("it listens", || {
        let links = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let sockets: Vec<String> = links
            .filter_map(|link| std::fs::read_link(link.path()).ok())
            .filter_map(|target| Some(target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()))
            .collect();
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let listening = table.lines().skip(1).find_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let own = words[3] == "0A" && sockets.iter().any(|inode| inode == words[9]);
            own.then(|| u16::from_str_radix(words[1].split_once(':').unwrap().1, 16).unwrap())
        });
        port = listening.unwrap_or(0);
        port != 0
    });
    port
}

/// The quickstart of three lines works as it is written: a shell script and a list.
#[test]
fn a_project_of_three_lines_reconciles_what_it_lists() {
    let project = Project::new(
        "name: zones\nreconciler: {exec: ./reconcile.sh}\n\
         streams: {all: {resync: {every: 200ms, list: {exec: [ls, zones]}}}}\n",
    );
    project.script("reconcile.sh", "#!/bin/sh\ncp \"zones/$EVENKEEL_ID\" \"made-$EVENKEEL_ID\"\n");
    std::fs::create_dir(project.path().join("zones")).unwrap();
    std::fs::write(project.path().join("zones/a"), "one").unwrap();
    let mut process = project.start();
    wait("it is made", || project.read("made-a") == "one");
    std::fs::write(project.path().join("zones/b"), "two").unwrap();
    std::fs::remove_file(project.path().join("made-a")).unwrap();
    wait("what is new is made, what is gone comes back", || {
        project.read("made-a") + &project.read("made-b") == "onetwo"
    });
    let journal = || -> Value { process.json(&["journal", "b"]) };
    wait("the journal tells why", || journal().to_string().contains("resync"));
    assert_eq!(process.stop().0.code(), Some(0));
}
