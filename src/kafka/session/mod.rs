//! The consumer's thread: polls, hands over, pauses, commits.
//!
//! It owns the client and every assignment; everybody else speaks to it by [`Note`]s. Must never wait for a broker
//! (the [`Lookout`] does), nor for the engine beyond milliseconds (a shard that stays full holds back its partitions,
//! not the thread). It polls all the time, while paused and while draining too, since answers to commits and errors
//! come that way (K5). Parts: `intake` hands over, `letters` sends what has no id, `assign` takes up and gives back
//! partitions, `commit` commits. Tested by the live tests.

mod assign;
mod commit;
mod intake;
mod letters;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::time::{Duration, Instant};

use rdkafka::TopicPartitionList;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use tokio::sync::{mpsc as async_mpsc, oneshot};

use self::commit::Commits;
use self::intake::Held;
use self::letters::Ack;
use super::assignment::{Assignment, Place};
use super::close::drop_within;
use super::connect::consumer;
use super::context::{Context, Mail};
use super::instruments::{Gauges, Instruments};
use super::lookout::{Answer, Lookout, Question, Topic, is_silence};
use super::misrouted::Tally;
use super::producer::Producer;
use super::settings::{SettingsError, StreamSettings};
use super::trouble::{Kind, Troubles};
use crate::contract::Events;
use crate::id::{ShardId, SourceId};

/// How long a poll waits for a message; notes are looked at in between.
const PATIENCE: Duration = Duration::from_millis(50);
/// The same while a partition waits for room, so that it goes on soon.
const PATIENCE_HELD: Duration = Duration::from_millis(10);
/// At most so many messages are taken before notes and commits get their turn.
const TURN: usize = 256;
/// Timed work (commits, questions, retries) is looked for this often.
const TICK: Duration = Duration::from_millis(50);
/// No answer from any broker for this long is a trouble of its own (B06).
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// The first look at the topics is waited for this long before the client is made, since the prefetch depends on it
/// (B55).
const FIRST_LOOK_MAX: Duration = Duration::from_secs(3);
/// The longest wait for the consumer to close; then it is left behind (B56).
const CLOSE_MAX: Duration = Duration::from_secs(3);

/// After a question that failed as a whole partitions are asked for again after this long.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// What keeps us from the brokers altogether.
const REACHING: [Kind; 3] = [Kind::Login, Kind::Tls, Kind::Unreachable];

/// What others tell the consumer's thread.
pub(super) enum Note {
    /// The shards that this process leads now.
    Shards(Vec<ShardId>),
    /// This shard may have room again.
    Room(ShardId),
    /// Hand over nothing more, but go on committing.
    StopIntake,
    /// Commit what is done now, and say when the broker has it.
    Flush(oneshot::Sender<Result<(), String>>),
    /// Let go of the client and end.
    Close,
}

/// What the thread is given.
pub(super) struct Setup {
    pub(super) settings: Arc<StreamSettings>,
    pub(super) events: Events,
    pub(super) gauges: Arc<Gauges>,
    pub(super) instruments: Arc<Instruments>,
    pub(super) notes: Receiver<Note>,
    /// Asks for a note when a shard has room.
    pub(super) rooms: async_mpsc::Sender<ShardId>,
}

/// One topic that the stream reads.
struct TopicState {
    name: Arc<str>,
    /// Others pass their events on to us there.
    hand_off: bool,
    partitions: Option<i32>,
    parts: BTreeMap<i32, Part>,
    /// It was deleted and made anew: what was committed for it means nothing.
    anew: bool,
    /// How many looks in a row did not find it; a broker that just started may not know its topics yet.
    missed: u8,
}

impl TopicState {
    fn new(name: &str, hand_off: bool) -> Self {
        Self { name: name.into(), hand_off, partitions: None, parts: BTreeMap::new(), anew: false, missed: 0 }
    }
}

/// One partition that is read now.
struct Part {
    assignment: Arc<Assignment>,
    source: SourceId,
    /// Refused for now: the event that met a full shard, and letters that did not arrive.
    held: VecDeque<Held>,
    /// Letters under way.
    letters: usize,
    paused: bool,
    /// At the last watch it was behind at this position.
    behind: Option<u64>,
    /// How many watches in a row found its position outside the log.
    outside: u8,
    /// It holds events of shards that another process leads.
    foreign: bool,
}

