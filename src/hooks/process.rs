//! One command with its whole process group: started, drained, ended and waited for, whatever becomes of the future
//! that wants it.
//!
//! A thread owns each child from its start to its reaping, so that neither a dropped future nor a runtime that is torn
//! down leaves one behind. The group's leader is observed without being reaped until its group has been killed: as long
//! as it is not reaped its number cannot go to another process, so that no signal goes astray. Tested with real
//! processes in `tests`.

use std::ffi::OsString;
use std::future::Future;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::pin::pin;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, waitid};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{ChildStderr, ChildStdin, ChildStdout};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until, timeout};

use super::answer_file::AnswerFile;
use super::group::Group;
use super::strays;
use crate::contract::DURATION_MAX;

/// How long output is still read after the command has ended: a helper that it left behind may have the last lines
/// (`tee`).
const DRAIN: Duration = Duration::from_millis(500);
/// How much is read from a pipe at once.
const CHUNK_BYTES: usize = 16 * 1024;
/// The stack of the thread that waits for a child: it only calls the system and reads one small file.
const STACK_BYTES: usize = 256 * 1024;

/// What to start.
pub(super) struct Plan {
    /// The program with its arguments, folder and environment; the process group and the pipes are added here.
    pub command: Command,
    /// How its processes are told from all others.
    pub mark: Mark,
    /// Whether it gets something to read.
    pub stdin: bool,
}

