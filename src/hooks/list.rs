//! The lists of ids for a resync (Q9): by HTTP or by a command, one id a line or a JSON array.
//!
//! A list is taken in as a whole before any of it is handed on: only status 200 with a whole body, or exit status 0, is
//! a list, and nothing is concluded from anything else. Must never hold it in memory as a whole, nor wait beyond its
//! time for its source. Tested against real servers and processes in `tests`.

use std::io::{BufRead, BufReader, Read};
use std::time::Duration;

use reqwest::StatusCode;
use reqwest::header::{CONTENT_ENCODING, HeaderValue};
use serde::de::{DeserializeSeed, Deserializer, Error as _, SeqAccess, Visitor};
use tokio::io::AsyncReadExt;
use tokio::sync::{Notify, mpsc};

use super::HookError;
use super::command::{ExecSettings, Program};
use super::exec::how_it_ended;
use super::http::{HttpSettings, Target, describe, read_start, shown_location};
use super::output::{Output, Stream};
use super::process::{Ended, Mark, Plan, Process, drain};
pub use super::spool::LIST_BYTES_MAX;
use super::spool::{Spool, SpoolError};
use super::stop::Stop;
use super::text::ERROR_BYTES_MAX;
use crate::contract::{BoxFuture, IdList, ListError};
use crate::id::ID_BYTES_MAX;

/// How long a source may take for a list by default. Handing it on does not count.
pub const LIST_TIMEOUT_DEFAULT: Duration = Duration::from_secs(5 * 60);
/// How much of a line is read; what is longer is no id, and passed on so far that it is refused as such.
const LINE_BYTES_MAX: u64 = 2 * ID_BYTES_MAX as u64;

/// Reads the ids from a URL.
pub struct HttpList {
    target: Target,
    timeout: Duration,
    pub(super) bytes_max: usize,
}

impl HttpList {
    /// A list that is read by GET; `timeout` is how long the server may take for the whole of it.
    ///
    /// # Errors
    /// A setting that cannot be used: the URL, a header, a file.
    pub fn new(settings: HttpSettings, timeout: Duration) -> Result<Self, HookError> {
        Ok(Self { target: Target::new(settings)?, timeout, bytes_max: LIST_BYTES_MAX })
    }

    async fn fetch(&self) -> Result<impl Read + Send + use<>, String> {
        let call = self.target.call().map_err(|error| error.to_string())?;
        let clean = |text: &str| call.secrets.clean(text, ERROR_BYTES_MAX);
        let broken = |error: reqwest::Error| clean(&describe(&error.without_url()));
        let request = call.client.get(self.target.url()).headers(call.headers);
        let mut response = request.send().await.map_err(broken)?;
        let status = response.status();
        if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
            self.target.forget_credentials();
        }
        if let Some(location) = shown_location(response.url(), response.headers()).filter(|_| status.is_redirection()) {
            return Err(format!(
                "answered {status}: redirects are not followed; if {location} is right, use it as url"
            ));
        }
        if status != StatusCode::OK {
            let text = read_start(&mut response, ERROR_BYTES_MAX).await;
            return Err(clean(&format!("answered {status}, not 200: {}", String::from_utf8_lossy(&text))));
        }
        let encoding = response.headers().get(CONTENT_ENCODING).map(HeaderValue::as_bytes);
        if encoding.is_some_and(|encoding| !encoding.eq_ignore_ascii_case(b"identity")) {
            return Err("the answer is compressed, which was not asked for".to_owned());
        }
        let mut spool = Spool::new(self.bytes_max);
        while let Some(chunk) = response.chunk().await.map_err(broken)? {
            spool.write(&chunk).await.map_err(|error| error.to_string())?;
        }
        spool.finish().await.map_err(|error| error.to_string())
    }

    async fn run(&self, into: mpsc::Sender<String>) -> Result<u64, ListError> {
        let shown = self.target.shown();
        let fetched = tokio::time::timeout(self.timeout, self.fetch()).await;
        let list = fetched.unwrap_or_else(|_| Err(Stop::Timeout(self.timeout).to_string()));
        let list = list.map_err(|reason| ListError(format!("GET {shown}: {reason}")))?;
        hand_on(list, into, shown).await
    }
}

