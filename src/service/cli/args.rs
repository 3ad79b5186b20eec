//! What every verb understands: which process to ask, how to answer, whether to colour.
//!
//! Must never do more than hold what was typed. Tested through the binary in `tests/it/cli.rs`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// Where a process listens by default, and so where the client verbs ask.
pub const SERVER_DEFAULT: &str = "http://127.0.0.1:7070";

/// Options that every verb takes.
#[derive(Debug, Clone, Args)]
pub struct GlobalArgs {
    /// The process to ask, as an http or https URL
    #[arg(long, global = true, env = "EVENKEEL_SERVER", value_name = "URL", default_value = SERVER_DEFAULT)]
    #[arg(help_heading = HEADING, hide_env_values = true)]
    pub server: String,

    /// File with the token that the process asks for
    #[arg(long, global = true, env = "EVENKEEL_TOKEN_FILE", value_name = "FILE")]
    #[arg(help_heading = HEADING, hide_env_values = true)]
    pub token_file: Option<PathBuf>,

    /// A table for people, or json or yaml for programs
    #[arg(
        short,
        long,
        global = true,
        value_name = "FORM",
        default_value = "table",
        value_enum,
        hide_possible_values = true
    )]
    #[arg(help_heading = HEADING)]
    pub output: Output,

    /// When to colour: always, never, or auto: on a terminal, and not with NO_COLOR
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto", value_enum, hide_possible_values = true)]
    #[arg(help_heading = HEADING)]
    pub color: Color,
}

/// The heading of these options in the help texts.
pub(super) const HEADING: &str = "Options of every command";

/// The form of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Output {
    /// Columns for people; may change at any time.
    #[default]
    Table,
    /// JSON for programs; stable.
    Json,
    /// The same as YAML.
    Yaml,
}

/// When to colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Color {
    /// On a terminal, unless the environment says `NO_COLOR`.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

impl From<Color> for anstream::ColorChoice {
    fn from(color: Color) -> Self {
        match color {
            Color::Auto => Self::Auto,
            Color::Always => Self::Always,
            Color::Never => Self::Never,
        }
    }
}

impl GlobalArgs {
    /// Makes `anstream`'s streams colour as asked; called once, before anything is printed.
    pub(super) fn apply_color(&self) {
        anstream::ColorChoice::from(self.color).write_global();
    }
}
