//! Processes with engines, an etcd, the network between them, and what goes wrong.
//!
//! A process acts for a shard from the moment it is told to lead until its engine has cut off what runs, which takes up
//! to 300 ms after it is told that the term has ended. A process that stands still does not act, and one that wakes up
//! after its deadline does not either: the clock is looked at before every step.

use std::collections::BTreeMap;
use std::time::Duration;

use super::etcd::{Etcd, Millis, TTL};
use super::random::Random;
use crate::id::ShardId;
use crate::leadership::{Beat, Change, Command, Given, Keepalive, LeaseId, List, Member, Moment, Taken, Why};

const PROCESSES: usize = 3;
const SHARDS: u16 = 2;
/// Faults happen for so long; then everything must come to rest.
const FAULTS_FOR: Millis = 120_000;
const REST: Millis = 60_000;
/// What is allowed for an answer.
const TIMEOUT: Millis = 1_000;
/// The longest that an engine takes to cut off what runs.
const CUT_OFF: u64 = 300;

/// How often what goes wrong.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Plan {
    pub kills: u32,
    pub handovers: u32,
    pub frozen_leaders: u32,
    pub leader_changes: u32,
    pub cuts: u32,
    pub freezes: u32,
    pub deletions: u32,
    pub blinds: u32,
    /// Planted: a term counts as stopped when it begins.
    pub notes_lie: bool,
    /// Planted: what runs is not cut off in time.
    pub late_cut_off: bool,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Counts {
    pub overlaps: u64,
    pub unled: u64,
    pub led: u64,
    pub orderly: u64,
    pub by_deadline: u64,
    pub by_deletion: u64,
    pub wrongly_revoked: u64,
    pub empty_answers: u64,
    /// The last steps before the first overlap.
    pub trace: Vec<String>,
}

impl Counts {
    pub(super) fn add(&mut self, other: &Self) {
        self.led += other.led;
        self.orderly += other.orderly;
        self.by_deadline += other.by_deadline;
        self.by_deletion += other.by_deletion;
        self.wrongly_revoked += other.wrongly_revoked;
        self.empty_answers += other.empty_answers;
    }
}

/// What reaches a process.
#[derive(Debug, Clone)]
enum News {
    Granted(Option<LeaseId>),
    Kept(LeaseId, Keepalive),
    Beaten(LeaseId, Beat),
    Missing(LeaseId, Vec<(ShardId, u64)>),
    Taken(ShardId, LeaseId, Taken),
    Given(ShardId, Given),
    Listed(List),
    Saw(u64, Change),
    /// The engine's runs have ended.
    Quiet(ShardId, u64),
    /// The engine gives a shard back without a reason.
    Tired(ShardId, u64),
}

#[derive(Debug, Clone)]
enum Step {
    /// A request reaches etcd, and its answer is to come back or not.
    Request(usize, u64, Command, bool),
    /// A keepalive that a frozen member has in hand.
    Held(usize, u64, LeaseId, u64),
    News(usize, u64, News),
    List(usize, u64),
    Fault(Fault),
    Heal(usize, u64),
    Thaw(usize),
    Wake,
}

#[derive(Debug, Clone, Copy)]
enum Fault {
    Kill,
    Handover,
    FreezeLeader,
    ChangeLeader,
    Cut,
    Freeze,
    Delete,
    Blind,
}

struct Process {
    member: Member,
    /// Grows with every restart: what was meant for the one before is lost.
    life: u64,
    cut: bool,
    frozen: bool,
    /// What came while it stood still.
    kept: Vec<News>,
    /// The terms in which it acts, and whether they are ending.
    acting: BTreeMap<ShardId, u64>,
    /// When the watch tells its next change at the earliest: changes come in order.
    told_until: Millis,
    blind: bool,
}

impl Process {
    fn new(life: u64) -> Self {
        let member = Member::new(SHARDS, Duration::from_millis(TTL));
        let acting = BTreeMap::new();
        Self { member, life, cut: false, frozen: false, kept: Vec::new(), acting, told_until: 0, blind: true }
    }
}

