//! A cheap handle to a running engine: trigger, look, steer.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use jiff::Timestamp;
use tokio::sync::oneshot;

use super::shard::Message;
use super::shared::Shared;
use super::stats::ShardStats;
use super::view::{
    Counts, EngineState, Explanation, Health, IdState, JournalEntry, JournalQuery, PAGE_MAX, QueuePage, QueueQuery,
    ShardStatus, Status, SteerAnswer, StreamState, StreamStatus, TriggerAnswer, TriggerResult, WaitFor,
};
use crate::contract::{Event, Leader};
use crate::id::{Place, Receipt, ShardId, check};
use crate::scheduler::Slot;

/// A way to a running engine; clones are cheap.
#[derive(Clone)]
pub struct Handle {
    pub(crate) shared: Arc<Shared>,
}

/// The engine cannot answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HandleError {
    /// It has stopped.
    #[error("the engine has stopped")]
    Stopped,
    /// Another process leads the shard.
    #[error("shard {0} is not led by this process")]
    NotLed(u16),
    /// What was asked makes no sense.
    #[error("{0}")]
    Invalid(String),
}

/// Which ids to steer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Select {
    /// These.
    Ids(Vec<String>),
    /// All parked ids that match the pattern (`*` stands for any text).
    Match(String),
}

impl Handle {
    /// Asks for a run of an id now, without waiting for an answer; the fast way. It is in memory only, and may be
    /// refused by a full shard later on: then it waits its turn.
    ///
    /// # Errors
    /// What stands in the way, as a [`TriggerResult`].
    pub fn trigger(&self, id: &str) -> Result<(), TriggerResult> {
        let place = self.place(id)?;
        let door = self.shared.door(place.shard);
        let receipt = Receipt::new(self.shared.trigger_source, self.shared.clock.now().0);
        let event = Event { id, receipt, trace: None };
        let pushed = door.triggers.push([(&event, place.worker)]);
        if pushed.full {
            return Err(TriggerResult::Full);
        }
        if pushed.first {
            door.wake.notify_one();
        }
        Ok(())
    }

    /// Asks for runs and says per id what became of it, in the order asked (X7).
    ///
    /// # Cancel safety
    /// Dropping it forgets the answers; the ids run all the same.
    pub async fn trigger_batch(&self, ids: Vec<String>, wait: WaitFor) -> Vec<TriggerAnswer> {
        let mut answers: Vec<Option<TriggerAnswer>> = Vec::with_capacity(ids.len());
        let mut by_shard: std::collections::BTreeMap<ShardId, Vec<(usize, String, Place)>> = Default::default();
        for (index, id) in ids.into_iter().enumerate() {
            match self.place(&id) {
                Ok(place) => {
                    by_shard.entry(place.shard).or_default().push((index, id, place));
                    answers.push(None);
                }
                Err(result) => answers.push(Some(TriggerAnswer { id, result })),
            }
        }
        for (shard, asked) in by_shard {
            for (index, id, answer) in self.trigger_shard(shard, asked, wait).await {
                answers[index] = Some(match answer {
                    Some(answer) => answer.await.unwrap_or_else(|_| gone(id)),
                    None => gone(id),
                });
            }
        }
        answers.into_iter().flatten().collect()
    }

    async fn trigger_shard(
        &self,
        shard: ShardId,
        asked: Vec<(usize, String, Place)>,
        wait: WaitFor,
    ) -> Vec<(usize, String, Option<oneshot::Receiver<TriggerAnswer>>)> {
        let ids = asked.iter().map(|(_, id, place)| (id.clone(), place.worker)).collect();
        let answers = self.ask(shard, |reply| Message::Trigger { ids, wait, reply }).await.unwrap_or_default();
        let mut answers = answers.into_iter();
        asked.into_iter().map(|(index, id, _)| (index, id, answers.next())).collect()
    }

    /// Why an id runs, waits, or does not (X4).
    ///
    /// # Errors
    /// The text is no id, or the engine has stopped.
    pub async fn explain(&self, id: &str) -> Result<Explanation, HandleError> {
        check(id).map_err(|error| HandleError::Invalid(error.to_string()))?;
        let place = self.shared.router.place(id);
        let Some(place) = place else {
            return Err(HandleError::Invalid(format!("the hasher of this program drops {id:?}")));
        };
        if !self.shared.door(place.shard).is_led() {
            return Ok(not_led(id, place, self.leader(place.shard)));
        }
        let id = id.to_owned();
        self.ask(place.shard, |reply| Message::Explain { id, worker: place.worker, reply }).await
    }

