//! The tree of verbs with their help.
//!
//! Must never do anything: it holds what was typed. Its help texts are compared with `tests/it/cli/`.

use std::path::PathBuf;

use clap::builder::styling::{AnsiColor, Styles};
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use super::args::GlobalArgs;
use super::version;
use crate::service::client::ClientVerb;
use crate::service::config::CONFIG_VARIABLE;

/// Lines of help are not wider than this, since long lines are hard to read.
const HELP_COLUMNS_MAX: usize = 100;

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Yellow.on_default().bold())
    .usage(AnsiColor::Yellow.on_default().bold())
    .literal(AnsiColor::Green.on_default())
    .placeholder(AnsiColor::Cyan.on_default());

const START: &str = "\
Start here:
  evenkeel init hello            a small project in the folder hello
  cd hello && evenkeel run       run it
  evenkeel status                see what goes on, from another terminal
  evenkeel explain ID            why an id runs, waits, or does not

Exit codes: 0 fine, 1 failed, 2 wrong usage or config.";

/// Keeps things outside Kubernetes as they should be: calls your reconciler for every id that something happened to,
/// retries what fails, and loses nothing.
#[derive(Debug, Parser)]
#[command(name = "evenkeel", version, long_version = version::long())]
#[command(styles = STYLES, max_term_width = HELP_COLUMNS_MAX)]
#[command(after_help = START, arg_required_else_help = true, subcommand_required = true, propagate_version = false)]
pub(super) struct Cli {
    #[command(flatten)]
    pub global: GlobalArgs,
    #[command(subcommand)]
    pub verb: Verb,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// Run the controller
    ///
    /// Runs until SIGTERM or SIGINT, then finishes what runs and stops within drain_timeout. A second signal stops at
    /// once, SIGUSR1 dumps what waits.
    #[command(after_help = RUN)]
    Run(ConfigArgs),
    /// Make a small project: a config and a reconciler to start from
    #[command(after_help = INIT)]
    Init(InitArgs),
    /// Say what is wrong with the config, all at once, and what should be known about it
    ///
    /// Says what a start would say, and opens no connection, unless an option asks for it.
    #[command(after_help = CHECK)]
    Check(CheckArgs),
    /// Explain the config
    #[command(arg_required_else_help = true)]
    Config {
        /// What to print.
        #[command(subcommand)]
        what: ConfigVerb,
    },
    /// Send events to a topic, as its producers would (Kafka only)
    ///
    /// Uses the configured hash, so that an event reaches the partition of its id's shard. To look at an id through the
    /// running process, without Kafka, use `evenkeel trigger`.
    #[command(after_help = PUBLISH)]
    Publish(PublishArgs),
    #[command(flatten)]
    Client(ClientVerb),
    /// Print the completions of a shell
    #[command(after_help = COMPLETIONS)]
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Print the man page, or write those of all commands into a folder
    #[command(after_help = MAN)]
    Man {
        /// A folder that exists, for one page a command
        dir: Option<PathBuf>,
    },
}

const RUN: &str = "\
Examples:
  evenkeel run
  evenkeel run --config /etc/evenkeel/dns.yaml
  EVENKEEL__TELEMETRY__LEVEL=debug evenkeel run";

const INIT: &str = "\
Examples:
  evenkeel init hello                        a shell script as the reconciler
  evenkeel init --reconciler webhook hello   a small HTTP server in Python
  evenkeel init --reconciler rust hello      a program in Rust with the library";

const CHECK: &str = "\
Examples:
  evenkeel check
  evenkeel check --connect
  evenkeel check --config dns.yaml -o json
  evenkeel check --partitioner orders        which hash the producers of a topic use";

const PUBLISH: &str = "\
Examples:
  evenkeel publish cust-42 cust-43
  evenkeel publish --topic orders -- -an-id-with-a-dash
  cut -f1 ids.tsv | evenkeel publish -";

const COMPLETIONS: &str = "\
Examples:
  evenkeel completions bash > /etc/bash_completion.d/evenkeel
  evenkeel completions zsh > \"${fpath[1]}/_evenkeel\"
  evenkeel completions fish > ~/.config/fish/completions/evenkeel.fish";

const MAN: &str = "\
Examples:
  evenkeel man | man -l -
  evenkeel man /usr/local/share/man/man1";

/// Which config.
#[derive(Debug, Clone, Args)]
pub(super) struct ConfigArgs {
    /// The config; by default ./evenkeel.yaml, else /etc/evenkeel/evenkeel.yaml
    #[arg(short, long, value_name = "FILE", env = CONFIG_VARIABLE, hide_env_values = true)]
    pub config: Option<PathBuf>,
}

/// What to check.
#[derive(Debug, Clone, Args)]
pub(super) struct CheckArgs {
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Also ask Kafka and etcd: whether they answer, and whether topics and shards fit. Writes nothing
    #[arg(long)]
    pub connect: bool,
    /// Read some thousand messages of this topic instead, and say which hash its producers choose partitions by
    #[arg(long, value_name = "TOPIC", conflicts_with = "connect")]
    pub partitioner: Option<String>,
}

/// What to make.
#[derive(Debug, Clone, Args)]
pub(super) struct InitArgs {
    /// What the reconciler is written in
    #[arg(long, value_enum, default_value = "exec", value_name = "KIND")]
    pub reconciler: ReconcilerKind,
    /// The folder; made if it is not there
    pub dir: PathBuf,
}

/// What a reconciler is written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum ReconcilerKind {
    /// A command: a shell script
    Exec,
    /// An HTTP server: Python, without packages
    Webhook,
    /// A program of its own: Rust, with the library
    Rust,
}

/// What to print.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Subcommand)]
pub(super) enum ConfigVerb {
    /// Print a config with every key
    Example,
    /// Print every key with what is allowed, its default, and why
    Reference,
}

/// What to send.
#[derive(Debug, Clone, Args)]
pub(super) struct PublishArgs {
    #[command(flatten)]
    pub config: ConfigArgs,
    /// The topic; needed where the config has several
    #[arg(long, value_name = "TOPIC")]
    pub topic: Option<String>,
    /// The ids; - reads them from standard input, one a line
    #[arg(required = true, value_name = "ID")]
    pub ids: Vec<String>,
}
