//! The thread that waits for brokers, so that the consumer's thread need not: topics, committed offsets, ends of the
//! log.
//!
//! It has a client of its own, which is never subscribed and commits nothing. Must never hold up a stop: every call has
//! a bound, and it has a shorter one once a broker did not answer. Tested by the live tests.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::types::RDKafkaRespErr;
use rdkafka::{Message, Offset, TopicPartitionList};

use super::assignment::Place;
use super::close::drop_within;
use super::connect::consumer;
use super::context::{Context, Mail};
use super::settings::{SettingsError, StreamSettings};

/// The longest wait for one answer of a broker: long enough for a login over a slow line, short enough to notice an
/// outage.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// The same for the rest of a question in which some broker did not answer.
const PATIENCE_LOST: Duration = Duration::from_millis(300);
/// Between questions the client's own events (logins, tokens) are served this often.
const SERVE: Duration = Duration::from_millis(200);
/// The longest wait for the first record or the end of a partition in a probe.
const PROBE_MAX: Duration = Duration::from_secs(5);
/// The longest wait for the client to close; it is idle by then.
const CLOSE_MAX: Duration = Duration::from_secs(2);

/// What the consumer's thread wants to know.
#[derive(Debug)]
pub(super) enum Question {
    /// How many partitions these topics have.
    Topics(Vec<Arc<str>>),
    /// Where to begin with these partitions.
    Start(Vec<Place>),
    /// Where these partitions begin and end now; the number is the position of the reader when it asks.
    Watch(Vec<(Place, u64)>),
    /// Whether there is any record between a position and an end.
    Probe(Vec<(Place, u64, u64)>),
}

/// What is known of a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Topic {
    Partitions(i32),
    Missing,
    Failed(RDKafkaErrorCode),
}

/// Begin and end of a partition; `asked` is the reader's position or its committed offset.
#[derive(Debug)]
pub(super) struct Ends {
    pub(super) place: Place,
    pub(super) asked: Option<u64>,
    pub(super) low: u64,
    pub(super) high: u64,
}

/// What a probe found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// Nothing, up to this offset.
    Nothing(u64),
    /// A record.
    Record,
}

/// The answer to a question; partitions that could not be told of are left out.
#[derive(Debug)]
pub(super) enum Answer {
    Topics(Vec<(Arc<str>, Topic)>),
    Start(Vec<Ends>),
    Watch(Vec<Ends>),
    Probe(Vec<(Place, u64, Found)>),
    /// The brokers did not answer.
    Failed(KafkaError),
}

/// The way to the thread; dropping it ends the thread.
pub(super) struct Lookout {
    ask: SyncSender<Question>,
    answers: Receiver<(Answer, Vec<Mail>)>,
}

impl Lookout {
    /// Starts the thread.
    pub(super) fn start(settings: &StreamSettings) -> Result<Self, SettingsError> {
        let client = consumer(&settings.connection, &settings.lookout_config()?, Context::new(&settings.connection))?;
        let (ask, questions) = sync_channel(1);
        let (answer, answers) = sync_channel(1);
        std::thread::Builder::new()
            .name("kafka lookout".into())
            .spawn(move || look(client, &questions, &answer))
            .map_err(|error| SettingsError::Client(format!("no thread can be started: {error}")))?;
        Ok(Self { ask, answers })
    }

    /// Asks; one question at a time, the next after the answer.
    pub(super) fn ask(&self, question: Question) {
        let _ = self.ask.try_send(question);
    }

    /// The answer, if it is there.
    pub(super) fn answer(&self) -> Result<Option<(Answer, Vec<Mail>)>, &'static str> {
        match self.answers.try_recv() {
            Ok(answer) => Ok(Some(answer)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err("the thread that asks the brokers died"),
        }
    }

    /// The answer, waited for.
    pub(super) fn wait(&self, bound: Duration) -> Option<(Answer, Vec<Mail>)> {
        self.answers.recv_timeout(bound).ok()
    }
}

