//! Signals to the binary (B27, B89, D11): heard at any time, obeyed in time, and nothing is left running.

use std::net::TcpListener;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;

use super::recorder::{Recorder, Reply};
use super::run_world::{PATIENCE, Process, Project, is_alive, text, wait};
use super::support::Chance;

/// What a stop takes where there is nothing to wait for; far below the drain, far above a busy machine's delays.
const SOON: Duration = Duration::from_secs(10);

fn webhook(recorder: &Recorder, more: &str) -> Project {
    let url = recorder.url();
    Project::new(&format!("name: test\nreconciler:\n  webhook: {url}\n{more}"))
}

#[test]
fn b27_sigterm_and_sigint_end_an_idle_process_at_once() {
    let recorder = Recorder::start(|_, _| Reply::Done);
    for signal in [Signal::TERM, Signal::INT] {
        let project = webhook(&recorder, "");
        let mut process = project.start();
        process.ask(["trigger", "--wait", "x"]);
        process.signal(signal);
        let (status, took) = process.ended();
        assert_eq!(status.code(), Some(0), "{}", process.log());
        assert!(took < SOON, "{took:?}");
        let log = process.log();
        assert!(
            log.contains("evenkeel has stopped") && log.contains("a second signal ends the process at once"),
            "{log}"
        );
    }
    assert_eq!(recorder.count("x"), 2);
}

/// A request that is under way may finish; one that never ends is aborted within the drain.
#[test]
fn b27_b89_a_stop_waits_for_requests_under_way_but_not_for_ever() {
    let recorder = Recorder::start(|id, _| if id == "holds" { Reply::Hold } else { Reply::Hang });
    let project = webhook(&recorder, "  timeout: none\n  cancel_grace: 500ms\ndrain_timeout: 4s\n");
    let mut process = project.start();
    process.ask(["trigger", "holds", "hangs"]);
    wait("both are under way", || recorder.in_flight().0 == 2);
    process.signal(Signal::TERM);
    process.until_line("stopping");
    recorder.release(1);
    let (status, took) = process.ended();
    assert_eq!(status.code(), Some(0), "{}", process.log());
    assert!(took > Duration::from_secs(2) && took < SOON, "{took:?}");
    let log = process.log();
    let of =
        |id: &str| log.lines().find(|line| line.contains("evenkeel::run") && line.contains(id)).unwrap().to_owned();
    assert!(of("holds").contains("\"done\"") && of("hangs").contains("\"cancelled\""), "{log}");
}

/// A command with a grandchild, of which none obeys: nothing of them is left.
#[test]
fn b27_b14_commands_and_their_children_are_gone_after_a_stop() {
    let project = Project::new(
        "name: test\nreconciler:\n  exec: ./reconcile.sh\n  timeout: none\n  cancel_grace: 1s\ndrain_timeout: 2s\n",
    );
    project.script(
        "reconcile.sh",
        "#!/bin/sh\ntrap '' TERM\n(trap '' TERM; sh -c 'trap \"\" TERM; while :; do sleep 1; done' & echo $! >> pids; wait) &\n\
         echo $! >> pids\necho $$ >> pids\nwhile :; do sleep 1; done\n",
    );
    let mut process = project.start();
    process.ask(["trigger", "x"]);
    wait("three processes run", || project.read("pids").lines().count() == 3);
    let (status, took) = process.stop();
    assert_eq!(status.code(), Some(0), "{}", process.log());
    assert!(took < SOON, "{took:?}");
    for pid in project.read("pids").lines() {
        wait("it is gone", || !is_alive(pid));
    }
}