pub(super) struct World {
    now: Millis,
    random: Random,
    plan: Plan,
    etcd: Etcd,
    processes: Vec<Process>,
    queue: BTreeMap<(Millis, u64), Step>,
    number: u64,
    tokens: BTreeMap<ShardId, u64>,
    counts: Counts,
}

impl World {
    /// Plays a plan; gives what came of it.
    pub(super) fn play(plan: &Plan, seed: u64) -> Counts {
        let mut etcd = Etcd::default();
        (etcd.raft_term, etcd.notes_lie) = (1, plan.notes_lie);
        let mut world = Self {
            now: 0,
            random: Random::new(seed),
            plan: *plan,
            etcd,
            processes: Vec::new(),
            queue: BTreeMap::new(),
            number: 0,
            tokens: BTreeMap::new(),
            counts: Counts::default(),
        };
        for index in 0..PROCESSES {
            world.processes.push(Process::new(0));
            world.boot(index);
        }
        world.schedule_faults();
        world.run(FAULTS_FOR + REST);
        world.counts.unled = (0..SHARDS).filter(|shard| world.leaders(ShardId(*shard)) == 0).count() as u64;
        world.counts
    }

    fn boot(&mut self, index: usize) {
        let (life, delay) = (self.processes[index].life, self.random.range(1, 500));
        self.at(delay, Step::List(index, life));
        for shard in (0..SHARDS).map(ShardId) {
            self.with(index, |member, now, out| member.want(now, shard, out));
        }
    }

    fn schedule_faults(&mut self) {
        let plan = self.plan;
        for (count, fault) in [
            (plan.kills, Fault::Kill),
            (plan.handovers, Fault::Handover),
            (plan.frozen_leaders, Fault::FreezeLeader),
            (plan.leader_changes, Fault::ChangeLeader),
            (plan.cuts, Fault::Cut),
            (plan.freezes, Fault::Freeze),
            (plan.deletions, Fault::Delete),
            (plan.blinds, Fault::Blind),
        ] {
            for _ in 0..count {
                let at = self.random.range(3_000, FAULTS_FOR);
                self.at(at, Step::Fault(fault));
            }
        }
    }

    fn moment(&self) -> Moment {
        Moment(Duration::from_millis(self.now))
    }

    fn at(&mut self, delay: Millis, step: Step) {
        self.number += 1;
        self.queue.insert((self.now + delay, self.number), step);
    }

    fn run(&mut self, until: Millis) {
        while self.now < until && self.counts.overlaps == 0 {
            let next_step = self.queue.first_key_value().map_or(until, |((at, _), _)| *at);
            let now = self.moment();
            let awake = self.processes.iter().filter(|process| !process.frozen);
            let timer = awake.filter_map(|process| process.member.next_time(now)).min();
            // A timer is never early, and the loop goes at least one step further.
            let timer = timer.map_or(until, |at| {
                Millis::try_from(at.0.as_micros().div_ceil(1_000)).unwrap_or(until).max(self.now + 1)
            });
            self.now = next_step.min(timer).min(self.now + 250).max(self.now);
            self.etcd.expire(self.now, &mut self.random);
            while let Some(entry) = self.queue.first_entry()
                && entry.key().0 <= self.now
            {
                let step = entry.remove();
                self.step(step);
            }
            for index in 0..self.processes.len() {
                self.with(index, |member, now, out| member.handle_time(now, out));
            }
            self.tell_changes();
            self.look();
        }
    }

    /// Lets a process do something, and carries out what it commands.
    fn with(&mut self, index: usize, change: impl FnOnce(&mut Member, Moment, &mut Vec<Command>)) {
        if self.processes[index].frozen {
            return;
        }
        let (now, mut out) = (self.moment(), Vec::new());
        change(&mut self.processes[index].member, now, &mut out);
        for command in out {
            self.trace(|| format!("process {index}: {command:?}"));
            self.command(index, command);
        }
    }

