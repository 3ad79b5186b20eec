//! The plan of a world, all from its seed: how large it is, its bounds, and what happens in it.

use std::num::{NonZeroU16, NonZeroU32};
use std::time::Duration;

use evenkeel::scheduler::{ArrivalClass, DELAY_MAX, KindSettings, Outcome, Retry, Settings, Time};

use crate::random::Random;

/// The shape of a world.
pub(crate) struct Plan {
    pub(crate) settings: Settings,
    pub(crate) ids: usize,
    pub(crate) sources: usize,
    pub(crate) permits: u32,
    pub(crate) start: u64,
    /// One worker has more to do than it can, and two ids are only ever listed by a resync.
    pub(crate) busy: bool,
}

/// How a run ends; times are from then on.
#[derive(Debug, Clone, Copy)]
pub(crate) enum End {
    Done,
    Again(Duration),
    AgainInThePast,
    AgainAtTheEndOfTime,
    Failed,
    FailedWithDelay(Duration),
    Terminal,
    Cancelled,
}

impl End {
    pub(crate) fn at(self, now: Time) -> Outcome {
        match self {
            Self::Done => Outcome::Done(None),
            Self::Again(delay) => Outcome::Done(Some(now.after(delay))),
            Self::AgainInThePast => Outcome::Done(Some(Time(now.0 / 2))),
            Self::AgainAtTheEndOfTime => Outcome::Done(Some(Time::MAX)),
            Self::Failed => Outcome::Failed(None),
            Self::FailedWithDelay(delay) => Outcome::Failed(Some(delay)),
            Self::Terminal => Outcome::Terminal,
            Self::Cancelled => Outcome::Cancelled,
        }
    }
}

/// One step.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Op {
    Produce { source: usize, id: Option<usize>, class: ArrivalClass },
    Deliver { source: usize },
    Untracked { id: usize, class: ArrivalClass },
    Start { count: u32 },
    End { which: usize, outcome: End },
    EndAgain,
    Advance { by: Duration, awake: bool },
    Time,
    Cancel { id: usize },
    Redrive { id: Option<usize> },
    RecordNow { id: usize },
    CarryOut,
    Answer { id: usize },
    Commit { source: usize },
    AnswerCommit,
    Permits { kind: usize },
    Kill { luck: u64 },
    HandOver,
}

impl Plan {
    pub(crate) fn new(seed: u64, hash_seed: u64) -> Self {
        let random = &mut Random::new(seed);
        let ids = usize::try_from(random.between(1, 9)).unwrap();
        let sources = usize::try_from(random.between(1, 3)).unwrap();
        let permits = u32::try_from(random.between(1, 6)).unwrap();
        let start = random.below(3) * 1_000_000_007;
        let mut settings = settings(random, hash_seed);
        let busy = random.percent(15);
        if busy {
            settings.kinds.truncate(1);
            (settings.kinds[0].workers, settings.kinds[0].slots) = (NonZeroU16::MIN, NonZeroU32::MIN);
            settings.admitted_max = NonZeroU32::MIN.saturating_add(10);
        }
        Self { settings, ids: if busy { 9 } else { ids }, sources, permits, start, busy }
    }
}

impl Plan {
    /// The kind and the worker of an id.
    pub(crate) fn lane(&self, id: usize) -> (u16, u16) {
        let kinds = self.settings.kinds.len();
        let (kind, worker) = (id % kinds, id / kinds % usize::from(self.settings.kinds[id % kinds].workers.get()));
        (u16::try_from(kind).unwrap(), u16::try_from(worker).unwrap())
    }
}

fn settings(random: &mut Random, hash_seed: u64) -> Settings {
    let mut count = |most| NonZeroU32::new(u32::try_from(random.between(1, most)).unwrap()).unwrap();
    let (admitted_max, timers_max, owed_records_max) = (count(10), count(5), count(8));
    let kinds = (0..random.between(1, 2)).map(|_| kind(random)).collect();
    Settings {
        admitted_max,
        timers_max,
        owed_records_max,
        max_hold: *random.pick(&[1, 5, 60].map(Duration::from_secs)),
        min_requeue: *random.pick(&[1, 250, 3_000].map(Duration::from_millis)),
        resolution: *random.pick(&[1, 10, 1_000].map(Duration::from_millis)),
        durable: random.percent(90),
        hash_seed,
        kinds,
    }
}

fn kind(random: &mut Random) -> KindSettings {
    let max_retries = *random.pick(&[Some(0), Some(1), Some(3), None]);
    KindSettings {
        workers: NonZeroU16::new(u16::try_from(random.between(1, 3)).unwrap()).unwrap(),
        slots: NonZeroU32::new(u32::try_from(random.between(1, 3)).unwrap()).unwrap(),
        retry: Retry { max_delay: Duration::from_secs(30), max_retries, ..Retry::DEFAULT },
    }
}

