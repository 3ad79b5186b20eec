//! Kafka, as the config names it.

use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::sync::watch;

use super::{HashMatch, HashMatches, Publish};
use crate::engine::Builder;
use crate::id::{Partitioner, Router};
use crate::kafka::{
    Connection, IdFrom, KafkaCommitter, KafkaDeadLetter, KafkaStream, Publisher, Sasl, SaslMechanism, Secret,
    SettingsError, StreamSettings, Tls, Token,
};
use crate::service::config::{self, Config, StreamSource};

/// The streams' committers, for the end.
#[derive(Default)]
pub(super) struct Committers(Vec<(String, KafkaCommitter)>);

impl Committers {
    /// Commits what is done a last time, all streams side by side, and lets go of the clients.
    pub(super) async fn close(&self, bound: Duration) {
        let closing = self.0.iter().map(|(name, committer)| {
            let (name, committer) = (name.clone(), committer.clone());
            tokio::spawn(async move {
                if let Err(error) = committer.close(bound).await {
                    tracing::warn!(stream = name, %error, "the last commit failed; its events come again");
                }
            })
        });
        for closed in closing.collect::<Vec<_>>() {
            let _ = closed.await;
        }
    }
}

/// What Kafka's adapters would say at a start.
pub(super) fn check(config: &Config) -> Vec<(String, String)> {
    let Some(kafka) = &config.kafka else { return Vec::new() };
    let connection = connection(kafka);
    if let Err(error) = connection.check() {
        return vec![fault("kafka", error)];
    }
    let streams = config.streams.iter().filter_map(|stream| match &stream.source {
        StreamSource::Kafka(kafka) => Some((&stream.name, kafka)),
        _ => None,
    });
    streams
        .filter_map(|(name, stream)| {
            let error = settings(config, &connection, stream).check().err()?;
            Some(fault(&format!("streams.{name}.kafka"), error))
        })
        .collect()
}

/// What the brokers say: whether they answer, and whether the topics are there and fit the shards.
pub(super) async fn connect(config: &Config) -> Vec<(String, String)> {
    let Some(kafka) = &config.kafka else { return Vec::new() };
    let publisher = match Publisher::new(&connection(kafka), config.sharding.hash) {
        Ok(publisher) => publisher,
        Err(error) => return vec![fault("kafka", error)],
    };
    let mut found = Vec::new();
    for stream in &config.streams {
        let StreamSource::Kafka(kafka) = &stream.source else { continue };
        let path = format!("streams.{}.kafka.topics", stream.name);
        for topic in &kafka.topics {
            match publisher.partitions(topic).await {
                Ok(partitions) if partitions % config.sharding.shards == 0 => {}
                Ok(partitions) => found.push((path.clone(), misfit(topic, partitions, config.sharding.shards))),
                Err(error) => found.push((path.clone(), error.to_string())),
            }
        }
    }
    found
}

fn misfit(topic: &str, partitions: u32, shards: u32) -> String {
    format!(
        "the topic {topic} has {partitions} partitions, no multiple of the {shards} shards: part of its events come to \
         a wrong shard; give it {} partitions, or change shards",
        partitions.div_ceil(shards) * shards
    )
}

fn fault(block: &str, error: SettingsError) -> (String, String) {
    match error {
        SettingsError::Refused { key, reason } => (format!("kafka.options.{key}"), format!("not allowed: {reason}")),
        SettingsError::Option { key, reason } => (format!("kafka.options.{key}"), format!("not accepted: {reason}")),
        error => (block.to_owned(), error.to_string()),
    }
}

/// Adds a stream of Kafka, its dead-letter topic and its committer.
pub(super) fn add(
    builder: Builder,
    config: &Config,
    (name, critical): (&str, bool),
    stream: &config::KafkaStream,
    lost: &watch::Sender<u64>,
    committers: &mut Committers,
) -> anyhow::Result<Builder> {
    let kafka = config.kafka.as_ref().context("the config has no `kafka` block")?;
    let connection = connection(kafka);
    let settings = settings(config, &connection, stream);
    tell_of_loss(&settings, lost.clone());
    let built = KafkaStream::new(settings)?;
    committers.0.push((name.to_owned(), built.committer()));
    let builder = if critical { builder.critical_stream(name, built) } else { builder.stream(name, built) };
    Ok(match &stream.dead_letter {
        None => builder,
        Some(topic) => builder.dead_letter(name, Arc::new(KafkaDeadLetter::new(&connection, topic)?)),
    })
}