    fn command(&mut self, index: usize, command: Command) {
        let life = self.processes[index].life;
        match command {
            Command::Lead(shard, term) => self.lead(index, shard, term),
            Command::Ending(shard) | Command::Overrun(shard) => {
                // An orderly end of runs may take longer than there is time.
                let delay = self.random.range(0, 4_000);
                self.quiet_in(index, shard, delay);
            }
            Command::Ended(shard, why) => {
                match why {
                    Why::Deadline => self.counts.by_deadline += 1,
                    Why::KeyGone | Why::LeaseGone | Why::Restored => self.counts.by_deletion += 1,
                }
                let longest = if self.plan.late_cut_off { 10 * CUT_OFF } else { CUT_OFF };
                let delay = self.random.range(0, longest);
                self.quiet_in(index, shard, delay);
            }
            request => {
                let answered = !self.random.chance(if self.now < FAULTS_FOR { 2 } else { 0 });
                let slow = self.random.chance(3);
                let delay = if slow { self.random.range(30, 800) } else { self.random.range(1, 15) };
                self.at(delay, Step::Request(index, life, request, answered));
            }
        }
    }

    fn lead(&mut self, index: usize, shard: ShardId, term: u64) {
        self.counts.led += 1;
        let before = self.tokens.insert(shard, term).unwrap_or(0);
        assert!(before < term, "the token of shard {shard} went from {before} to {term} (L4)");
        self.processes[index].acting.insert(shard, term);
    }

    fn quiet_in(&mut self, index: usize, shard: ShardId, delay: Millis) {
        let life = self.processes[index].life;
        if let Some(term) = self.processes[index].acting.get(&shard).copied() {
            self.at(delay, Step::News(index, life, News::Quiet(shard, term)));
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Request(index, life, request, answered) => self.request(index, life, &request, answered),
            Step::Held(index, life, lease, raft_term) => {
                self.counts.empty_answers += 1;
                let ttl = Duration::from_millis(TTL);
                self.answer(index, life, News::Kept(lease, Keepalive::Alive { ttl, raft_term }));
            }
            Step::News(index, life, news) => self.news(index, life, news),
            Step::List(index, life) => self.relist(index, life),
            Step::Fault(fault) => self.fault(fault),
            Step::Heal(index, life) if self.processes[index].life == life => self.processes[index].cut = false,
            Step::Heal(..) => {}
            Step::Thaw(index) => self.thaw(index),
            Step::Wake => {
                let now = self.now;
                let revoked = self.etcd.wake(now, &mut self.random);
                self.trace(|| format!("etcd's old leader wakes, {revoked} leases revoked"));
                self.counts.wrongly_revoked += revoked;
            }
        }
    }

    fn request(&mut self, index: usize, life: u64, request: &Command, answered: bool) {
        if self.processes[index].life != life {
            return;
        }
        if self.processes[index].cut || self.now < self.etcd.leaderless_until {
            return self.fail(index, life, request, TIMEOUT);
        }
        if let Command::Keep(lease) = request
            && self.etcd.has_frozen_member()
            && self.random.chance(40)
        {
            // It comes to the frozen member; whether that wakes in time is seen then.
            let raft_term = self.etcd.raft_term - 1;
            let wakes = self.queue.iter().find(|(_, step)| matches!(step, Step::Wake)).map(|((at, _), _)| *at);
            return match wakes.map(|at| at - self.now) {
                Some(wait) if wait < TIMEOUT - 100 => self.at(wait + 1, Step::Held(index, life, *lease, raft_term)),
                _ => self.fail(index, life, request, TIMEOUT),
            };
        }
        let news = self.serve(request);
        if answered {
            self.answer(index, life, news);
        } else {
            self.fail(index, life, request, TIMEOUT);
        }
    }

