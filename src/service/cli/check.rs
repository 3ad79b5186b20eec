//! `check`: says about a config what a start would say.
//!
//! Must never write anything, nor open a connection that was not asked for. Tested in `tests/it/cli.rs`.

use std::io::Write as _;
use std::process::ExitCode;

use serde::Serialize;

use super::args::{GlobalArgs, Output};
use super::exit::{UsageError, warn};
use super::tree::{CheckArgs, ConfigArgs};
use crate::service::config::{self, ConfigError, Fault, Loaded, Place, StreamSource, Target, Variables};
use crate::service::wiring;

/// Checks the config and says what it found.
pub(super) fn check(args: &CheckArgs, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
    let mut checked = load(&args.config);
    if args.connect
        && let Ok(loaded) = checked
    {
        let found = super::block_on(async { Ok(wiring::connect(&loaded.config).await) })?;
        checked = refuse(loaded, found);
    }
    match global.output {
        Output::Table => {
            let loaded = checked?;
            warnings(&loaded);
            writeln!(anstream::stdout(), "{}", summary(&loaded))?;
            Ok(ExitCode::SUCCESS)
        }
        output => report(checked, output),
    }
}

/// Loads the config and lets the adapters look at it.
///
/// # Errors
/// Everything that is wrong with it.
pub(super) fn load(args: &ConfigArgs) -> Result<Loaded, ConfigError> {
    let loaded = config::load(args.config.as_deref(), &Variables::of_process())?;
    let found = wiring::check(&loaded.config);
    refuse(loaded, found)
}

/// The config, unless something was found wrong with it.
fn refuse(loaded: Loaded, found: Vec<(String, String)>) -> Result<Loaded, ConfigError> {
    if found.is_empty() {
        return Ok(loaded);
    }
    let faults = found.into_iter().map(|(path, message)| loaded.fault(&path, message)).collect();
    Err(ConfigError::Faults { file: loaded.file, faults })
}

fn warnings(loaded: &Loaded) {
    for warning in &loaded.warnings {
        warn(warning.line(&loaded.file));
    }
}

fn summary(loaded: &Loaded) -> String {
    let config = &loaded.config;
    let target = match &config.reconciler.target {
        Target::Webhook(http) => format!("webhook {}", http.url),
        Target::Exec(exec) => format!("exec {}", exec.argv.first().map_or("", String::as_str)),
    };
    let streams = match config.streams.len() {
        0 => "no streams".to_owned(),
        _ => {
            config.streams.iter().map(|s| format!("{} ({})", s.name, source(&s.source))).collect::<Vec<_>>().join(", ")
        }
    };
    let shards = match config.sharding.shards {
        1 => "1 shard".to_owned(),
        n => format!("{n} shards"),
    };
    format!("{} is good: {}, {target}, {shards}, {streams}", loaded.file, config.name)
}

fn source(source: &StreamSource) -> &'static str {
    match source {
        StreamSource::Kafka(_) => "kafka",
        StreamSource::Resync(_) => "resync",
        StreamSource::Http => "http",
    }
}

/// The answer for programs; stable.
#[derive(Serialize)]
struct Report {
    good: bool,
    faults: Vec<Entry>,
    warnings: Vec<Entry>,
}

#[derive(Serialize)]
struct Entry {
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    column: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    variable: Option<String>,
    key: String,
    message: String,
}

fn report(checked: Result<Loaded, ConfigError>, output: Output) -> anyhow::Result<ExitCode> {
    let entries = |file: &str, faults: &[Fault]| faults.iter().map(|fault| entry(file, fault)).collect();
    let report = match checked {
        Ok(loaded) => Report { good: true, faults: Vec::new(), warnings: entries(&loaded.file, &loaded.warnings) },
        Err(ConfigError::Faults { file, faults }) => {
            Report { good: false, faults: entries(&file, &faults), warnings: Vec::new() }
        }
        Err(error) => return Err(error.into()),
    };
    let text = match output {
        Output::Yaml => serde_saphyr::to_string(&report).map_err(|e| UsageError(e.to_string()))?,
        _ => serde_json::to_string_pretty(&report)? + "\n",
    };
    anstream::stdout().write_all(text.as_bytes())?;
    Ok(if report.good { ExitCode::SUCCESS } else { ExitCode::from(2) })
}

fn entry(file: &str, fault: &Fault) -> Entry {
    let (file, line, column, variable) = match &fault.place {
        Place::File { line, column } => (Some(file.to_owned()), Some(*line), Some(*column), None),
        Place::Variable(name) => (None, None, None, Some(name.to_string())),
    };
    Entry { file, line, column, variable, key: fault.path.clone(), message: fault.message.clone() }
}