impl IdList for HttpList {
    fn list(&self, into: mpsc::Sender<String>) -> BoxFuture<'_, Result<u64, ListError>> {
        Box::pin(self.run(into))
    }
}

/// Reads the ids from a command's standard output.
pub struct ExecList {
    program: Program,
    timeout: Duration,
    pub(super) bytes_max: usize,
}

impl ExecList {
    /// A list that a command writes; `timeout` is how long it may take for the whole of it.
    ///
    /// # Errors
    /// A setting that cannot be used: an empty command, a name that is no variable's.
    pub fn new(settings: ExecSettings, timeout: Duration) -> Result<Self, HookError> {
        Ok(Self { program: Program::new(settings)?, timeout, bytes_max: LIST_BYTES_MAX })
    }

    async fn collect(&self) -> Result<impl Read + Send + use<>, String> {
        let mut command = self.program.command();
        command
            .env("EVENKEEL_OPERATION", "list")
            .env("EVENKEEL_TIMEOUT_SECONDS", self.timeout.as_secs_f64().to_string());
        let plan = Plan { command, mark: Mark::Variable("EVENKEEL_RUN", list_name()), stdin: false };
        let started = tokio::time::timeout(self.timeout, Process::start(plan)).await;
        let started = started.map_err(|_| Stop::Timeout(self.timeout).to_string())?;
        let (process, pipes) = started.map_err(|error| self.program.explain(&error))?;
        let secrets = self.program.secrets();
        let mut errors = Output::new("(list)", Stream::Stderr, &secrets);
        let (mut spool, mut full, stop) = (Spool::new(self.bytes_max), Ok(()), Notify::new());
        let drained = async {
            let ids = async {
                full = take_in(pipes.stdout, &mut spool).await;
                if full.is_err() {
                    stop.notify_one();
                }
            };
            tokio::join!(ids, drain(pipes.stderr, |chunk| errors.take(chunk)));
        };
        let stopped = async {
            tokio::select! {
                () = Stop::after(Some(self.timeout)) => Stop::Timeout(self.timeout).to_string(),
                () = stop.notified() => "it was stopped".to_owned(),
            }
        };
        let ended = process.supervise(async {}, drained, stopped, self.program.term_grace).await;
        errors.end();
        full.map_err(|error| error.to_string())?;
        self.check(ended, &errors.last_lines())?;
        spool.finish().await.map_err(|error| error.to_string())
    }

    fn check(&self, ended: Ended<String>, errors: &str) -> Result<(), String> {
        let separator = if errors.is_empty() { "" } else { ": " };
        let shown = self.program.shown();
        if let Some(why) = ended.stopped {
            return Err(format!("{shown}: {why}{separator}{errors}"));
        }
        match ended.finished.status {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(format!("{shown} {}{separator}{errors}", how_it_ended(status))),
            Err(error) => Err(format!("{shown}: its exit status is unknown: {error}")),
        }
    }

    async fn run(&self, into: mpsc::Sender<String>) -> Result<u64, ListError> {
        let list = self.collect().await.map_err(|reason| ListError(format!("list: {reason}")))?;
        hand_on(list, into, self.program.shown()).await
    }
}

impl IdList for ExecList {
    fn list(&self, into: mpsc::Sender<String>) -> BoxFuture<'_, Result<u64, ListError>> {
        Box::pin(self.run(into))
    }
}

async fn take_in(mut pipe: tokio::process::ChildStdout, spool: &mut Spool) -> Result<(), SpoolError> {
    let mut chunk = vec![0; 64 * 1024];
    loop {
        match pipe.read(&mut chunk).await.map_err(SpoolError::Source)? {
            0 => return Ok(()),
            count => spool.write(&chunk[..count]).await?,
        }
    }
}

