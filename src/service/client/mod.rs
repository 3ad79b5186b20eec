//! The verbs that ask a running process, over its HTTP API.
//!
//! Must never read the engine's memory or the config: it knows the API alone. What is printed for programs is what the
//! API answers (docs/http-api.md); what is printed for people may change. Tested in `tests/it/client.rs` against a
//! listening server.

mod api;
mod ids;
mod journal;
mod look;
mod out;
mod progress;
mod steer;
mod trigger;

use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};

use self::api::Api;
use super::cli::GlobalArgs;
use crate::engine::view::IdState;

pub use self::out::Terminal;

/// A verb that asks a running process.
#[derive(Debug, Subcommand)]
pub enum ClientVerb {
    /// Look at these ids now, through the running process
    ///
    /// Says per id what became of it. Exit code 1 if one was not admitted, or with --wait, if one did not succeed.
    #[command(after_help = TRIGGER)]
    Trigger(TriggerArgs),
    /// Show the running process at a glance
    #[command(after_help = STATUS)]
    Status,
    /// Say whether the running process is well; exit code 1 if not, for health checks
    ///
    /// Needs no token, nothing but this program, and asks nothing but the process.
    #[command(after_help = HEALTH)]
    Health {
        /// Also ask whether it takes events: everything has started and nothing is full
        #[arg(long)]
        ready: bool,
    },
    /// List the shards and who leads them
    #[command(after_help = SHARDS)]
    Shards,
    /// List what waits, runs, is delayed or parked
    #[command(after_help = QUEUES)]
    Queues(QueuesArgs),
    /// Show the last runs, of all ids or of one
    #[command(after_help = JOURNAL)]
    Journal(JournalArgs),
    /// Say why an id runs, waits, or does not
    #[command(after_help = EXPLAIN)]
    Explain {
        /// The id
        id: String,
    },
    /// Release parked ids, with a fresh count of attempts
    #[command(after_help = REDRIVE)]
    Redrive(RedriveArgs),
    /// End the runs of these ids, or their wait, and park them
    #[command(after_help = CANCEL)]
    Cancel {
        /// Ids
        #[arg(value_name = "ID", required = true)]
        ids: Vec<String>,
    },
    /// Stop the running process gracefully, as SIGTERM does
    #[command(after_help = DRAIN)]
    Drain,
}

/// What to trigger.
#[derive(Debug, Clone, Args)]
pub struct TriggerArgs {
    /// Ids; - reads them from standard input, one a line, as they come
    #[arg(value_name = "ID", required = true)]
    pub ids: Vec<String>,
    /// Wait until the runs have ended, and say how
    #[arg(long)]
    pub wait: bool,
    /// Wait until the ids are owed durably, so that they run even after a crash
    #[arg(long, conflicts_with = "wait")]
    pub durable: bool,
}

/// What to list.
#[derive(Debug, Clone, Args)]
pub struct QueuesArgs {
    /// Only ids in this state: pending, running, delayed or parked
    #[arg(long, value_enum, hide_possible_values = true)]
    pub state: Option<StateArg>,
    /// Only ids of this shard
    #[arg(long, value_name = "N")]
    pub shard: Option<u16>,
    /// At most so many
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
}

/// A state that an id can be listed in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum StateArg {
    /// Owed a run.
    Pending,
    /// Running.
    Running,
    /// Waiting for a time.
    Delayed,
    /// Waiting for somebody.
    Parked,
}

impl From<StateArg> for IdState {
    fn from(state: StateArg) -> Self {
        match state {
            StateArg::Pending => Self::Pending,
            StateArg::Running => Self::Running,
            StateArg::Delayed => Self::Delayed,
            StateArg::Parked => Self::Parked,
        }
    }
}

/// Which runs to show.
#[derive(Debug, Clone, Args)]
pub struct JournalArgs {
    /// Only runs of this id
    pub id: Option<String>,
    /// At most so many, the latest ones
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub limit: u16,
    /// Go on as runs end
    #[arg(long, short)]
    pub follow: bool,
}

/// What to release.
#[derive(Debug, Clone, Args)]
#[group(required = true, multiple = false)]
pub struct RedriveArgs {
    /// Ids
    #[arg(value_name = "ID")]
    pub ids: Vec<String>,
    /// All parked ids that match; * stands for any text
    #[arg(long = "match", value_name = "PATTERN")]
    pub pattern: Option<String>,
}

const TRIGGER: &str = "\
Examples:
  evenkeel trigger cust-42 cust-43
  evenkeel trigger --wait cust-42            wait for the run, and say how it ended
  evenkeel trigger -- -an-id-with-a-dash
  psql -Atc 'select id from customers' | evenkeel trigger -";

const STATUS: &str = "\
Examples:
  evenkeel status
  evenkeel status -o json --server http://10.0.0.7:7070 --token-file token";

const HEALTH: &str = "\
Examples:
  evenkeel health                            as a container's health check
  evenkeel health --ready --server http://127.0.0.1:7071";

const SHARDS: &str = "\
Examples:
  evenkeel shards";

const QUEUES: &str = "\
Examples:
  evenkeel queues
  evenkeel queues --state parked             what waits for somebody, and why
  evenkeel queues --shard 7 --limit 1000 -o json";

const JOURNAL: &str = "\
Examples:
  evenkeel journal
  evenkeel journal cust-42
  evenkeel journal --follow -o json          a JSON object a line";

const EXPLAIN: &str = "\
Examples:
  evenkeel explain cust-42";

const REDRIVE: &str = "\
Examples:
  evenkeel redrive cust-42
  evenkeel redrive --match 'cust-*'";

const CANCEL: &str = "\
Examples:
  evenkeel cancel cust-42
  evenkeel redrive cust-42                   let it run again";

const DRAIN: &str = "\
Examples:
  evenkeel drain";

impl ClientVerb {
    /// Asks, and prints the answer.
    ///
    /// # Errors
    /// The process does not answer, or says no.
    ///
    /// # Cancel safety
    /// Safe: what was asked for may have been done.
    pub async fn run(self, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
        self.run_on(global, Terminal::of_process()).await
    }

    /// The same, with other ends than the process's standard input, output and error.
    ///
    /// # Errors
    /// The process does not answer, or says no.
    ///
    /// # Cancel safety
    /// Safe: what was asked for may have been done.
    pub async fn run_on(self, global: &GlobalArgs, mut terminal: Terminal) -> anyhow::Result<ExitCode> {
        let api = Api::new(&global.server, global.token_file.as_deref())?;
        terminal.form = global.output;
        let ok = match self {
            Self::Trigger(args) => trigger::trigger(&api, args, &mut terminal).await?,
            Self::Status => look::status(&api, &mut terminal).await?,
            Self::Health { ready } => look::health(&api, ready, &mut terminal).await?,
            Self::Shards => look::shards(&api, &mut terminal).await?,
            Self::Queues(args) => look::queues(&api, &args, &mut terminal).await?,
            Self::Journal(args) => journal::journal(&api, &args, &mut terminal).await?,
            Self::Explain { id } => look::explain(&api, &id, &mut terminal).await?,
            Self::Redrive(args) => steer::redrive(&api, args, &mut terminal).await?,
            Self::Cancel { ids } => steer::cancel(&api, &ids, &mut terminal).await?,
            Self::Drain => steer::drain(&api, &mut terminal).await?,
        };
        terminal.flush()?;
        Ok(if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}