fn look(client: BaseConsumer<Context>, questions: &Receiver<Question>, answer: &SyncSender<(Answer, Vec<Mail>)>) {
    loop {
        match questions.recv_timeout(SERVE) {
            Ok(question) => {
                // A token may be due; the calls below do not serve it.
                let _ = client.poll(Duration::from_millis(1));
                let found = find(&client, question).unwrap_or_else(Answer::Failed);
                let _ = client.poll(Duration::ZERO);
                if answer.send((found, client.context().mail())).is_err() {
                    break;
                }
            }
            Err(RecvTimeoutError::Timeout) => drop(client.poll(Duration::ZERO)),
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    drop_within("kafka lookout", client, CLOSE_MAX);
}

fn find(client: &BaseConsumer<Context>, question: Question) -> Result<Answer, KafkaError> {
    Ok(match question {
        Question::Topics(topics) => {
            let found = topics.into_iter().map(|topic| partitions(client, &topic).map(|found| (topic, found)));
            Answer::Topics(found.collect::<Result<_, _>>()?)
        }
        Question::Start(places) => {
            let committed = committed(client, &places)?;
            Answer::Start(ends(client, places.into_iter().zip(committed))?)
        }
        Question::Watch(places) => {
            Answer::Watch(ends(client, places.into_iter().map(|(place, position)| (place, Some(position))))?)
        }
        Question::Probe(places) => {
            let found = places.into_iter().filter_map(|(place, from, to)| {
                probe(client, &place, from, to).map(|found| found.map(|found| (place, from, found))).transpose()
            });
            Answer::Probe(found.collect::<Result<_, _>>()?)
        }
    })
}

/// Whether an error says that no broker could be asked, rather than that one refused.
pub(super) fn is_silence(error: &KafkaError) -> bool {
    use RDKafkaErrorCode as Code;
    matches!(
        error.rdkafka_error_code(),
        Some(
            Code::OperationTimedOut
                | Code::RequestTimedOut
                | Code::BrokerTransportFailure
                | Code::AllBrokersDown
                | Code::Resolve
                | Code::WaitingForCoordinator
                | Code::Authentication
                | Code::SSL
        )
    )
}

fn partitions(client: &BaseConsumer<Context>, topic: &str) -> Result<Topic, KafkaError> {
    let metadata = client.fetch_metadata(Some(topic), ANSWER_MAX)?;
    let Some(found) = metadata.topics().iter().find(|found| found.name() == topic) else { return Ok(Topic::Missing) };
    Ok(match found.error() {
        None if found.partitions().is_empty() => Topic::Missing,
        None => Topic::Partitions(i32::try_from(found.partitions().len()).unwrap_or(i32::MAX)),
        Some(
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART
            | RDKafkaRespErr::RD_KAFKA_RESP_ERR__UNKNOWN_TOPIC
            | RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_ID,
        ) => Topic::Missing,
        Some(other) => Topic::Failed(other.into()),
    })
}

/// The committed offset of each place, in their order.
fn committed(client: &BaseConsumer<Context>, places: &[Place]) -> Result<Vec<Option<u64>>, KafkaError> {
    let mut list = TopicPartitionList::with_capacity(places.len());
    for place in places {
        list.add_partition(&place.topic, place.partition);
    }
    let list = client.committed_offsets(list, ANSWER_MAX)?;
    let offset = |place: &Place| match list.find_partition(&place.topic, place.partition) {
        Some(element) => {
            element.error()?;
            Ok(match element.offset() {
                Offset::Offset(offset) => u64::try_from(offset).ok(),
                _ => None,
            })
        }
        None => Ok(None),
    };
    places.iter().map(offset).collect()
}

fn ends(
    client: &BaseConsumer<Context>,
    places: impl Iterator<Item = (Place, Option<u64>)>,
) -> Result<Vec<Ends>, KafkaError> {
    let (mut found, mut silence, mut patience) = (Vec::new(), None, ANSWER_MAX);
    for (place, asked) in places {
        match client.fetch_watermarks(&place.topic, place.partition, patience) {
            Ok((low, high)) => found.push(Ends {
                place,
                asked,
                low: u64::try_from(low).unwrap_or_default(),
                high: u64::try_from(high).unwrap_or_default(),
            }),
            // One broker of several may be down: the partitions of the others must not wait for it.
            Err(error) if is_silence(&error) => {
                patience = PATIENCE_LOST;
                silence = Some(error);
            }
            // The partition has no leader just now, or is gone; the next look at the topics tells.
            Err(error) => tracing::debug!(%place, %error, "no begin and end"),
        }
    }
    match silence {
        Some(error) if found.is_empty() => Err(error),
        _ => Ok(found),
    }
}

/// Reads from a position with a reader of its own: what ends without a record proves that there is none up to `to`,
/// which was the end before. librdkafka's consumer does not say how far it has read where nothing was delivered
/// (aborted transactions, control records), and commits would stand still there for ever (B05).
fn probe(client: &BaseConsumer<Context>, place: &Place, from: u64, to: u64) -> Result<Option<Found>, KafkaError> {
    let mut list = TopicPartitionList::with_capacity(1);
    let offset = Offset::Offset(i64::try_from(from).unwrap_or(i64::MAX));
    list.add_partition_offset(&place.topic, place.partition, offset)?;
    client.assign(&list)?;
    let deadline = Instant::now() + PROBE_MAX;
    let mut found = None;
    while found.is_none() && Instant::now() < deadline {
        found = match client.poll(SERVE) {
            Some(Ok(message)) if message.partition() == place.partition => Some(Found::Record),
            Some(Err(KafkaError::PartitionEOF(_))) => Some(Found::Nothing(to)),
            _ => None,
        };
    }
    client.unassign()?;
    Ok(found)
}