/// An entry of the environment that no other process has.
pub(super) enum Mark {
    /// This variable names an answer file in a new folder.
    AnswerFile(&'static str),
    /// This variable has a value of its own.
    Variable(&'static str, String),
}

/// A command that runs.
pub(super) struct Process {
    guard: Guard,
    exited: oneshot::Receiver<()>,
    finished: oneshot::Receiver<Finished>,
}

/// What a running command reads and writes.
pub(super) struct Pipes {
    pub stdin: Option<ChildStdin>,
    pub stdout: ChildStdout,
    pub stderr: ChildStderr,
}

/// Why a command was not started.
#[derive(Debug)]
pub(super) enum StartError {
    /// No folder for the answer file could be made.
    Folder(io::Error),
    /// The system refused to start the program.
    Program(io::Error),
    /// No thread or pipe to be had.
    Resources(io::Error),
}

/// How a command ended.
pub(super) struct Finished {
    /// Its status; an error if somebody else reaped it.
    pub status: io::Result<ExitStatus>,
    /// What it left in its answer file, if it was given one.
    pub answer: Result<Option<Vec<u8>>, String>,
}

/// How a supervised command ended.
pub(super) struct Ended<S> {
    pub finished: Finished,
    /// Why it was told to end, if it was.
    pub stopped: Option<S>,
}

impl Process {
    /// Starts the command. Everything that may block, the start included, happens on the child's own thread.
    ///
    /// # Errors
    /// Nothing runs then.
    ///
    /// # Cancel safety
    /// Dropped at any point, what was or will be started is killed and reaped.
    pub(super) async fn start(plan: Plan) -> Result<(Self, Pipes), StartError> {
        let group = Arc::new(Group::new());
        let (started, pipes) = oneshot::channel();
        let (exit, exited) = oneshot::channel();
        let (finish, finished) = oneshot::channel();
        let (release, released) = mpsc::channel();
        let guard = Guard { group: Arc::clone(&group), release };
        std::thread::Builder::new()
            .name("evenkeel-exec".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || own(plan, &group, Reports { started, exit, finish }, &released))
            .map_err(StartError::Resources)?;
        let pipes = pipes.await.unwrap_or_else(|_| Err(StartError::Resources(thread_ended())))?;
        Ok((Self { guard, exited, finished }, pipes.watched().map_err(StartError::Resources)?))
    }

    /// Waits for the end of the command while it is fed and drained. When `stop` resolves, its group gets SIGTERM, and
    /// after `grace` SIGKILL. What is left of the group when the command has ended is killed, at the latest [`DRAIN`]
    /// later; after a stop, or when something still holds the pipes, strays are looked for too.
    ///
    /// # Cancel safety
    /// Dropped at any point, the group is killed at once and reaped.
    pub(super) async fn supervise<S>(
        self,
        feed: impl Future<Output = ()>,
        drain: impl Future<Output = ()>,
        stop: impl Future<Output = S>,
        grace: Duration,
    ) -> Ended<S> {
        let Self { guard, mut exited, finished } = self;
        let (mut feed, mut drain, mut stop) = (pin!(feed), pin!(drain), pin!(stop));
        let (mut fed, mut drained, mut stopped, mut killed) = (false, false, None, false);
        let mut kill = pin!(sleep_until(Instant::now() + DURATION_MAX));
        loop {
            tokio::select! {
                biased;
                _ = &mut exited => break,
                why = &mut stop, if stopped.is_none() => {
                    stopped = Some(why);
                    guard.group.signal(Signal::TERM);
                    kill.as_mut().reset(Instant::now() + grace);
                }
                () = &mut kill, if !killed => {
                    killed = true;
                    guard.group.signal(Signal::KILL);
                }
                () = &mut feed, if !fed => fed = true,
                () = &mut drain, if !drained => drained = true,
            }
        }
        if !drained {
            drained = timeout(DRAIN, drain).await.is_ok();
        }
        let how = if drained && stopped.is_none() { Release::Clean } else { Release::LookForStrays };
        // The thread waits for this; if it is gone, the next line says so.
        let _ = guard.release.send(how);
        let gone = |_| Finished { status: Err(thread_ended()), answer: Ok(None) };
        Ended { finished: finished.await.unwrap_or_else(gone), stopped }
    }
}

fn thread_ended() -> io::Error {
    io::Error::other("the thread that waits for it has ended")
}

/// Kills the group when nobody wants the command any more.
struct Guard {
    group: Arc<Group>,
    release: mpsc::Sender<Release>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.group.abandon();
    }
}

/// What is to be done once the leader has ended. If it is never said, the future was dropped.
enum Release {
    Clean,
    LookForStrays,
}

/// What the thread tells the future, in this order.
struct Reports {
    started: oneshot::Sender<Result<RawPipes, StartError>>,
    exit: oneshot::Sender<()>,
    finish: oneshot::Sender<Finished>,
}

/// The life of a child, on a thread of its own.
fn own(plan: Plan, group: &Group, reports: Reports, released: &mpsc::Receiver<Release>) {
    let (mut child, mark, answer) = match launch(plan) {
        Ok(launched) => launched,
        Err(error) => {
            let _ = reports.started.send(Err(error));
            return;
        }
    };
    let leader = Pid::from_child(&child);
    group.started(leader);
    // Whoever does not listen any more has told the group by dropping its guard.
    let _ = reports.started.send(Ok(RawPipes::of(&mut child)));
    wait_unreaped(leader);
    let _ = reports.exit.send(());
    let release = released.recv().unwrap_or(Release::LookForStrays);
    group.close();
    let status = child.wait();
    if matches!(release, Release::LookForStrays) {
        strays::kill_marked(&mark);
    }
    let answer = answer.map_or(Ok(None), |file| file.read());
    let _ = reports.finish.send(Finished { status, answer });
}

fn launch(plan: Plan) -> Result<(Child, Vec<u8>, Option<AnswerFile>), StartError> {
    let Plan { mut command, mark, stdin } = plan;
    let (name, value, answer) = match mark {
        Mark::Variable(name, value) => (name, OsString::from(value), None),
        Mark::AnswerFile(name) => {
            let answer = AnswerFile::new().map_err(StartError::Folder)?;
            (name, answer.path().as_os_str().to_owned(), Some(answer))
        }
    };
    let mark = [name.as_bytes(), b"=", value.as_bytes()].concat();
    command
        .env(name, value)
        .process_group(0)
        .stdin(if stdin { Stdio::piped() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let child = command.spawn().map_err(StartError::Program)?;
    Ok((child, mark, answer))
}

/// Waits for the end of a child and leaves its number to it.
fn wait_unreaped(child: Pid) {
    // An error other than an interruption means that somebody else reaped it; `Child::wait` says so afterwards.
    let observe = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    while matches!(waitid(WaitId::Pid(child), observe), Err(Errno::INTR)) {}
}

/// The pipes as they come from the system.
struct RawPipes {
    stdin: Option<std::process::ChildStdin>,
    stdout: Option<std::process::ChildStdout>,
    stderr: Option<std::process::ChildStderr>,
}

impl RawPipes {
    fn of(child: &mut Child) -> Self {
        Self { stdin: child.stdin.take(), stdout: child.stdout.take(), stderr: child.stderr.take() }
    }

    fn watched(self) -> io::Result<Pipes> {
        let missing = || io::Error::other("a pipe is missing");
        Ok(Pipes {
            stdin: self.stdin.map(ChildStdin::from_std).transpose()?,
            stdout: ChildStdout::from_std(self.stdout.ok_or_else(missing)?)?,
            stderr: ChildStderr::from_std(self.stderr.ok_or_else(missing)?)?,
        })
    }
}

/// Writes what the command is to read, and closes the pipe. A command that does not read is none the worse.
pub(super) async fn feed(pipe: Option<ChildStdin>, input: &[u8]) {
    if let Some(mut pipe) = pipe {
        let _ = pipe.write_all(input).await;
    }
}

/// Reads a pipe to its end and passes on what comes.
pub(super) async fn drain(mut pipe: impl AsyncRead + Unpin, mut take: impl FnMut(&[u8])) {
    let mut chunk = vec![0; CHUNK_BYTES];
    while let Ok(count @ 1..) = pipe.read(&mut chunk).await {
        take(&chunk[..count]);
    }
}