    /// The whole process at a glance.
    ///
    /// # Errors
    /// The engine has stopped.
    pub async fn status(&self) -> Result<Status, HandleError> {
        let shards = self.shards().await?;
        let mut counts = Counts::default();
        for shard in shards.iter().filter(|shard| shard.led) {
            counts.add(&shard.counts);
        }
        let oldest = self.shared.shards.iter().map(|door| ShardStats::get(&door.stats.oldest_hold_ms));
        let now_ms = self.shared.clock.now().0 / 1_000_000;
        Ok(Status {
            controller: self.shared.name.to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            state: if self.shared.stop.asked.is_cancelled() { EngineState::Draining } else { EngineState::Running },
            started: self.shared.started,
            shards: self.shared.router.shards(),
            led: u16::try_from(shards.iter().filter(|shard| shard.led).count()).unwrap_or(u16::MAX),
            counts,
            streams: self.streams(),
            #[expect(clippy::cast_precision_loss, reason = "milliseconds of an age")]
            oldest_undone_seconds: oldest
                .filter(|since| *since > 0)
                .min()
                .map(|since| now_ms.saturating_sub(since) as f64 / 1_000.0),
            problems: self.problems().into_iter().chain(self.problem_of_leadership()).collect(),
        })
    }

    /// The shards.
    ///
    /// # Errors
    /// The engine has stopped.
    pub async fn shards(&self) -> Result<Vec<ShardStatus>, HandleError> {
        let mut shards = Vec::new();
        for number in 0..self.shared.router.shards() {
            let shard = ShardId(number);
            let led = if self.shared.door(shard).is_led() {
                self.ask(shard, |reply| Message::Status { reply }).await.ok()
            } else {
                None
            };
            let mut status = led.unwrap_or_else(|| ShardStatus {
                shard,
                led: false,
                leader: None,
                until: None,
                term: None,
                counts: Counts::default(),
                runs: 0,
            });
            if let Some(leader) = self.leader(shard) {
                status.leader = Some(leader.name);
                status.until = leader.until.and_then(|until| Timestamp::try_from(until).ok());
            }
            shards.push(status);
        }
        Ok(shards)
    }

    /// Who leads a shard, where an elector knows.
    fn leader(&self, shard: ShardId) -> Option<Leader> {
        self.shared.elector.as_ref().and_then(|elector| elector.leader(shard))
    }

    /// What waits and runs, a page at a time: shard after shard.
    ///
    /// # Errors
    /// The engine has stopped, or the page's start is not one that an earlier page gave.
    pub async fn queues(&self, query: QueueQuery) -> Result<QueuePage, HandleError> {
        let limit = query.limit.unwrap_or(PAGE_MAX).clamp(1, PAGE_MAX);
        let (mut shard, mut after) = match &query.after {
            None => (query.shard.unwrap_or(ShardId(0)), None),
            Some(text) => parse_cursor(text)?,
        };
        let last = query.shard.map_or(self.shared.router.shards().saturating_sub(1), |shard| shard.0);
        if shard.0 >= self.shared.router.shards() {
            return Err(HandleError::Invalid(format!("there is no shard {shard}")));
        }
        let mut page = QueuePage::default();
        loop {
            if self.shared.door(shard).is_led() {
                let part = QueueQuery { limit: Some(limit - page.entries.len()), ..query.clone() };
                let (found, next) = self.ask(shard, |reply| Message::Page { query: part, after, reply }).await?;
                page.entries.extend(found.entries);
                after = next;
            } else {
                after = None;
            }
            if after.is_none() {
                if shard.0 >= last {
                    return Ok(page);
                }
                shard = ShardId(shard.0 + 1);
            }
            if page.entries.len() >= limit {
                page.next = Some(cursor(shard, after));
                return Ok(page);
            }
        }
    }

