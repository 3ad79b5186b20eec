//! The thread of leadership: brings time and etcd's answers to [`Member`], and does what it commands.
//!
//! It has a thread, a runtime and connections of its own, so that nothing that the engine's runs do can hold up a
//! renewal (B57). Must never decide: who leads and until when is [`Member`]'s. Tested against real members in
//! `tests/live/etcd`.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc, oneshot};

use super::board::Board;
use super::calls::{Beaten, Calls};
use super::clock::{self, Until};
use super::renewal::Renewal;
use super::watch;
use crate::contract::{Leadership, Term};
use crate::etcd::EtcdError;
use crate::id::ShardId;
use crate::leadership::{Beat, Change, Command, Given, Keepalive, LeaseId, List, Member, Taken, Why};

/// The longest sleep: timers stand still while the machine sleeps, and the clock of leadership does not.
const NAP: Duration = Duration::from_millis(500);
/// Leader keys that are given back at a time: a stop with thousands of shards must not delay the renewal.
const GIVES_MAX: usize = 64;
/// News that are heard before all shards are looked at again.
const NEWS_PER_TURN: usize = 256;
/// How long letting go of the lease may take at the end.
const REVOKE_MAX: Duration = Duration::from_secs(1);

/// What the engine asks.
pub(super) enum Request {
    Want(ShardId, oneshot::Sender<Leadership>),
    Unwant(ShardId),
    Release(ShardId, u64, oneshot::Sender<()>),
    Close(oneshot::Sender<()>),
}

/// What etcd has said.
pub(super) enum News {
    Granted(Result<(LeaseId, Duration), EtcdError>),
    Kept(Box<Renewal>, LeaseId, Result<Keepalive, EtcdError>),
    Beaten(LeaseId, Result<Beaten, EtcdError>),
    Taken(ShardId, LeaseId, Result<Taken, EtcdError>),
    Given(ShardId, Result<Given, EtcdError>),
    Listed(List, Vec<(ShardId, String)>),
    Saw(u64, Change, Option<String>),
    Blind(EtcdError),
}

/// What the driver is told at the start.
pub(super) struct Setup {
    pub(super) calls: Calls,
    pub(super) ttl: Duration,
    /// How long one member may take for one answer.
    pub(super) limit: Duration,
    pub(super) shards: u16,
    pub(super) incarnation: u32,
    pub(super) overrun: Arc<dyn Fn(ShardId) + Send + Sync>,
    pub(super) board: Arc<Board>,
}

pub(super) struct Driver {
    setup: Setup,
    member: Member,
    renewal: Option<Box<Renewal>>,
    /// The lease and its time to live, for what is written.
    lease: (LeaseId, Duration),
    commands: VecDeque<Command>,
    turns: Arc<Semaphore>,
    news: mpsc::UnboundedSender<News>,
    waiting: BTreeMap<ShardId, oneshot::Sender<Leadership>>,
    led: BTreeMap<ShardId, (Leadership, Arc<Until>)>,
    releasing: BTreeMap<ShardId, oneshot::Sender<()>>,
}

/// Runs until it is told to close, or until nobody can ask any more.
pub(super) async fn drive(setup: Setup, mut requests: mpsc::UnboundedReceiver<Request>) {
    let (send, mut news) = mpsc::unbounded_channel();
    let (calls, ttl, limit) = (setup.calls.clone(), setup.ttl, setup.limit);
    let watching = tokio::spawn(watch::watch(calls.clone(), ttl, limit, send.clone()));
    let _watching = tokio_util::task::AbortOnDropHandle::new(watching);
    let renewal = Some(Box::new(Renewal::new(calls.etcd.clone(), limit)));
    let member = Member::new(setup.shards, ttl);
    let mut driver = Driver {
        setup,
        member,
        renewal,
        lease: (LeaseId(0), ttl),
        commands: VecDeque::new(),
        turns: Arc::new(Semaphore::new(GIVES_MAX)),
        news: send,
        waiting: BTreeMap::new(),
        led: BTreeMap::new(),
        releasing: BTreeMap::new(),
    };
    loop {
        driver.step(|member, now, out| member.handle_time(now, out));
        driver.publish();
        let now = clock::now();
        let nap = driver.member.next_time(now).map_or(NAP, |at| at.since(now).min(NAP));
        tokio::select! {
            biased;
            Some(first) = news.recv() => {
                driver.hear(first);
                for _ in 1..NEWS_PER_TURN {
                    let Ok(more) = news.try_recv() else { break };
                    driver.hear(more);
                }
            }
            request = requests.recv() => match request {
                None => return,
                Some(Request::Close(done)) => {
                    driver.close().await;
                    let _ = done.send(());
                    return;
                }
                Some(request) => driver.answer(request),
            },
            () = tokio::time::sleep(nap) => {}
        }
    }
}