/// A name for one call of a list, unlike that of any other on this machine.
fn list_name() -> String {
    use std::sync::atomic::{AtomicU64, Ordering};
    static CALLS: AtomicU64 = AtomicU64::new(0);
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_nanos());
    format!("list-{}-{now}-{}", std::process::id(), CALLS.fetch_add(1, Ordering::Relaxed))
}

/// Hands the ids of a whole list on, on a thread that may wait for room as long as it takes.
async fn hand_on(list: impl Read + Send + 'static, into: mpsc::Sender<String>, shown: &str) -> Result<u64, ListError> {
    let sent = tokio::task::spawn_blocking(move || send_ids(BufReader::new(list), &into)).await;
    let sent = sent.unwrap_or_else(|error| Err(error.to_string()));
    let Sent { ids, unreadable } = sent.map_err(|reason| ListError(format!("the list of {shown}: {reason}")))?;
    if unreadable > 0 {
        tracing::warn!(
            target: "evenkeel::hook",
            "the list of {shown} has {unreadable} lines that are not UTF-8; they are passed over"
        );
    }
    Ok(ids)
}

/// What became of the lines of a list.
#[derive(Debug, Default, PartialEq, Eq)]
struct Sent {
    ids: u64,
    unreadable: u64,
}

/// Sends every id of a list: a JSON array if it begins with `[`, else one id a line.
fn send_ids(mut list: impl BufRead, into: &mpsc::Sender<String>) -> Result<Sent, String> {
    let first = loop {
        let buffer = list.fill_buf().map_err(|error| error.to_string())?;
        let (length, first) = (buffer.len(), buffer.iter().find(|b| !b.is_ascii_whitespace()).copied());
        if first.is_some() || length == 0 {
            break first;
        }
        list.consume(length);
    };
    if first == Some(b'[') { send_array(list, into) } else { send_lines(list, into) }
}

fn send_array(list: impl Read, into: &mpsc::Sender<String>) -> Result<Sent, String> {
    let mut json = serde_json::Deserializer::from_reader(list);
    let ids = Array(into).deserialize(&mut json).map_err(|error| error.to_string())?;
    json.end().map_err(|error| error.to_string())?;
    Ok(Sent { ids, unreadable: 0 })
}

/// Sends the texts of a JSON array while it is read.
struct Array<'a>(&'a mpsc::Sender<String>);

impl<'de> DeserializeSeed<'de> for Array<'_> {
    type Value = u64;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<u64, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Array<'_> {
    type Value = u64;
    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a JSON array of texts")
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<u64, A::Error> {
        let mut count = 0;
        while let Some(id) = seq.next_element::<String>()? {
            self.0.blocking_send(id).map_err(|_| A::Error::custom(GONE))?;
            count += 1;
        }
        Ok(count)
    }
}

/// Said when the receiver does not want the rest.
const GONE: &str = "nobody takes the ids any more";

fn send_lines(mut list: impl BufRead, into: &mpsc::Sender<String>) -> Result<Sent, String> {
    let (mut sent, mut line) = (Sent::default(), Vec::new());
    loop {
        line.clear();
        list.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line).map_err(|error| error.to_string())?;
        if line.is_empty() {
            return Ok(sent);
        }
        let whole = line.ends_with(b"\n") || (line.len() as u64) < LINE_BYTES_MAX;
        if !whole {
            list.skip_until(b'\n').map_err(|error| error.to_string())?;
        }
        match id_of(&line, whole) {
            Some("") => {}
            Some(id) => {
                into.blocking_send(id.to_owned()).map_err(|_| GONE.to_owned())?;
                sent.ids += 1;
            }
            None => sent.unreadable += 1,
        }
    }
}

/// The id on a line; of one that is too long for an id, as much as shows that it is.
fn id_of(line: &[u8], whole: bool) -> Option<&str> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    match std::str::from_utf8(line) {
        Ok(id) => Some(id),
        // Cut in the middle of a character.
        Err(error) if !whole && error.error_len().is_none() => std::str::from_utf8(&line[..error.valid_up_to()]).ok(),
        Err(_) => None,
    }
}