    /// The last runs, the latest first.
    ///
    /// # Errors
    /// The engine has stopped, or what is asked for is no id.
    pub async fn journal(&self, query: &JournalQuery) -> Result<Vec<JournalEntry>, HandleError> {
        if let Some(id) = &query.id {
            check(id).map_err(|error| HandleError::Invalid(error.to_string()))?;
        }
        let only = query.id.as_deref().and_then(|id| self.shared.router.place(id)).map(|place| place.shard);
        let mut entries = Vec::new();
        for number in 0..self.shared.router.shards() {
            let shard = ShardId(number);
            if self.shared.door(shard).is_led() && only.is_none_or(|only| only == shard) {
                let query = query.clone();
                entries.extend(self.ask(shard, |reply| Message::Journal { query, reply }).await?);
            }
        }
        entries.sort_by_key(|entry| std::cmp::Reverse(entry.at));
        entries.truncate(query.limit.unwrap_or(PAGE_MAX).min(PAGE_MAX));
        Ok(entries)
    }

    /// Releases parked ids, with a fresh count of attempts.
    ///
    /// # Errors
    /// The engine has stopped.
    pub async fn redrive(&self, select: Select) -> Result<Vec<SteerAnswer>, HandleError> {
        match select {
            Select::Ids(ids) => self.steer(ids, |id, reply| Message::Redrive { id, reply }).await,
            Select::Match(pattern) => {
                let mut answers = Vec::new();
                for number in 0..self.shared.router.shards() {
                    let shard = ShardId(number);
                    if self.shared.door(shard).is_led() {
                        let pattern = pattern.clone();
                        answers.extend(self.ask(shard, |reply| Message::RedriveMatching { pattern, reply }).await?);
                    }
                }
                Ok(answers)
            }
        }
    }

    /// Ends the runs of these ids, or their wait, and parks them.
    ///
    /// # Errors
    /// The engine has stopped.
    pub async fn cancel(&self, ids: Vec<String>) -> Result<Vec<SteerAnswer>, HandleError> {
        self.steer(ids, |id, reply| Message::Cancel { id, reply }).await
    }

    async fn steer(
        &self,
        ids: Vec<String>,
        message: impl Fn(String, oneshot::Sender<SteerAnswer>) -> Message,
    ) -> Result<Vec<SteerAnswer>, HandleError> {
        let mut answers = Vec::with_capacity(ids.len());
        for id in ids {
            let not_done = |reason: String| SteerAnswer { id: id.clone(), done: false, reason };
            let answer = match self.place_led(&id) {
                Err(TriggerResult::Refused { reason } | TriggerResult::Unavailable { reason }) => not_done(reason),
                Err(_) => not_done("the hasher of this program drops it".into()),
                Ok(place) => self.ask(place.shard, |reply| message(id.clone(), reply)).await?,
            };
            answers.push(answer);
        }
        Ok(answers)
    }

    /// Starts a graceful stop, as SIGTERM does.
    pub fn drain(&self) {
        self.shared.stop.asked.cancel();
    }

    /// Whether the process is alive and ready. Leadership has no part in it (B30).
    #[must_use]
    pub fn health(&self) -> Health {
        let problems = self.shared.problems.all();
        let started = self.shared.ready.load(Relaxed);
        let live = !problems.iter().any(|problem| problem.fatal);
        let mut texts = self.problems();
        let ready = live && started && texts.is_empty();
        texts.extend(self.problem_of_leadership());
        Health { live, ready, problems: texts }
    }

    fn problem_of_leadership(&self) -> Option<String> {
        self.shared.elector.as_ref().and_then(|elector| elector.problem())
    }

    fn problems(&self) -> Vec<String> {
        let mut texts: Vec<String> = self.shared.problems.all().into_iter().map(|problem| problem.text).collect();
        for (number, door) in self.shared.shards.iter().enumerate() {
            if ShardStats::get(&door.stats.full) > 0 {
                texts.push(format!("shard {number} is full (limits.admitted); its streams are held back"));
            }
            if ShardStats::get(&door.stats.records) >= u64::from(self.shared.limits.owed_records) {
                texts.push(format!(
                    "shard {number} has as many owed records as it may keep (limits.owed_records); sources are held \
                     back instead"
                ));
            }
            if ShardStats::get(&door.stats.overdue) > 0 {
                texts.push(format!(
                    "shard {number} cannot park more ids (limits.owed_records); {} keep being retried",
                    ShardStats::get(&door.stats.overdue)
                ));
            }
        }
        for stream in self.streams() {
            if let Some(problem) = stream.problem.filter(|_| stream.state != StreamState::Stopped) {
                texts.push(format!("stream {}: {problem}", stream.name));
            }
        }
        texts
    }

