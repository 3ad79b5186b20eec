//! Help for tests: numbers by chance, and this test again in a process of its own.

use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::pin::Pin;
use std::process::Command;
use std::task::Poll;

/// Numbers by chance from a seed that is printed, so that a failure can be played again with `EVENKEEL_TEST_SEED`.
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) fn new() -> Self {
        let given = std::env::var("EVENKEEL_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = given.unwrap_or_else(|| RandomState::new().hash_one(0));
        let test = std::thread::current().name().unwrap_or("").to_owned();
        eprintln!("to repeat it: EVENKEEL_TEST_SEED={seed} cargo test --test it {test}");
        Self(seed)
    }

    /// A number below `bound` (splitmix64).
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}

/// What the variable `EVENKEEL_CHILD` says, in a test that was started by [`again`].
pub(crate) fn child() -> Option<String> {
    std::env::var("EVENKEEL_CHILD").ok()
}

/// The arguments that run a test of this binary again, alone and with its output.
pub(crate) fn again(mut command: Command, test: &str, child: &str) -> Command {
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]).env("EVENKEEL_CHILD", child);
    command
}

/// This test binary.
pub(crate) fn this_binary() -> std::path::PathBuf {
    std::env::current_exe().expect("a test knows its own path")
}

/// Whether a future is not ready yet; it is polled once.
pub(crate) async fn pending<F: Future + Unpin>(future: &mut F) -> bool {
    std::future::poll_fn(|context| Poll::Ready(Pin::new(&mut *future).poll(context).is_pending())).await
}
