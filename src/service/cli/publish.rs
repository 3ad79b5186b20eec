//! `publish`: events to a topic.
//!
//! Must never send a part of the ids when another part is no id. Tested in `tests/it/cli.rs` and by the live tests.

use std::process::ExitCode;

use super::exit::UsageError;
use super::tree::PublishArgs;
use super::{block_on, check, read_ids};
use crate::service::config::{Config, StreamSource};
use crate::service::wiring::{self, Publish};

/// Sends the ids.
pub(super) fn publish(args: &PublishArgs) -> anyhow::Result<ExitCode> {
    let loaded = check::load(&args.config)?;
    let topic = topic(&loaded.config, args.topic.as_deref())?;
    let ids = read_ids(&args.ids, std::io::stdin().lock())?;
    block_on(wiring::publish(&loaded.config, Publish { ids, topic }))
}

/// The topic that was named, or the only one of the config. One that no stream reads is allowed: somebody else may.
fn topic(config: &Config, named: Option<&str>) -> Result<String, UsageError> {
    if config.kafka.is_none() {
        let hint = "to look at ids through the running process, use `evenkeel trigger`";
        return Err(UsageError(format!("the config has no kafka, and publish sends to Kafka; {hint}")));
    }
    if let Some(topic) = named {
        return Ok(topic.to_owned());
    }
    let topics = config.streams.iter().filter_map(|stream| match &stream.source {
        StreamSource::Kafka(kafka) => Some(&kafka.topics),
        _ => None,
    });
    match topics.flatten().collect::<Vec<_>>().as_slice() {
        [topic] => Ok((*topic).clone()),
        [] => Err(UsageError("no stream of the config reads a topic; name one with --topic".to_owned())),
        several => {
            let names = several.iter().map(|topic| topic.as_str()).collect::<Vec<_>>().join(", ");
            Err(UsageError(format!("the config has several topics; name one with --topic: {names}")))
        }
    }
}