impl Driver {
    /// Lets the member do something, and does what it commands.
    fn step(&mut self, change: impl FnOnce(&mut Member, crate::leadership::Moment, &mut Vec<Command>)) {
        let mut out = Vec::new();
        change(&mut self.member, clock::now(), &mut out);
        self.commands.extend(out);
        while let Some(command) = self.commands.pop_front() {
            self.carry_out(command);
        }
    }

    /// Moves the deadlines where the shards' loops and people see them.
    fn publish(&self) {
        let mut moved = Vec::new();
        for (shard, _, until) in self.member.held() {
            if let Some((_, valid)) = self.led.get(&shard)
                && valid.set(until)
            {
                moved.push((shard, until));
            }
        }
        self.setup.board.hold(&moved);
    }

    fn carry_out(&mut self, command: Command) {
        match command {
            Command::Lead(shard, term) => self.lead(shard, term),
            Command::Ending(shard) => {
                tracing::warn!(%shard, "etcd has not confirmed the lease for too long: nothing starts any more");
                if let Some((leadership, _)) = self.led.get(&shard) {
                    leadership.ending.cancel();
                }
            }
            Command::Ended(shard, why) => {
                tracing::warn!(%shard, "{}", text(why));
                self.end(shard);
            }
            Command::Overrun(shard) => (self.setup.overrun)(shard),
            request => self.send(request),
        }
    }

    /// Sends a request to etcd; its answer comes as news.
    fn send(&mut self, request: Command) {
        let (calls, news) = (self.setup.calls.clone(), self.news.clone());
        let (ttl, (lease, granted)) = (self.setup.ttl, self.lease);
        let renewal = if matches!(request, Command::Keep(_)) { self.renewal.take() } else { None };
        let turns = matches!(request, Command::Give(..)).then(|| Arc::clone(&self.turns));
        tokio::spawn(async move {
            // Held until the answer has come; nobody closes it.
            let _turn = match turns {
                Some(turns) => turns.acquire_owned().await.ok(),
                None => None,
            };
            let answer = match request {
                Command::Grant => News::Granted(calls.grant(ttl).await),
                Command::Keep(id) => {
                    let Some(mut renewal) = renewal else { return };
                    let answer = renewal.keep(id).await;
                    News::Kept(renewal, id, answer)
                }
                Command::Beat(id, terms) => News::Beaten(id, calls.beat(id, &terms).await),
                Command::Take(shard, id, note) => News::Taken(shard, id, calls.take(shard, id, granted, note).await),
                Command::Give(shard, term) => News::Given(shard, calls.give(shard, term, lease, granted).await),
                Command::Lead(..) | Command::Ending(_) | Command::Ended(..) | Command::Overrun(_) => return,
            };
            let _ = news.send(answer);
        });
    }

