//! Plays histories that were made from a seed, and says of one that fails: which seed, which step, the shortest history
//! that still fails, and the command that plays it again.

use std::cell::Cell;
use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

/// Steps played in search of a shorter history that fails, at most: some seconds.
const SHRINK_STEPS_MAX: usize = 300_000;

/// Steps of a history that are shown, at most.
const SHOWN_MAX: usize = 60;

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
    static PLACE: Cell<Option<(String, u32)>> = const { Cell::new(None) };
}

/// What went wrong, and at which step; the number of steps means: afterwards, when everything should come to rest.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub(crate) step: usize,
    pub(crate) message: String,
}

/// A kind of history: how it is made and how it is played.
pub(crate) struct Game<O, M, P> {
    /// The test, as `cargo test` knows it.
    pub(crate) name: &'static str,
    pub(crate) make: M,
    pub(crate) play: P,
    pub(crate) ops: std::marker::PhantomData<O>,
}

impl<O: Clone + Debug, M: Fn(u64, usize) -> Vec<O>, P: Fn(u64, &[O]) -> Result<u64, Failure>> Game<O, M, P> {
    pub(crate) fn new(name: &'static str, make: M, play: P) -> Self {
        Self { name, make, play, ops: std::marker::PhantomData }
    }

    /// The first seed whose history fails.
    pub(crate) fn find(&self, seeds: std::ops::Range<u64>, steps: usize) -> Option<(u64, Failure)> {
        seeds.into_iter().find_map(|seed| Some((seed, (self.play)(seed, &(self.make)(seed, steps)).err()?)))
    }

    /// Plays all seeds, or the one that the environment names, and panics with a report if one fails.
    pub(crate) fn check(&self, seeds: u64, steps: usize) {
        let number = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("switches are numbers"));
        let steps = number("EVENKEEL_TEST_STEPS").map_or(steps, |steps| usize::try_from(steps).expect("it fits"));
        let seeds = number("EVENKEEL_TEST_SEEDS").unwrap_or(seeds);
        let seeds = number("EVENKEEL_TEST_SEED").map_or(0..seeds, |seed| seed..seed + 1);
        let Some((seed, failure)) = self.find(seeds, steps) else { return };
        let (shortest, last) = self.shrink(seed, steps, failure.clone());
        let Failure { step, message } = failure;
        let name = self.name;
        let left_out = shortest.len().saturating_sub(SHOWN_MAX);
        let mut history: String = shortest[left_out..].iter().map(|op| format!("  {op:?}\n")).collect();
        if left_out > 0 {
            history.insert_str(0, &format!("  … {left_out} steps\n"));
        }
        panic!(
            "{name}: seed {seed}, step {step}: {message}\nThe shortest history that fails, at step {}, with: {}\n{history}\
             Again: EVENKEEL_TEST_SEED={seed} EVENKEEL_TEST_STEPS={steps} cargo test --test sim {name}",
            last.step, last.message
        );
    }

    /// Cuts the history after the failure, then leaves out whatever it does not need.
    fn shrink(&self, seed: u64, steps: usize, mut failure: Failure) -> (Vec<O>, Failure) {
        let mut ops = (self.make)(seed, steps);
        ops.truncate(failure.step + 1);
        let mut chunk = ops.len().div_ceil(2);
        let mut played = 0;
        while chunk > 0 && played < SHRINK_STEPS_MAX {
            let mut start = 0;
            while start < ops.len() && played < SHRINK_STEPS_MAX {
                let mut shorter = ops.clone();
                shorter.drain(start..(start + chunk).min(ops.len()));
                played += shorter.len();
                match (self.play)(seed, &shorter) {
                    Err(found) => (ops, failure) = (shorter, found),
                    Ok(_) => start += chunk,
                }
            }
            chunk /= 2;
        }
        (ops, failure)
    }
}

/// Turns a panic of the step into a failure, without printing it: shrinking meets it a thousand times.
pub(crate) fn guarded<T>(step: usize, work: impl FnOnce() -> T) -> Result<T, Failure> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let default = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if QUIET.get() {
                PLACE.set(info.location().map(|place| (place.file().to_owned(), place.line())));
            } else {
                default(info);
            }
        }));
    });
    QUIET.set(true);
    let result = catch_unwind(AssertUnwindSafe(work));
    QUIET.set(false);
    result.map_err(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let message = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        let place = PLACE.take().map(|(file, line)| format!(" ({file}:{line})")).unwrap_or_default();
        Failure { step, message: message + &place }
    })
}

#[test]
fn a_failing_history_is_shortened_to_what_it_needs() {
    let play = |_seed: u64, ops: &[u64]| {
        for (step, _) in ops.iter().enumerate() {
            let seen = &ops[..=step];
            guarded(step, || assert!(!(seen.contains(&3) && seen.contains(&7)), "three and seven"))?;
        }
        Ok(0)
    };
    let make = |_seed, steps| (0..steps as u64).map(|step| step % 11).collect();
    let game = Game::new("planted", make, play);
    let (seed, failure) = game.find(0..5, 100).expect("it fails");
    assert_eq!((seed, failure.step), (0, 7));
    assert!(failure.message.starts_with("three and seven (tests/sim/history.rs:"), "{}", failure.message);
    let (shortest, last) = game.shrink(seed, 100, failure);
    assert_eq!((shortest, last.step), (vec![3, 7], 1));
}