pub(super) struct Session {
    settings: Arc<StreamSettings>,
    events: Events,
    client: Arc<BaseConsumer<Context>>,
    lookout: Lookout,
    producer: Option<Producer>,
    gauges: Arc<Gauges>,
    instruments: Arc<Instruments>,
    troubles: Troubles,
    tally: Tally,
    notes: Receiver<Note>,
    rooms: async_mpsc::Sender<ShardId>,
    acks: (mpsc::Sender<Ack>, Receiver<Ack>),
    topics: Vec<TopicState>,
    led: BTreeSet<ShardId>,
    intake: bool,
    /// Shards whose room is being waited for.
    waiting: BTreeSet<ShardId>,
    commits: Commits,
    asked: bool,
    probes: Vec<(Place, u64, u64)>,
    /// The broker said that some position is not in the log; it is looked for at once.
    hint: bool,
    next_topics: Instant,
    next_start: Instant,
    next_watch: Instant,
    next_letters: Instant,
    heard: bool,
    /// Why a connection failed last; that all brokers are down is said without a reason.
    last_failure: String,
}

impl Session {
    /// Makes the clients. Waits a little for the brokers: for the consumer's thread only.
    pub(super) fn new(setup: Setup) -> Result<Self, SettingsError> {
        let Setup { settings, events, gauges, instruments, notes, rooms } = setup;
        settings.check()?;
        let now = Instant::now();
        let lookout = Lookout::start(&settings)?;
        let mut topics: Vec<TopicState> = Vec::new();
        for name in settings.topics.iter().chain(&settings.hand_off) {
            if !topics.iter().any(|topic| *topic.name == **name) {
                topics.push(TopicState::new(name, settings.hand_off.as_ref() == Some(name)));
            }
        }
        lookout.ask(Question::Topics(topics.iter().map(|topic| Arc::clone(&topic.name)).collect()));
        let first = lookout.wait(FIRST_LOOK_MAX);
        let config =
            settings.consumer_config(partitions_in(first.as_ref().map(|(answer, _)| answer), settings.shards))?;
        let client = Arc::new(consumer(&settings.connection, &config, Context::new(&settings.connection))?);
        let commits = Commits::start(&client, now)?;
        let producer = settings
            .dead_letter
            .as_ref()
            .or(settings.hand_off.as_ref())
            .map(|_| Producer::new(&settings.connection))
            .transpose()?;
        let mut session = Self {
            troubles: Troubles::new(events.clone()),
            client,
            lookout,
            producer,
            gauges,
            instruments,
            tally: Tally::default(),
            notes,
            rooms,
            acks: mpsc::channel(),
            topics,
            led: BTreeSet::new(),
            intake: true,
            waiting: BTreeSet::new(),
            commits,
            asked: first.is_none(),
            probes: Vec::new(),
            hint: false,
            next_topics: now + settings.timing.topics,
            next_start: now,
            next_watch: now,
            next_letters: now,
            heard: false,
            last_failure: String::new(),
            settings,
            events,
        };
        session.gauges.answered(now);
        if let Some((answer, mail)) = first {
            session.take_answer(answer, now);
            session.take_mail(mail, now);
        }
        Ok(session)
    }

    /// Works until it is told to close, or until the client is beyond repair.
    pub(super) fn run(mut self) -> Result<(), String> {
        let result = self.work();
        self.commits.end();
        self.gauges.set_assigned(Vec::new());
        drop(self.producer.take());
        if !drop_within("kafka consumer", self.client, CLOSE_MAX) {
            tracing::warn!(stream = %self.events.name(), "the Kafka client did not close in time; left behind");
        }
        result
    }