    /// What etcd does with a request.
    fn serve(&mut self, request: &Command) -> News {
        let (now, raft_term) = (self.now, self.etcd.raft_term);
        let ttl = Duration::from_millis(TTL);
        match request {
            Command::Keep(lease) if self.etcd.renew(now, *lease) => {
                News::Kept(*lease, Keepalive::Alive { ttl, raft_term })
            }
            Command::Keep(lease) => News::Kept(*lease, Keepalive::Gone),
            Command::Beat(lease, _) if !self.etcd.lives(*lease) => News::Beaten(*lease, Beat::Gone),
            Command::Beat(lease, terms) => {
                let stands = |(shard, term): &(ShardId, u64)| {
                    self.etcd.leaders.get(shard).is_some_and(|holder| holder.revision == *term)
                };
                let missing: Vec<_> = terms.iter().filter(|term| !stands(term)).copied().collect();
                if missing.is_empty() {
                    self.etcd.beat(*lease);
                    return News::Beaten(*lease, Beat::Written { raft_term });
                }
                News::Missing(*lease, missing)
            }
            Command::Take(shard, lease, note) => {
                let taken = match self.etcd.take(*shard, *lease, *note) {
                    Some(revision) => Taken::Done(revision),
                    None => Taken::Refused(self.etcd.leaders.get(shard).copied(), self.etcd.revision),
                };
                News::Taken(*shard, *lease, taken)
            }
            Command::Give(shard, term) => {
                News::Given(*shard, self.etcd.give(*shard, *term).map_or(Given::Late, Given::Done))
            }
            _ => News::Granted(Some(self.etcd.grant(now))),
        }
    }

    fn answer(&mut self, index: usize, life: u64, news: News) {
        let delay = self.random.range(1, 10);
        self.at(delay, Step::News(index, life, news));
    }

    fn fail(&mut self, index: usize, life: u64, request: &Command, delay: Millis) {
        let news = match request {
            Command::Keep(lease) => News::Kept(*lease, Keepalive::Failed),
            Command::Beat(lease, _) => News::Beaten(*lease, Beat::Failed),
            Command::Take(shard, lease, _) => News::Taken(*shard, *lease, Taken::Failed),
            Command::Give(shard, _) => News::Given(*shard, Given::Failed),
            _ => News::Granted(None),
        };
        self.at(delay, Step::News(index, life, news));
    }

    fn news(&mut self, index: usize, life: u64, news: News) {
        if self.processes[index].life != life {
            return;
        }
        if self.processes[index].frozen {
            self.processes[index].kept.push(news);
            return;
        }
        match news {
            News::Granted(lease) => {
                let granted = lease.map(|id| (id, Duration::from_millis(TTL)));
                self.with(index, |member, now, out| member.granted(now, granted, out));
            }
            News::Kept(lease, answer) => self.with(index, |member, now, out| member.kept(now, lease, answer, out)),
            News::Beaten(lease, answer) => self.with(index, |member, now, out| member.beaten(now, lease, answer, out)),
            News::Missing(lease, terms) => self.with(index, |member, now, out| {
                member.deleted(now, &terms, out);
                member.beaten(now, lease, Beat::Failed, out);
            }),
            News::Taken(shard, lease, taken) => {
                self.with(index, |member, now, out| member.taken(now, shard, lease, taken, out));
            }
            News::Given(shard, given) => self.with(index, |member, now, out| member.given(now, shard, given, out)),
            News::Listed(list) => {
                self.processes[index].blind = false;
                self.with(index, |member, now, out| member.listed(now, &list, out));
            }
            News::Saw(revision, change) => {
                self.with(index, |member, now, out| member.saw(now, revision, change, out));
            }
            News::Quiet(shard, term) | News::Tired(shard, term) => {
                if self.processes[index].acting.get(&shard) == Some(&term) {
                    self.processes[index].acting.remove(&shard);
                    self.with(index, |member, now, out| {
                        member.want(now, shard, out);
                        member.release(now, shard, term & !LATE, out);
                    });
                }
            }
        }
    }

    /// The watch begins anew: what came before is in the list, what comes after is told.
    fn relist(&mut self, index: usize, life: u64) {
        if self.processes[index].life != life {
            return;
        }
        if self.processes[index].cut || self.now < self.etcd.leaderless_until {
            return self.at(200, Step::List(index, life));
        }
        self.processes[index].blind = false;
        let list = self.etcd.list();
        let delay = self.random.range(1, 20);
        self.processes[index].told_until = self.now + delay;
        self.at(delay, Step::News(index, life, News::Listed(list)));
    }