    fn hear(&mut self, news: News) {
        match news {
            News::Granted(answer) => {
                self.note_errors("a lease", answer.as_ref().err());
                if let Ok(granted) = answer {
                    self.lease = granted;
                }
                self.step(|member, now, out| member.granted(now, answer.ok(), out));
            }
            News::Kept(renewal, lease, answer) => {
                self.renewal = Some(renewal);
                self.note_errors("the renewal of the lease", answer.as_ref().err());
                let answer = answer.unwrap_or(Keepalive::Failed);
                self.step(|member, now, out| member.kept(now, lease, answer, out));
            }
            News::Beaten(lease, Ok(Beaten::Missing(terms))) => self.step(|member, now, out| {
                member.deleted(now, &terms, out);
                member.beaten(now, lease, Beat::Failed, out);
            }),
            News::Beaten(lease, Ok(Beaten::Answer(beat))) => {
                if matches!(beat, Beat::Written { .. }) {
                    self.setup.board.well();
                }
                self.step(|member, now, out| member.beaten(now, lease, beat, out));
            }
            News::Beaten(lease, Err(error)) => {
                self.note_errors("a beat", Some(&error));
                self.step(|member, now, out| member.beaten(now, lease, Beat::Failed, out));
            }
            News::Taken(shard, lease, answer) => {
                self.note_errors("a leader key", answer.as_ref().err());
                let taken = answer.unwrap_or(Taken::Failed);
                self.step(|member, now, out| member.taken(now, shard, lease, taken, out));
            }
            News::Given(shard, answer) => {
                self.note_errors("giving a leader key back", answer.as_ref().err());
                let given = answer.unwrap_or(Given::Failed);
                if given != Given::Failed
                    && let Some(done) = self.releasing.remove(&shard)
                {
                    let _ = done.send(());
                }
                self.step(|member, now, out| member.given(now, shard, given, out));
            }
            News::Listed(list, names) => {
                self.setup.board.list(names);
                self.step(|member, now, out| member.listed(now, &list, out));
            }
            News::Saw(at, change, leader) => {
                self.setup.board.saw(&change, leader);
                self.step(|member, now, out| member.saw(now, at, change, out));
            }
            News::Blind(error) => {
                self.note_errors("the watch on the leader keys", Some(&error));
                self.member.blind();
            }
        }
    }

    fn note_errors(&self, what: &str, error: Option<&EtcdError>) {
        if let Some(error) = error {
            self.setup.board.failed(what, error);
        }
    }

    fn answer(&mut self, request: Request) {
        match request {
            Request::Want(shard, reply) => {
                self.waiting.insert(shard, reply);
                self.step(|member, now, out| member.want(now, shard, out));
            }
            Request::Unwant(shard) => {
                self.waiting.remove(&shard);
                self.step(|member, now, out| member.unwant(now, shard, out));
                // Where it was won in the same moment, it is given back.
                if let Some(term) = self.led.get(&shard).map(|(leadership, _)| leadership.term.revision) {
                    self.end(shard);
                    self.step(|member, now, out| member.release(now, shard, term, out));
                }
            }
            Request::Release(shard, term, done) => {
                self.end(shard);
                self.releasing.insert(shard, done);
                self.step(|member, now, out| member.release(now, shard, term, out));
            }
            Request::Close(_) => {}
        }
    }

    fn lead(&mut self, shard: ShardId, revision: u64) {
        let term = Term { shard, incarnation: self.setup.incarnation, revision };
        let valid = Arc::new(Until::default());
        if let Some((_, _, until)) = self.member.held().find(|(held, ..)| *held == shard) {
            valid.set(until);
            self.setup.board.hold(&[(shard, until)]);
        }
        let leadership = Leadership::new(term).while_valid(valid.clone());
        self.led.insert(shard, (leadership.clone(), valid));
        let taken = self.waiting.remove(&shard).is_some_and(|reply| reply.send(leadership).is_ok());
        if !taken {
            self.end(shard);
            let mut out = Vec::new();
            self.member.release(clock::now(), shard, revision, &mut out);
            self.commands.extend(out);
        }
    }

    /// Nothing may be done for the shard any more.
    fn end(&mut self, shard: ShardId) {
        self.setup.board.ended(shard);
        if let Some((leadership, valid)) = self.led.remove(&shard) {
            valid.end();
            leadership.ending.cancel();
            leadership.ended.cancel();
        }
    }

    /// Lets go of the lease, if nothing hangs on it any more; else it runs out by itself.
    async fn close(&mut self) {
        let Some(lease) = self.member.idle_lease() else { return };
        if !matches!(tokio::time::timeout(REVOKE_MAX, self.setup.calls.revoke(lease)).await, Ok(Ok(()))) {
            tracing::debug!("the lease could not be revoked; it runs out by itself");
        }
    }
}

fn text(why: Why) -> &'static str {
    match why {
        Why::Deadline => "leadership has ended: etcd did not confirm the lease in time",
        Why::KeyGone => "leadership has ended: the leader key was deleted, or written by somebody else",
        Why::LeaseGone => "leadership has ended: the lease ran out or was revoked",
        Why::Restored => {
            "leadership has ended: etcd has gone back to an earlier revision, as after a restore from a backup"
        }
    }
}
