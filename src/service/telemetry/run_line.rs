//! The line of a run, for people: in the log while it runs and in `evenkeel journal` afterwards, the same text.
//!
//! ```text
//! 12:00:01 done  prod/Database/orders  attempt 1  31 ms  shard 7  cause orders/7@991
//! 12:00:02 failed  zone-a  attempt 2  1.2 s  shard 0  cause all  next in 500 ms: no route to host
//! ```
//!
//! Must never print a character that a terminal obeys. Tested by golden lines below and in `tests/it/logs.rs`.

use std::fmt;

use anstyle::{AnsiColor, Style};

use super::text::{printable, seconds};

/// What a line says of one run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RunLine {
    /// The time of day, as it is printed.
    pub time: String,
    /// How it ended (a name of `RunOutcome`).
    pub outcome: String,
    /// The id.
    pub id: String,
    /// Which attempt it was, from 1.
    pub attempt: u64,
    /// How long it took.
    pub duration_seconds: f64,
    /// Its shard.
    pub shard: u64,
    /// Why it ran, the first causes in words, set apart by a comma and a space.
    pub causes: String,
    /// How many causes there were besides.
    pub more_causes: u64,
    /// In how many seconds it runs next, if that is known.
    pub next_seconds: Option<f64>,
    /// Its error, or its line for people.
    pub message: Option<String>,
    /// Whether to colour it.
    pub colour: bool,
}

impl fmt::Display for RunLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (dim, mark) = match self.colour {
            true => (Style::new().dimmed(), outcome_style(&self.outcome)),
            false => (Style::new(), Style::new()),
        };
        write!(f, "{dim}{}{dim:#} {mark}{}{mark:#}  {}", self.time, printable(&self.outcome), printable(&self.id))?;
        write!(f, "  {dim}attempt {}  {}  shard {}", self.attempt, seconds(self.duration_seconds), self.shard)?;
        if !self.causes.is_empty() {
            write!(f, "  cause {}", printable(&self.causes))?;
        }
        if self.more_causes > 0 {
            write!(f, " and {} more", self.more_causes)?;
        }
        if let Some(next) = self.next_seconds {
            write!(f, "  next in {}", seconds(next))?;
        }
        write!(f, "{dim:#}")?;
        match &self.message {
            Some(message) => write!(f, ": {}", printable(message)),
            None => Ok(()),
        }
    }
}

/// Green went well, yellow is tried again, red waits for somebody.
fn outcome_style(outcome: &str) -> Style {
    let colour = match outcome {
        "done" | "requeued" => AnsiColor::Green,
        "given_up" | "panicked" => AnsiColor::Red,
        _ => AnsiColor::Yellow,
    };
    Style::new().fg_color(Some(colour.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line() -> RunLine {
        RunLine {
            time: "12:00:01".into(),
            outcome: "done".into(),
            id: "prod/Database/orders".into(),
            attempt: 1,
            duration_seconds: 0.031,
            shard: 7,
            causes: "orders/7@991".into(),
            ..RunLine::default()
        }
    }

    #[test]
    fn t5_a_run_reads_as_documented() {
        assert_eq!(
            line().to_string(),
            "12:00:01 done  prod/Database/orders  attempt 1  31 ms  shard 7  cause orders/7@991"
        );
        let failed = RunLine {
            outcome: "failed".into(),
            more_causes: 2,
            next_seconds: Some(0.5),
            message: Some("no route\n\u{1b}[2J".into()),
            ..line()
        };
        assert_eq!(
            failed.to_string(),
            "12:00:01 failed  prod/Database/orders  attempt 1  31 ms  shard 7  cause orders/7@991 and 2 more  \
             next in 500 ms: no route\\n\\u{1b}[2J"
        );
    }

    #[test]
    fn colour_changes_nothing_but_colour() {
        let coloured = RunLine { colour: true, ..line() }.to_string();
        assert!(coloured.contains("\u{1b}[32mdone\u{1b}[0m"), "{coloured:?}");
        assert_eq!(anstream::adapter::strip_str(&coloured).to_string(), line().to_string());
    }
}
