//! The binary as a process of its own: started with a config, signalled, asked, waited for. Its log lines are read as
//! they come.
#![allow(dead_code, reason = "each binary uses a part of it")]

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::park_timeout;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::Value;

/// Longer than anything here takes on a loaded machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);

/// Waits until something is so.
#[track_caller]
pub(crate) fn wait(what: &str, mut so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !so() {
        assert!(begun.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        park_timeout(Duration::from_millis(5));
    }
}

/// A folder with a config.
pub(crate) struct Project {
    folder: tempfile::TempDir,
}

impl Project {
    /// With this config; the admin server takes a free port, log lines are JSON.
    pub(crate) fn new(config: &str) -> Self {
        let project = Self { folder: tempfile::tempdir().unwrap() };
        project.configure(config);
        project
    }

    pub(crate) fn configure(&self, config: &str) {
        let mut text = config.to_owned();
        if !text.contains("admin:") {
            text.push_str("admin: {listen: '127.0.0.1:0'}\n");
        }
        if !text.contains("telemetry:") {
            text.push_str("telemetry: {logs: json, level: debug}\n");
        }
        std::fs::write(self.path().join("evenkeel.yaml"), text).unwrap();
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Writes a file that can be run.
    pub(crate) fn script(&self, name: &str, text: &str) -> PathBuf {
        use std::os::unix::fs::PermissionsExt;
        let path = self.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
        path
    }

    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path().join(name)).unwrap_or_default()
    }

    /// The binary in this folder, with an environment that says nothing.
    pub(crate) fn command(&self) -> Command {
        self.inside(Command::new(env!("CARGO_BIN_EXE_evenkeel")))
    }

    /// A program that starts the binary, in this folder.
    pub(crate) fn inside(&self, mut command: Command) -> Command {
        command.current_dir(self.path()).env_clear().env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin");
        command.stdin(Stdio::null());
        command
    }

    /// Starts it and waits until it says that it runs.
    pub(crate) fn start(&self) -> Process {
        let mut command = self.command();
        command.arg("run");
        let process = Process::spawn(command);
        process.until_started();
        process
    }

    /// Runs it to its end, which comes by itself.
    pub(crate) fn run(&self) -> Output {
        self.command().arg("run").output().unwrap()
    }
}

/// A process, killed when it is dropped.
pub(crate) struct Process {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
    reader: Option<std::thread::JoinHandle<()>>,
}

impl Process {
    pub(crate) fn spawn(mut command: Command) -> Self {
        // In a group of its own: a Ctrl-C at the tests is not its.
        let mut child = command.process_group(0).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stderr.take().unwrap());
        let lines: Arc<Mutex<Vec<String>>> = Arc::default();
        let read = Arc::clone(&lines);
        let reader = std::thread::spawn(move || {
            for line in output.split(b'\n').map_while(Result::ok) {
                lock(&read).push(String::from_utf8_lossy(&line).into_owned());
            }
        });
        Self { child, lines, reader: Some(reader) }
    }

    #[track_caller]
    pub(crate) fn until_started(&self) {
        self.until_line("evenkeel starts");
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        lock(&self.lines).clone()
    }

    pub(crate) fn log(&self) -> String {
        self.lines().join("\n")
    }

    /// Waits for a line that holds this text, and gives it.
    #[track_caller]
    pub(crate) fn until_line(&self, text: &str) -> String {
        let begun = Instant::now();
        loop {
            if let Some(line) = self.lines().into_iter().find(|line| line.contains(text)) {
                return line;
            }
            assert!(begun.elapsed() < PATIENCE, "{text:?} is not in:\n{}", self.log());
            park_timeout(Duration::from_millis(5));
        }
    }

    /// Where its admin server listens.
    #[track_caller]
    pub(crate) fn address(&self) -> SocketAddr {
        let line: Value = serde_json::from_str(&self.until_line("evenkeel starts")).unwrap();
        line["admin"].as_str().unwrap().strip_prefix("http://").unwrap().parse().unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// Waits for its end; gives its status, and how long it took.
    #[track_caller]
    pub(crate) fn ended(&mut self) -> (ExitStatus, Duration) {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                if let Some(reader) = self.reader.take() {
                    reader.join().unwrap();
                }
                return (status, begun.elapsed());
            }
            assert!(begun.elapsed() < PATIENCE, "it does not end:\n{}", self.log());
            park_timeout(Duration::from_millis(2));
        }
    }

    /// Asks for a stop and waits for it.
    #[track_caller]
    pub(crate) fn stop(&mut self) -> (ExitStatus, Duration) {
        self.signal(Signal::TERM);
        self.ended()
    }

    /// Kills it, as a loss of power does.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.ended();
    }

    /// A verb that asks this process.
    pub(crate) fn ask<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
        command.env_clear().env("EVENKEEL_SERVER", format!("http://{}", self.address()));
        command.args(args).stdin(Stdio::null()).output().unwrap()
    }

    /// The same, as JSON.
    #[track_caller]
    pub(crate) fn json(&self, args: &[&str]) -> Value {
        let output = self.ask([&["-o", "json"], args].concat());
        serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether a process with this number is there.
pub(crate) fn is_alive(pid: &str) -> bool {
    let number: i32 = pid.trim().parse().unwrap();
    // A zombie counts as gone: it does nothing any more, and its parent is told.
    let state = std::fs::read_to_string(format!("/proc/{number}/stat")).unwrap_or_default();
    let zombie = state.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z'));
    test_kill_process(Pid::from_raw(number).unwrap()).is_ok() && !zombie
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