/// Asks every resync for a list when the stream may have lost events.
fn tell_of_loss(settings: &StreamSettings, lost: watch::Sender<u64>) {
    let notified = Arc::clone(&settings.resync);
    tokio::spawn(async move {
        loop {
            notified.notified().await;
            lost.send_modify(|count| *count += 1);
            if lost.is_closed() {
                return;
            }
        }
    });
}

/// Sends ids to a topic.
pub(super) async fn publish(config: &Config, publish: Publish) -> anyhow::Result<ExitCode> {
    let kafka = config.kafka.as_ref().context("the config has no `kafka` block, and publish sends to Kafka")?;
    let publisher = Publisher::new(&connection(kafka), config.sharding.hash)?;
    let published = publisher.publish(&publish.topic, &publish.ids).await?;
    for (id, reason) in &published.failed {
        tracing::debug!(id, reason, "not published");
        writeln!(anstream::stderr(), "{id}: {reason}")?;
    }
    writeln!(anstream::stdout(), "{} of {} sent to {}", published.sent, publish.ids.len(), publish.topic)?;
    Ok(if published.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Looks at the last messages of a topic.
pub(super) fn partitioner(config: &Config, topic: &str) -> anyhow::Result<HashMatches> {
    let kafka = config.kafka.as_ref().context("the config has no `kafka` block")?;
    let found = crate::kafka::sample(&connection(kafka), topic)?;
    let entry = |&(hash, matches): &(Partitioner, u64)| HashMatch {
        hash: hash.name(),
        matches,
        can_route: Router::new(hash, 1, 1).is_ok(),
    };
    Ok(HashMatches {
        topic: topic.to_owned(),
        partitions: found.partitions,
        messages: found.messages,
        with_key: found.keyed(),
        configured: config.sharding.hash.name(),
        hashes: found.matches.iter().map(entry).collect(),
    })
}

pub(super) fn library() -> String {
    crate::kafka::library()
}

fn settings(config: &Config, connection: &Connection, stream: &config::KafkaStream) -> StreamSettings {
    let shards = u16::try_from(config.sharding.shards).unwrap_or(u16::MAX);
    let mut settings = StreamSettings::new(connection.clone(), config.name.clone(), stream.topics.clone(), shards);
    settings.dead_letter.clone_from(&stream.dead_letter);
    settings.hand_off.clone_from(&stream.hand_off);
    settings.id = match &stream.id {
        config::IdFrom::Key { pointer: None } => IdFrom::Key,
        config::IdFrom::Key { pointer: Some(pointer) } => IdFrom::KeyPointer(pointer.clone()),
        config::IdFrom::Header { name } => IdFrom::Header(name.clone()),
        config::IdFrom::Value { pointer } => IdFrom::ValuePointer(pointer.clone()),
        config::IdFrom::CloudEvent => IdFrom::CloudEvent,
    };
    if let Some(kafka) = &config.kafka {
        settings.timing.commit = kafka.commit_interval;
    }
    settings
}

fn connection(kafka: &config::Kafka) -> Connection {
    Connection {
        brokers: kafka.brokers.clone(),
        tls: kafka.tls.as_ref().map(tls),
        sasl: kafka.sasl.as_ref().map(sasl),
        options: kafka.options.iter().map(|(key, value)| (key.clone(), value.expose().to_owned())).collect(),
    }
}

fn tls(tls: &config::Tls) -> Tls {
    let client = tls.client.as_ref();
    Tls {
        ca_file: tls.ca_file.clone(),
        certificate_file: client.map(|client| client.certificate_file.clone()),
        key_file: client.map(|client| client.key_file.clone()),
        key_password: client.and_then(|client| client.key_password.as_ref()).map(|p| Secret::new(p.expose())),
    }
}

fn sasl(sasl: &config::Sasl) -> Sasl {
    match sasl {
        config::Sasl::OauthBearer { token_file } => Sasl::OauthBearer(Token::File(token_file.clone())),
        config::Sasl::Password { mechanism, username, password } => Sasl::Password {
            mechanism: match mechanism {
                config::Mechanism::ScramSha256 => SaslMechanism::ScramSha256,
                config::Mechanism::ScramSha512 => SaslMechanism::ScramSha512,
                config::Mechanism::Plain | config::Mechanism::OauthBearer => SaslMechanism::Plain,
            },
            username: username.clone(),
            password: Secret::new(password.expose()),
        },
    }
}