    /// Tells each watch what has changed, in order.
    fn tell_changes(&mut self) {
        for (revision, change) in std::mem::take(&mut self.etcd.changes) {
            for index in 0..self.processes.len() {
                if self.processes[index].blind {
                    continue;
                }
                if self.processes[index].cut {
                    self.lose_sight(index);
                    continue;
                }
                let slowest = if self.random.chance(5) { 300 } else { 10 };
                let delay = self.random.range(1, slowest);
                let at = (self.now + delay).max(self.processes[index].told_until);
                self.processes[index].told_until = at;
                let life = self.processes[index].life;
                self.at(at - self.now, Step::News(index, life, News::Saw(revision, change)));
            }
        }
    }

    fn lose_sight(&mut self, index: usize) {
        self.processes[index].blind = true;
        self.with(index, |member, _, _| member.blind());
        let (life, delay) = (self.processes[index].life, self.random.range(100, 3_000));
        self.at(delay, Step::List(index, life));
    }

    fn fault(&mut self, fault: Fault) {
        let index = usize::try_from(self.random.range(0, PROCESSES as u64)).expect("small");
        self.trace(|| format!("{fault:?} {index}"));
        let life = self.processes[index].life;
        match fault {
            Fault::Kill => {
                self.processes[index] = Process::new(life + 1);
                self.boot(index);
            }
            Fault::Handover => {
                let acting: Vec<(ShardId, u64)> =
                    self.processes[index].acting.iter().map(|(shard, term)| (*shard, *term)).collect();
                for (shard, term) in acting {
                    self.counts.orderly += 1;
                    self.at(0, Step::News(index, life, News::Tired(shard, term)));
                }
            }
            Fault::FreezeLeader if !self.etcd.has_frozen_member() => {
                self.etcd.freeze_leader(self.now, &mut self.random);
                let lasts = self.random.range(TTL / 2, TTL * 2);
                self.at(lasts, Step::Wake);
            }
            Fault::ChangeLeader => self.etcd.change_leader(self.now, &mut self.random),
            Fault::Cut => {
                self.processes[index].cut = true;
                let lasts = self.random.range(300, 3 * TTL);
                self.at(lasts, Step::Heal(index, life));
            }
            Fault::Freeze if !self.processes[index].frozen => {
                self.processes[index].frozen = true;
                let lasts = self.random.range(300, 3 * TTL);
                self.at(lasts, Step::Thaw(index));
            }
            Fault::Delete => {
                let shard = ShardId(u16::try_from(self.random.range(0, u64::from(SHARDS))).expect("small"));
                self.etcd.delete(shard);
            }
            Fault::Blind => self.lose_sight(index),
            Fault::FreezeLeader | Fault::Freeze => {}
        }
    }

    /// A process goes on: what waited for it comes at once, and what it acts for without a term is cut off at once.
    fn thaw(&mut self, index: usize) {
        self.processes[index].frozen = false;
        let now = self.moment();
        let held: BTreeMap<ShardId, Moment> =
            self.processes[index].member.held().map(|(shard, _, until)| (shard, until)).collect();
        let over: Vec<ShardId> = self.processes[index].acting.keys().copied().collect();
        for shard in over.into_iter().filter(|shard| held.get(shard).is_none_or(|until| *until <= now)) {
            if let Some(term) = self.processes[index].acting.get_mut(&shard) {
                *term |= LATE;
            }
            self.quiet_in(index, shard, 0);
        }
        let life = self.processes[index].life;
        for news in std::mem::take(&mut self.processes[index].kept) {
            self.at(0, Step::News(index, life, news));
        }
    }

    fn leaders(&self, shard: ShardId) -> usize {
        let acts =
            |process: &&Process| !process.frozen && process.acting.get(&shard).is_some_and(|term| term & LATE == 0);
        self.processes.iter().filter(acts).count()
    }

    fn look(&mut self) {
        for shard in (0..SHARDS).map(ShardId) {
            if self.leaders(shard) > 1 {
                self.trace(|| format!("two act for shard {shard}"));
                self.counts.overlaps += 1;
            }
        }
    }

    fn trace(&mut self, text: impl FnOnce() -> String) {
        if self.counts.trace.len() > 60 {
            self.counts.trace.remove(0);
        }
        let text = format!("{} {}", self.now, text());
        self.counts.trace.push(text);
    }
}

/// Marks a term whose process woke up after its deadline: it runs nothing more.
const LATE: u64 = 1 << 63;
