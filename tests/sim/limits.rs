//! What only shows in numbers: bounds that are too large for a simulated world, slices, and places that are used again.

use std::num::{NonZeroU16, NonZeroU32};
use std::time::Duration;

use evenkeel::id::{Causes, Receipt, SourceId};
use evenkeel::scheduler::{
    Admission, Arrival, ArrivalClass, IDLE_KEPT_MAX, Next, Outcome, Priority, RESYNC_WAITING_MAX, Settings, Shard,
    Slot, Time,
};

fn shard(slots: u32) -> Shard {
    let mut shard = Shard::new(Settings::new(NonZeroU16::MIN, NonZeroU32::new(slots).unwrap()));
    shard.grant(0, slots);
    shard
}

fn event(shard: &mut Shard, id: &str, class: ArrivalClass) -> Admission {
    let receipt = Receipt::new(SourceId::numbered(0, false), 0);
    shard.handle_event(Time::ZERO, &Arrival { id, kind: 0, worker: 0, receipt, class }, &mut Vec::new())
}

/// Starts the next run and ends it at once.
fn run(shard: &mut Shard, now: Time, outcome: Outcome) -> (Slot, u64, String) {
    let start = shard.poll_start(now, &mut Vec::new()).expect("something waits");
    let next = shard.handle_outcome(now, start.slot, start.run, outcome, &start.causes, &mut Vec::new());
    assert_ne!(next, Next::Stale);
    (start.slot, start.run, start.id.to_string())
}

#[test]
fn q6_b39_a_resync_keeps_a_thousand_ids_waiting_and_delays_no_event() {
    let mut shard = shard(1);
    // Some ids wait for a time that they asked for.
    for id in 0..100 {
        assert_eq!(event(&mut shard, &format!("timer-{id}"), ArrivalClass::Event), Admission::Admitted);
        run(&mut shard, Time::ZERO, Outcome::Done(Some(Time(3_600_000_000_000))));
    }
    let (mut admitted, mut latest) = (0, String::new());
    let now = Time(1_000_000_000);
    let mut list: Vec<_> = (0..50_000).map(|id| format!("listed-{id}")).collect();
    list.extend((0..100).map(|id| format!("timer-{id}")));
    list.reverse();
    let receipt = Receipt::new(SourceId::numbered(1, false), 0);
    let class = ArrivalClass::Resync;
    while let Some(id) = list.pop() {
        let arrival = Arrival { id: &id, kind: 0, worker: 0, receipt, class };
        if shard.handle_event(now, &arrival, &mut Vec::new()) == Admission::Refused {
            assert_eq!(shard.waiting_in(Priority::Resync), RESYNC_WAITING_MAX);
            assert_eq!(event(&mut shard, &latest, class), Admission::Present, "it waits already");
            list.push(id);
            // An event in the midst of it is next.
            if admitted % 5_000 == 0 {
                event(&mut shard, "urgent", ArrivalClass::Event);
                let order: Vec<_> = (0..2).map(|_| run(&mut shard, now, Outcome::Done(None)).2).collect();
                assert!(order.contains(&"urgent".to_owned()), "{order:?}");
            }
            run(&mut shard, now, Outcome::Done(None));
        } else {
            admitted += 1;
            latest = id;
        }
        assert!(shard.waiting_in(Priority::Resync) <= RESYNC_WAITING_MAX);
    }
    while shard.waiting() > 0 {
        run(&mut shard, now, Outcome::Done(None));
    }
    shard.audit();
    assert_eq!((shard.waiting(), shard.delayed()), (0, 0), "nothing of the list is left out");
}

#[test]
fn d5_idle_ids_make_room_and_late_answers_change_nothing() {
    let mut shard = shard(1);
    let kept = IDLE_KEPT_MAX;
    event(&mut shard, "first", ArrivalClass::Event);
    let (slot, number, _) = run(&mut shard, Time::ZERO, Outcome::Done(None));
    let mut used_again = false;
    for id in 0..kept + 1_000 {
        event(&mut shard, &format!("id-{id}"), ArrivalClass::Event);
        let start = shard.poll_start(Time::ZERO, &mut Vec::new()).expect("it waits");
        if start.slot == slot {
            // The place has another id now, which runs. The late end of the first one's run does not end it.
            used_again = true;
            let late =
                shard.handle_outcome(Time::ZERO, slot, number, Outcome::Done(None), &Causes::NONE, &mut Vec::new());
            assert_eq!(late, Next::Stale);
            let mut out = Vec::new();
            shard.handle_recorded(Time::ZERO, slot, 1, &mut out);
            assert_eq!(out, []);
        }
        shard.handle_outcome(Time::ZERO, start.slot, start.run, Outcome::Done(None), &start.causes, &mut Vec::new());
        assert!(shard.known() <= kept + 1);
    }
    assert!(used_again);
    assert_eq!(shard.levels().idle, kept);
    shard.audit();
    assert_eq!(event(&mut shard, "first", ArrivalClass::Event), Admission::Admitted);
}

#[test]
fn d5_a_herd_comes_due_in_slices() {
    let mut shard = shard(1);
    let due = Time(60_000_000_000);
    for id in 0..3_000 {
        event(&mut shard, &format!("id-{id}"), ArrivalClass::Event);
        run(&mut shard, Time::ZERO, Outcome::Done(Some(due)));
    }
    assert_eq!(shard.delayed(), 3_000);
    let mut turns = 0;
    while shard.next_time().is_some_and(|time| time <= due) {
        let before = shard.delayed();
        shard.handle_time(due, &mut Vec::new());
        assert!(before - shard.delayed() <= 512, "a slice at a time");
        turns += 1;
    }
    assert!((6..10).contains(&turns), "{turns} turns");
    assert_eq!((shard.delayed(), shard.waiting_in(Priority::Due)), (0, 3_000));
    shard.audit();
}

#[test]
fn d11_pages_and_redrives_come_to_every_id_once() {
    let mut shard = shard(1);
    for id in 0..1_000 {
        event(&mut shard, &format!("id-{id}"), ArrivalClass::Event);
        let outcome = match id % 3 {
            0 => Outcome::Terminal,
            1 => Outcome::Failed(Some(Duration::from_secs(60))),
            _ => Outcome::Done(None),
        };
        run(&mut shard, Time::ZERO, outcome);
    }
    for (look, take) in [(0, 0), (1, 1), (7, 100), (100, 7), (usize::MAX, usize::MAX)] {
        let (mut after, mut found) = (None, Vec::new());
        loop {
            let (page, next) = shard.page(after, look, take, |_| true);
            assert!(page.len() <= take.max(1));
            found.extend(page.into_iter().map(|entry| entry.id));
            after = next;
            if after.is_none() {
                break;
            }
        }
        let count = found.len();
        found.sort();
        found.dedup();
        assert_eq!((found.len(), count), (667, 667), "look at {look}, take {take}");
    }
    let (mut after, mut released) = (None, 0);
    loop {
        let (next, ids) = shard.handle_redrive_matching(Time::ZERO, after, 64, |id| id.ends_with('3'));
        released += ids.len();
        after = next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!((released, shard.waiting(), shard.levels().parked), (34, 34, 300));
    shard.audit();
}