    fn work(&mut self) -> Result<(), String> {
        let client = Arc::clone(&self.client);
        let mut next_tick = Instant::now();
        loop {
            let mut wait = if self.waiting.is_empty() { PATIENCE } else { PATIENCE_HELD };
            for _ in 0..TURN {
                match client.poll(wait) {
                    Some(Ok(message)) => self.on_message(&message, Instant::now()),
                    Some(Err(KafkaError::MessageConsumptionFatal(code))) => {
                        return Err(format!("the Kafka client cannot go on: {code}"));
                    }
                    // Every other error comes with its reason by mail.
                    Some(Err(_)) => {}
                    None => break,
                }
                wait = Duration::ZERO;
            }
            let now = Instant::now();
            self.gauges.polled(now);
            if !self.take_notes(now) {
                return Ok(());
            }
            if now >= next_tick {
                self.tick(now)?;
                next_tick = now + TICK;
            }
        }
    }

    /// Reads the notes; `false` if it is time to end.
    fn take_notes(&mut self, now: Instant) -> bool {
        loop {
            match self.notes.try_recv() {
                Ok(Note::Shards(shards)) => self.lead(shards),
                Ok(Note::Room(shard)) => self.on_room(shard, now),
                Ok(Note::StopIntake) => self.stop_intake(),
                Ok(Note::Flush(tell)) => self.commits.flush(tell),
                Ok(Note::Close) | Err(TryRecvError::Disconnected) => return false,
                Err(TryRecvError::Empty) => return true,
            }
        }
    }

    fn tick(&mut self, now: Instant) -> Result<(), String> {
        if std::mem::take(&mut self.heard) {
            self.answered(now);
        }
        let mail = self.client.context().mail();
        self.take_mail(mail, now);
        while let Ok(ack) = self.acks.1.try_recv() {
            self.on_ack(ack, now);
        }
        if let Some((answer, mail)) = self.lookout.answer()? {
            self.asked = false;
            self.take_mail(mail, now);
            self.take_answer(answer, now);
        }
        self.send_held_letters(now);
        self.take_commit(now)?;
        self.commit(now);
        if self.intake && !self.asked {
            self.ask(now);
        }
        if self.gauges.silence(now) > SILENCE_MAX.as_secs_f64() && !self.troubles.has_any(&REACHING) {
            let (brokers, seconds) = (self.settings.connection.brokers.join(","), SILENCE_MAX.as_secs());
            let text = format!("no Kafka broker of {brokers} has answered for {seconds} s");
            self.troubles.raise(Kind::Unreachable, text, now);
        }
        self.troubles.pass(now);
        Ok(())
    }

    fn answered(&mut self, now: Instant) {
        self.gauges.answered(now);
        self.troubles.answered(now);
    }

    /// Asks the brokers what is due, one question at a time.
    fn ask(&mut self, now: Instant) {
        let question = if now >= self.next_topics {
            self.next_topics = now + self.settings.timing.topics;
            Some(Question::Topics(self.topics.iter().map(|topic| Arc::clone(&topic.name)).collect()))
        } else if now >= self.next_start && self.lacks_any() {
            Some(Question::Start(self.lacking()))
        } else if !self.probes.is_empty() {
            Some(Question::Probe(std::mem::take(&mut self.probes)))
        } else if now >= self.next_watch {
            self.next_watch = now + self.settings.timing.watch;
            let places: Vec<_> = self.parts().map(|part| (part.assignment.place.clone(), part.position())).collect();
            (!places.is_empty()).then_some(Question::Watch(places))
        } else {
            None
        };
        if let Some(question) = question {
            self.asked = true;
            self.lookout.ask(question);
        }
    }

    fn take_answer(&mut self, answer: Answer, now: Instant) {
        match answer {
            Answer::Failed(error) => return self.on_no_answer(&error, now),
            Answer::Topics(topics) => self.on_topics(topics, now),
            Answer::Start(ends) => self.on_start(ends, now),
            Answer::Watch(ends) => self.on_watch(ends, now),
            Answer::Probe(found) => self.on_probe(found),
        }
        self.answered(now);
    }

    fn take_mail(&mut self, mail: Vec<Mail>, now: Instant) {
        for mail in mail {
            match mail {
                Mail::Error(code, reason) => self.on_error(code, &reason, now),
                Mail::Recreated(topic) => self.on_recreated(&topic, now),
            }
        }
    }

