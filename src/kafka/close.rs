//! Letting go of a client: on a thread of its own, with a bound (B56).
//!
//! Closing a client of librdkafka waits for brokers, and may do so for long when they are gone. Must never happen on a
//! thread of the async runtime, nor hold up a stop. Tested below and against a dead broker.

use std::sync::mpsc;
use std::time::Duration;

/// Drops a value on a thread of its own; `false` if that was not over within the bound. The thread then goes on alone,
/// and ends with the process at the latest.
pub(super) fn drop_within<T: Send + 'static>(what: &'static str, value: T, bound: Duration) -> bool {
    let (done, wait) = mpsc::sync_channel(1);
    let spawned = std::thread::Builder::new().name(format!("close {what}")).spawn(move || {
        drop(value);
        let _ = done.send(());
    });
    // Where no thread can be had the closure, and the value with it, was dropped right here.
    spawned.is_err() || wait.recv_timeout(bound).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Slow(mpsc::Receiver<()>);

    impl Drop for Slow {
        fn drop(&mut self) {
            let _ = self.0.recv();
        }
    }

    #[test]
    fn b56_a_close_that_hangs_is_left_behind() {
        let (release, gate) = mpsc::channel();
        assert!(!drop_within("test", Slow(gate), Duration::from_millis(10)));
        drop(release);
        assert!(drop_within("test", 5, Duration::from_secs(60)));
    }
}