/// A second signal ends the process at once, whatever it waits for.
#[test]
fn b27_a_second_signal_ends_it_without_waiting() {
    let recorder = Recorder::start(|_, _| Reply::Hang);
    for (first, second) in [(Signal::TERM, Signal::TERM), (Signal::INT, Signal::TERM)] {
        let project = webhook(&recorder, "  timeout: none\n  cancel_grace: 10m\ndrain_timeout: 1h\n");
        let mut process = project.start();
        process.ask(["trigger", "x"]);
        wait("it is under way", || recorder.in_flight().0 > 0);
        process.signal(first);
        process.until_line("a second signal");
        process.signal(second);
        let (status, took) = process.ended();
        assert_eq!(status.code(), Some(1), "{}", process.log());
        assert!(took < SOON, "{took:?}");
        assert!(process.log().contains("ended without waiting; what was owed comes again"), "{}", process.log());
    }
}

/// At any moment of the start: it ends, by itself or by the signal, and never hangs.
#[test]
fn b27_a_signal_at_any_moment_of_the_start_is_heard() {
    let recorder = Recorder::start(|_, _| Reply::Done);
    let project = webhook(&recorder, "");
    let mut chance = Chance::new();
    for _ in 0..30 {
        let mut command = project.command();
        command.arg("run");
        let mut process = Process::spawn(command);
        std::thread::park_timeout(Duration::from_micros(chance.below(60_000)));
        let (status, took) = process.stop();
        let by_signal = std::os::unix::process::ExitStatusExt::signal(&status) == Some(15);
        assert!(status.code() == Some(0) || by_signal, "{status}: {}", process.log());
        assert!(took < SOON, "{took:?}");
    }
    // The folder is free, and nothing is broken by all that.
    let (status, _) = project.start().stop();
    assert_eq!(status.code(), Some(0));
}

/// A start that cannot go on, since its service does not answer, is stopped all the same.
#[test]
fn b27_b89_a_start_without_its_services_is_stopped() {
    // A port that takes connections and never answers: the reconciler, the list and Kafka.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let project = Project::new(&format!(
        "name: test\nreconciler: {{webhook: 'http://{address}/', cancel_grace: 500ms}}\nkafka: {{brokers: ['{address}']}}\n\
         streams:\n  orders: {{kafka: {{topics: [orders], dead_letter: dlq}}}}\n  \
         all: {{resync: {{every: 1h, list: {{http: 'http://{address}/'}}}}}}\ndrain_timeout: 2s\n"
    ));
    let mut process = project.start();
    let (status, took) = process.stop();
    assert_eq!(status.code(), Some(0), "{}", process.log());
    assert!(took < Duration::from_secs(20), "{took:?}");
}

/// D11: SIGUSR1 writes what waits to the log, and the process goes on.
#[test]
fn d11_sigusr1_writes_what_waits_to_the_log() {
    let recorder = Recorder::start(|id, _| match id {
        "fails" => Reply::Status(500),
        "hopeless" => Reply::Status(422),
        "asks" => Reply::Json(serde_json::json!({"requeue_after": "1h"})),
        "holds" => Reply::Hold,
        _ => Reply::Done,
    });
    let project = webhook(&recorder, "  retry: {initial: 1h, max_delay: 1h}\n");
    let mut process = project.start();
    process.ask(["trigger", "fails", "hopeless", "asks", "holds"]);
    wait("all were asked for", || recorder.total() == 4);
    wait("three have ended", || recorder.in_flight().0 == 1);
    let summary = || process.lines().into_iter().rfind(|line| line.contains("dump: the state of this process"));
    for _ in 0..2 {
        process.signal(Signal::USR1);
    }
    wait("it is all there", || {
        process.signal(Signal::USR1);
        summary().is_some_and(|line| line.contains("\"parked\":1") && line.contains("\"delayed\":2"))
    });
    let line = summary().unwrap();
    assert!(line.contains("\"running\":1") && line.contains("\"owed_records\""), "{line}");
    for (id, says) in [("fails", "500"), ("hopeless", "GivenUp"), ("asks", "due"), ("holds", "Running")] {
        let line = process.lines().into_iter().rfind(|l| l.contains("\"dump\"") && l.contains(&format!("\"{id}\"")));
        let line = line.unwrap_or_else(|| panic!("{id} is not in {}", process.log()));
        assert!(line.contains(says), "{says}: {line}");
    }
    assert_eq!(process.json(&["status"])["state"], "running");
    recorder.release(1);
    assert_eq!(process.stop().0.code(), Some(0));
}