    fn streams(&self) -> Vec<StreamStatus> {
        let streams = self.shared.streams();
        let status = |stream: &Arc<super::shared::StreamInfo>| {
            let (state, problem) = stream.get();
            StreamStatus {
                name: stream.name.to_string(),
                state,
                problem,
                events: stream.events.load(Relaxed),
                errors: stream.errors.load(Relaxed),
                restarts: stream.restarts.load(Relaxed),
            }
        };
        streams.iter().map(status).collect()
    }

    /// Where an id belongs, or why no run of it can be asked for here.
    fn place(&self, id: &str) -> Result<Place, TriggerResult> {
        if self.shared.stop.is_closed() {
            return Err(TriggerResult::Unavailable {
                reason: "the engine is stopping; ask again when it is back".into(),
            });
        }
        self.place_led(id)
    }

    /// Where an id belongs, or why nothing is known of it here. Steering goes on while the engine stops: that is when a
    /// run that hangs is to be cancelled.
    fn place_led(&self, id: &str) -> Result<Place, TriggerResult> {
        check(id).map_err(|error| TriggerResult::Refused { reason: error.to_string() })?;
        let place = self.shared.router.place(id).ok_or(TriggerResult::Dropped)?;
        if !self.shared.door(place.shard).is_led() {
            let reason = match self.leader(place.shard) {
                Some(leader) => format!("shard {} is led by {}; ask there", place.shard, leader.name),
                None => format!("shard {} is not led by this process now; ask again", place.shard),
            };
            return Err(TriggerResult::Unavailable { reason });
        }
        Ok(place)
    }

    /// Asks a shard's loop.
    pub(super) async fn ask<T>(
        &self,
        shard: ShardId,
        question: impl FnOnce(oneshot::Sender<T>) -> Message,
    ) -> Result<T, HandleError> {
        let (reply, answer) = oneshot::channel();
        let door = self.shared.door(shard);
        door.messages.send(question(reply)).map_err(|_| HandleError::Stopped)?;
        tokio::select! {
            // Nobody answers a question of a term that has ended.
            answer = answer => answer.map_err(|_| match self.shared.stop.over.is_cancelled() {
                true => HandleError::Stopped,
                false => HandleError::NotLed(shard.0),
            }),
            () = self.shared.stop.over.cancelled() => Err(HandleError::Stopped),
        }
    }
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handle").field("name", &self.shared.name).finish_non_exhaustive()
    }
}

fn gone(id: String) -> TriggerAnswer {
    let reason = "the engine stopped, or lost the shard, before it could say".to_owned();
    TriggerAnswer { id, result: TriggerResult::Unavailable { reason } }
}

fn not_led(id: &str, place: Place, leader: Option<Leader>) -> Explanation {
    let why = match leader {
        Some(leader) => format!("shard {} is led by {}; ask there", place.shard, leader.name),
        None => format!("shard {} is led by another process, or by none now; ask there", place.shard),
    };
    Explanation {
        id: id.to_owned(),
        shard: place.shard,
        worker: place.worker,
        led: false,
        state: IdState::Idle,
        why,
        reason: "not_led".into(),
        entry: None,
        journal: Vec::new(),
    }
}

fn cursor(shard: ShardId, after: Option<Slot>) -> String {
    after.map_or_else(|| format!("{shard}"), |slot| format!("{shard}-{}", slot.0))
}

fn parse_cursor(text: &str) -> Result<(ShardId, Option<Slot>), HandleError> {
    let wrong = || HandleError::Invalid(format!("{text:?} is not a page that this server gave; start from the first"));
    let (shard, slot) = text.split_once('-').map_or((text, None), |(shard, slot)| (shard, Some(slot)));
    let shard = shard.parse().map(ShardId).map_err(|_| wrong())?;
    let slot = slot.map(|slot| slot.parse().map(Slot).map_err(|_| wrong())).transpose()?;
    Ok((shard, slot))
}