/// How often each kind of step is drawn; some worlds have much of one and nothing of another.
const WEIGHTS: [u64; 18] = [12, 14, 10, 14, 14, 1, 9, 2, 2, 2, 2, 6, 8, 4, 4, 1, 1, 1];

/// How far time jumps at once, at most: a long history must not last for decades.
const AT_ONCE_MAX: Duration = Duration::from_secs(4 * 3_600);

/// The history of a seed: its first steps are the same however long it is.
pub(crate) fn history(seed: u64, steps: usize) -> Vec<Op> {
    let plan = Plan::new(seed, 0);
    let random = &mut Random::new(!seed);
    let mut weights = WEIGHTS.map(|weight| weight * *random.pick(&[1, 2, 2, 4, 8]) * u64::from(!random.percent(5)));
    if plan.busy {
        (weights[0], weights[1], weights[2], weights[3], weights[4]) = (100, 100, 400, 100, 100);
    }
    let total = weights.iter().sum::<u64>();
    let mut op = || {
        let mut at = random.below(total);
        let kind = weights.iter().position(|weight| at.checked_sub(*weight).map(|rest| at = rest).is_none());
        let op = draw(random, kind.unwrap(), &plan);
        if plan.busy { only_listed(op) } else { op }
    };
    (0..steps).map(|_| op()).collect()
}

/// The first two ids are only ever listed by a resync.
fn only_listed(op: Op) -> Op {
    match op {
        Op::Untracked { id, .. } => {
            Op::Untracked { id, class: if id < 2 { ArrivalClass::Resync } else { ArrivalClass::Event } }
        }
        Op::Produce { source, id, .. } => {
            Op::Produce { source, id: id.map(|id| id.max(2)), class: ArrivalClass::Event }
        }
        other => other,
    }
}

fn draw(random: &mut Random, kind: usize, plan: &Plan) -> Op {
    let Plan { settings, ids, sources, .. } = plan;
    let mut index = |end: usize| usize::try_from(random.below(end as u64)).unwrap();
    let (id, source, kind_of_run) = (index(*ids), index(*sources), index(settings.kinds.len()));
    match kind {
        0 => Op::Produce { source, id: (!random.percent(8)).then_some(id), class: class(random, source) },
        1 => Op::Deliver { source },
        2 => Op::Untracked { id, class: class(random, source + 1) },
        3 => Op::Start { count: u32::try_from(random.between(1, 6)).unwrap() },
        4 => Op::End { which: usize::try_from(random.below(64)).unwrap(), outcome: end(random, settings) },
        5 => Op::EndAgain,
        6 => Op::Advance { by: distance(random, settings).min(AT_ONCE_MAX), awake: random.percent(80) },
        7 => Op::Time,
        8 => Op::Cancel { id },
        9 => Op::Redrive { id: random.percent(80).then_some(id) },
        10 => Op::RecordNow { id },
        11 => Op::CarryOut,
        12 => Op::Answer { id },
        13 => Op::Commit { source },
        14 => Op::AnswerCommit,
        15 => Op::Permits { kind: kind_of_run },
        16 => Op::Kill { luck: random.next() },
        _ => Op::HandOver,
    }
}

/// The first source brings events, the second everything, the third what a resync lists.
fn class(random: &mut Random, source: usize) -> ArrivalClass {
    match source {
        0 => ArrivalClass::Event,
        2 => ArrivalClass::Resync,
        _ => *random.pick(&[ArrivalClass::Event, ArrivalClass::Event, ArrivalClass::Resync, ArrivalClass::Trigger]),
    }
}

fn end(random: &mut Random, settings: &Settings) -> End {
    match random.below(100) {
        0..40 => End::Done,
        40..54 => End::Again(distance(random, settings)),
        54..56 => End::AgainInThePast,
        56..57 => End::AgainAtTheEndOfTime,
        57..82 => End::Failed,
        82..88 => End::FailedWithDelay(distance(random, settings)),
        88..96 => End::Terminal,
        _ => End::Cancelled,
    }
}

/// Times at which something changes its mind: ticks, `min_requeue`, `max_hold`, ends of buckets, and far away.
fn distance(random: &mut Random, settings: &Settings) -> Duration {
    let millis = |count| Duration::from_millis(count);
    let base = match random.below(16) {
        0..4 => Duration::ZERO,
        4..8 => millis(random.below(400)),
        8..11 => settings.min_requeue,
        11..13 => settings.max_hold,
        13 => millis(random.below(40_000)),
        14 => millis(random.below(4 * 3_600_000)),
        _ if random.percent(10) => DELAY_MAX + settings.resolution,
        _ => settings.resolution * u32::try_from(random.below(1 << 15)).unwrap(),
    };
    match random.below(4) {
        0 => base,
        1 => base + Duration::from_nanos(1),
        2 => base.saturating_sub(Duration::from_nanos(1)),
        _ => base + millis(random.below(20)),
    }
}