/// SIGUSR1 in the midst of the start must not end the process, as its default would.
#[test]
fn d11_sigusr1_during_the_start_does_no_harm() {
    let recorder = Recorder::start(|_, _| Reply::Done);
    let project = webhook(&recorder, "");
    let mut command = project.command();
    command.arg("run");
    let mut process = Process::spawn(command);
    // The config is read before anything else; from the first log line or the lock on, signals are heard.
    wait("it has begun to start", || project.path().join("evenkeel-data").exists());
    process.signal(Signal::USR1);
    process.until_started();
    assert_eq!(process.stop().0.code(), Some(0), "{}", process.log());
}

/// B27: process 1 of a container has no default actions, and inherits what others leave behind.
#[test]
fn b27_as_process_1_it_hears_signals_and_leaves_no_zombies() {
    let namespaces = || {
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--kill-child", "--mount-proc", "--"]);
        command
    };
    if !namespaces().arg("true").output().is_ok_and(|output| output.status.success()) {
        assert!(
            std::env::var_os("EVENKEEL_TEST_SKIP_ROOT").is_some_and(|value| value == "1"),
            "this test makes a PID namespace, which needs root and unshare; EVENKEEL_TEST_SKIP_ROOT=1 passes it over"
        );
        eprintln!("passed over, since EVENKEEL_TEST_SKIP_ROOT=1: the binary as process 1");
        return;
    }
    let project = Project::new(
        "name: test\nreconciler:\n  exec: ./reconcile.sh\n  timeout: 1s\n  cancel_grace: 200ms\n  retry: {max_retries: 1}\n\
         drain_timeout: 3s\n",
    );
    // Each run leaves two behind: one in its group, one that has left it.
    project.script(
        "reconcile.sh",
        "#!/bin/sh\nsleep 300 &\nsetsid sleep 300 &\n[ \"$EVENKEEL_ID\" = hangs ] && sleep 300\nexit 0\n",
    );
    let mut command = namespaces();
    command.arg(env!("CARGO_BIN_EXE_evenkeel")).arg("run");
    let mut process = Process::spawn(project.inside(command));
    process.until_started();
    for id in ["a", "b", "hangs"] {
        let ended = text(&process.ask(["trigger", "--wait", id]).stdout);
        assert!(ended.contains(if id == "hangs" { "timed_out" } else { "done" }), "{ended}");
    }
    let inside = first_child(process.pid().as_raw_nonzero().get());
    wait("no zombies", || {
        let zombies = all_below(inside).into_iter().filter(|pid| state(*pid) == Some('Z')).count();
        zombies == 0
    });
    // The signal is for process 1 itself.
    rustix::process::kill_process(rustix::process::Pid::from_raw(inside).unwrap(), Signal::TERM).unwrap();
    let (status, took) = process.ended();
    assert_eq!(status.code(), Some(0), "{}", process.log());
    assert!(took < SOON && took < PATIENCE, "{took:?}");
    assert!(process.log().contains("evenkeel has stopped"), "{}", process.log());
}

fn children(pid: i32) -> Vec<i32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let of_task = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
    tasks
        .flat_map(|task| of_task(task).split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<_>>())
        .collect()
}

fn first_child(pid: i32) -> i32 {
    *children(pid).first().expect("unshare has started it")
}

fn all_below(pid: i32) -> Vec<i32> {
    children(pid).into_iter().flat_map(|child| [vec![child], all_below(child)].concat()).collect()
}

fn state(pid: i32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(") ").next()?.chars().next()
}
