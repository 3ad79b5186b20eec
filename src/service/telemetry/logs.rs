//! Log lines: one spare human form, one JSON form with stable keys; both to standard error.
//!
//! Must never block the caller (see `writer`), print a control character in the human form, or take a level from
//! anywhere but its argument. Tested by golden lines below and in `tests/it/logs.rs`.
//!
//! # The event of a run
//! The engine emits one event per ended run with target [`RUN_TARGET`] and these fields, which are the keys of the JSON
//! form and the parts of the human line (`run_line`); the types are those of `tracing`:
//!
//! | field | type | meaning |
//! |---|---|---|
//! | `outcome` | str | the name of the `RunOutcome` |
//! | `id` | str | the id |
//! | `attempt` | u64 | which attempt it was, from 1 |
//! | `duration_seconds` | f64 | how long the run took |
//! | `shard`, `worker` | u64 | where it ran |
//! | `causes` | str | the first causes in words, set apart by commas |
//! | `more_causes` | u64 | how many causes there were besides |
//! | `next_seconds` | f64, optional | in how many seconds it runs next |
//! | `message` | str | its error, or its line for people; empty or missing where there is none |
//!
//! Level: `DEBUG` for a success that changed nothing, `INFO` for the other successes and for `cancelled`, `WARN` for
//! `failed` and `timed_out`, `ERROR` for `given_up` and `panicked`.

use std::fmt;
use std::io;
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use jiff::ZonedDateTime;
use tracing::field::{Field, Visit};
use tracing::{Dispatch, Event, Level, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

pub use crate::engine::RUN_TARGET;

use super::otlp::Bridge;
use super::run_line::RunLine;
use super::text::printable;
use super::writer::LogWriter;

/// How long the end of the process waits for the reader of the log.
const FLUSH_MAX: Duration = Duration::from_secs(2);

/// The form of the lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// For people.
    #[default]
    Human,
    /// A JSON object a line.
    Json,
}

/// What a line needs to know besides its event.
#[derive(Debug, Clone, Copy)]
pub struct LogOptions {
    /// The form.
    pub format: LogFormat,
    /// Whether human lines are coloured.
    pub colour: bool,
    /// What time it is.
    pub now: fn() -> ZonedDateTime,
}

/// The log cannot be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The level makes no sense.
    #[error(
        "log level {0:?} makes no sense; use off, error, warn, info, debug or trace, or a list of targets such as \
         `info,evenkeel::run=warn`"
    )]
    Level(String),
    /// The system gives no thread for the log.
    #[error("cannot start the thread that writes the log: {0}")]
    Thread(#[source] io::Error),
    /// Somebody has set up a log before.
    #[error("a log is set up already in this process")]
    Twice,
}

/// Writes out what is left when it is dropped: keep it until the end of `main`.
#[must_use = "dropping it at once flushes the log too early"]
pub struct LogGuard(LogWriter);

impl Drop for LogGuard {
    fn drop(&mut self) {
        self.0.flush(FLUSH_MAX);
    }
}

/// Sets the process's log up: lines go to standard error, coloured on a terminal only and never with `NO_COLOR`, and
/// over the bridge, where there is one.
///
/// # Errors
/// See [`LogError`].
pub fn init(format: LogFormat, level: &str, bridge: Option<Bridge>) -> Result<LogGuard, LogError> {
    let stderr = io::stderr();
    let colour = anstream::AutoStream::choice(&stderr) != anstream::ColorChoice::Never;
    let writer = LogWriter::start(stderr).map_err(LogError::Thread)?;
    let options = LogOptions { format, colour, now: ZonedDateTime::now };
    let dispatch = bridged(options, level, writer.clone(), bridge)?;
    // Libraries that speak the older `log` (librdkafka's binding does) are heard too; the filter decides what is
    // written.
    dispatch.try_init().map_err(|_| LogError::Twice)?;
    Ok(LogGuard(writer))
}

/// Where events go that become lines in this form, from this level on, on this writer.
///
/// # Errors
/// The level makes no sense.
pub fn dispatch<W>(options: LogOptions, level: &str, writer: W) -> Result<Dispatch, LogError>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    bridged(options, level, writer, None)
}

fn bridged<W>(options: LogOptions, level: &str, writer: W, bridge: Option<Bridge>) -> Result<Dispatch, LogError>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let builder = tracing_subscriber::fmt().with_env_filter(filter(level)?).with_writer(writer);
    Ok(match options.format {
        LogFormat::Human => builder.event_format(Human(options)).finish().with(bridge).into(),
        LogFormat::Json => builder
            .json()
            .flatten_event(true)
            .with_current_span(false)
            .with_span_list(false)
            .with_timer(Utc(options.now))
            .finish()
            .with(bridge)
            .into(),
    })
}