    /// An error of the client: each kind has its state (K6); none makes the client anew.
    fn on_error(&mut self, code: RDKafkaErrorCode, reason: &str, now: Instant) {
        use RDKafkaErrorCode as Code;
        let brokers = self.settings.connection.brokers.join(",");
        match code {
            Code::Authentication | Code::SaslAuthenticationFailed => {
                let text = format!("the Kafka brokers refuse the login; check kafka.sasl: {reason}");
                self.troubles.raise(Kind::Login, text, now);
            }
            Code::SSL => {
                let text = format!("TLS to the Kafka brokers fails; check kafka.tls: {reason}");
                self.troubles.raise(Kind::Tls, text, now);
            }
            Code::AllBrokersDown => {
                let text = format!("no Kafka broker of {brokers} can be reached: {}", self.last_failure);
                self.troubles.raise(Kind::Unreachable, text, now);
            }
            // A single connection that failed or ended; the client makes it anew by itself.
            Code::BrokerTransportFailure | Code::Resolve => self.last_failure = reason.to_string(),
            Code::TopicAuthorizationFailed | Code::GroupAuthorizationFailed => self.denied(code, now),
            // Said by the broker of a position that is not in the log; which partition it is, the client does not say.
            Code::AutoOffsetReset | Code::OffsetOutOfRange | Code::LogTruncation => {
                self.hint = true;
                self.next_watch = now;
            }
            Code::UnknownTopicOrPartition | Code::UnknownTopic | Code::UnknownPartition => {
                self.next_topics = self.next_topics.min(now + self.settings.timing.missing);
            }
            Code::OperationTimedOut | Code::PartitionEOF => {}
            _ => self.troubles.raise(Kind::Client, format!("the Kafka client says: {reason}"), now),
        }
    }

    fn denied(&mut self, code: RDKafkaErrorCode, now: Instant) {
        let group = &self.settings.group;
        if code == RDKafkaErrorCode::GroupAuthorizationFailed {
            let text = format!("Kafka denies the consumer group {group}; this login needs Read on it");
            self.troubles.hold(Kind::GroupDenied, text, now);
        } else {
            let topics = self.settings.topics.join(", ");
            let text = format!("Kafka denies a topic of {topics}; this login needs Read and Describe on each");
            self.troubles.hold(Kind::Denied, text, now);
        }
    }

    /// The brokers did not answer a question; silence is noticed elsewhere, by how long it lasts.
    fn on_no_answer(&mut self, error: &KafkaError, now: Instant) {
        tracing::debug!(stream = %self.events.name(), %error, "the brokers did not answer");
        self.next_topics = self.next_topics.min(now + self.settings.timing.missing);
        self.next_start = now + ASK_AGAIN;
        match error.rdkafka_error_code() {
            Some(code @ (RDKafkaErrorCode::TopicAuthorizationFailed | RDKafkaErrorCode::GroupAuthorizationFailed)) => {
                self.denied(code, now);
            }
            _ if is_silence(error) => {}
            _ => self.troubles.raise(Kind::Client, format!("the Kafka brokers say: {error}"), now),
        }
    }

    fn parts(&self) -> impl Iterator<Item = &Part> {
        self.topics.iter().flat_map(|topic| topic.parts.values())
    }

    fn part(&mut self, place: &Place) -> Option<&mut Part> {
        let topic = self.topics.iter_mut().find(|topic| topic.name == place.topic)?;
        topic.parts.get_mut(&place.partition)
    }

    /// Tells the metrics which assignments stand.
    fn show_assigned(&self) {
        self.gauges.set_assigned(self.parts().map(|part| Arc::clone(&part.assignment)).collect());
    }
}

impl Part {
    fn position(&self) -> u64 {
        self.assignment.ledger().position()
    }
}

/// How many partitions there are, as far as the first look tells; the shards' share of them is not known yet.
fn partitions_in(answer: Option<&Answer>, shards: u16) -> usize {
    let Some(Answer::Topics(topics)) = answer else { return usize::from(shards) };
    let counts = topics.iter().map(|(_, topic)| match topic {
        Topic::Partitions(count) => usize::try_from(*count).unwrap_or_default(),
        Topic::Missing | Topic::Failed(_) => 0,
    });
    counts.sum()
}

/// A list of one partition.
fn list_of(place: &Place) -> TopicPartitionList {
    let mut list = TopicPartitionList::with_capacity(1);
    list.add_partition(&place.topic, place.partition);
    list
}