/// What the exporters of OTLP say of each export that failed; evenkeel says it in one line for many (B77).
const EXPORTERS: &str = "opentelemetry-otlp=off";

/// A plain level is evenkeel's own: libraries speak from `warn` on, or as far as asked by name.
fn filter(level: &str) -> Result<EnvFilter, LogError> {
    let bad = || LogError::Level(level.to_owned());
    let words = ["off", "error", "warn", "info", "debug", "trace"];
    let directives = match words.contains(&level) {
        true if matches!(level, "off" | "error" | "warn") => format!("{level},{EXPORTERS}"),
        true => format!("warn,evenkeel={level},{EXPORTERS}"),
        false if level.trim().is_empty() => return Err(bad()),
        false => level.to_owned(),
    };
    // A lone word would be read as a target that is written at every level: a misspelt level would be a flood.
    if directives.split(',').any(|part| !part.contains('=') && !words.contains(&part.trim())) {
        return Err(bad());
    }
    EnvFilter::try_new(directives).map_err(|_| bad())
}

/// The time of a JSON line.
struct Utc(fn() -> ZonedDateTime);

impl FormatTime for Utc {
    fn format_time(&self, w: &mut Writer<'_>) -> fmt::Result {
        write!(w, "{:.6}", (self.0)().timestamp())
    }
}

/// The human form.
struct Human(LogOptions);

impl<S, N> FormatEvent<S, N> for Human
where
    S: Subscriber + for<'s> LookupSpan<'s>,
    N: for<'w> FormatFields<'w> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut out: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let time = (self.0.now)().strftime("%H:%M:%S").to_string();
        if event.metadata().target() == RUN_TARGET {
            let mut run = RunLine { time, colour: self.0.colour, ..RunLine::default() };
            event.record(&mut run);
            return writeln!(out, "{run}");
        }
        let mut fields = Fields::default();
        event.record(&mut fields);
        let level = event.metadata().level();
        let (dim, mark) = match self.0.colour {
            true => (Style::new().dimmed(), level_style(level)),
            false => (Style::new(), Style::new()),
        };
        let level = level.as_str().to_ascii_lowercase();
        writeln!(out, "{dim}{time}{dim:#} {mark}{level}{mark:#}{}{dim}{}{dim:#}", fields.message, fields.rest)
    }
}

fn level_style(level: &Level) -> Style {
    let colour = match *level {
        Level::ERROR => AnsiColor::Red,
        Level::WARN => AnsiColor::Yellow,
        Level::INFO => AnsiColor::Green,
        _ => AnsiColor::BrightBlack,
    };
    Style::new().fg_color(Some(colour.into()))
}

/// The fields of any other event: the message, then `key=value`.
#[derive(Default)]
struct Fields {
    message: String,
    rest: String,
}

impl Fields {
    fn add(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => self.message = format!("  {}", printable(value)),
            // What the bridge from `log` adds says nothing to people.
            name if name.starts_with("log.") => {}
            name => self.rest.extend(["  ", name, "=", &printable(value)]),
        }
    }
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, &format!("{value:?}"));
    }
}

impl Visit for RunLine {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "outcome" => self.outcome = value.to_owned(),
            "id" => self.id = value.to_owned(),
            "causes" => self.causes = value.split(',').map(str::trim).collect::<Vec<_>>().join(", "),
            "message" => self.message = Some(value.to_owned()).filter(|message| !message.is_empty()),
            _ => {}
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            "attempt" => self.attempt = value,
            "shard" => self.shard = value,
            "more_causes" => self.more_causes = value,
            _ => {}
        }
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        match field.name() {
            "duration_seconds" => self.duration_seconds = value,
            "next_seconds" => self.next_seconds = Some(value),
            _ => {}
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i2_a_level_that_makes_no_sense_is_refused() {
        for level in ["", " ", "verbose", "inof", "evenkeel", "evenkeel=loud", "info,verbose", "info,=", "Info "] {
            assert!(matches!(filter(level), Err(LogError::Level(text)) if text == level), "{level:?}");
        }
    }

    #[test]
    fn a_plain_level_leaves_libraries_at_warn() {
        for (level, directives) in [
            ("off", "opentelemetry-otlp=off,off"),
            ("warn", "opentelemetry-otlp=off,warn"),
            ("info", "opentelemetry-otlp=off,evenkeel=info,warn"),
            ("trace", "opentelemetry-otlp=off,evenkeel=trace,warn"),
            ("info,evenkeel::run=warn", "evenkeel::run=warn,info"),
        ] {
            assert_eq!(filter(level).unwrap().to_string(), directives, "{level}");
        }
    }
}
