//! A bounded queue, and the task that delivers what is in it, in batches.
//!
//! Must never make the one who puts something in wait: without room it is counted and dropped. A batch is tried until
//! it is delivered, refused or too old; meanwhile the queue fills up, and no further. At the end each of what is left
//! is tried once. The SDK's own processors do not fit: they give a batch up at its first failure, drop in silence, and
//! an end without a collector takes them a timeout for each batch. Tested below.

use std::sync::Arc;
use std::time::Duration;

use opentelemetry_sdk::error::OTelSdkResult;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use super::lost::{Lost, Reason};
use crate::service::config::Signal;

/// What a pipe is made from.
pub(super) struct Pipe {
    pub signal: Signal,
    pub queue: usize,
    pub batch: usize,
    pub delay: Duration,
    pub lost: Arc<Lost>,
    pub closing: CancellationToken,
}

/// Where batches go.
pub(super) trait Sink<T>: Send + 'static {
    /// Sends a batch, again and again for as long as the config allows.
    fn send(&self, batch: &[T]) -> impl Future<Output = OTelSdkResult> + Send;

    /// Sends a batch once.
    fn send_once(&self, batch: &[T]) -> impl Future<Output = OTelSdkResult> + Send;
}

/// The way into a pipe.
#[derive(Debug)]
pub(super) struct Queue<T> {
    signal: Signal,
    sender: Sender<T>,
    lost: Arc<Lost>,
}

impl<T> Queue<T> {
    /// Puts something in, if there is room.
    pub(super) fn push(&self, item: T) {
        // A closed one has been emptied for the last time.
        if let Err(TrySendError::Full(_)) = self.sender.try_send(item) {
            self.lost.add(self.signal, Reason::QueueFull, 1);
        }
    }
}

impl Pipe {
    /// The way in, and the task that empties it until `closing`.
    pub(super) fn open<T, S>(self, sink: S) -> (Queue<T>, impl Future<Output = ()> + Send + 'static)
    where
        T: Send + Sync + 'static,
        S: Sink<T> + Sync,
    {
        let (sender, receiver) = mpsc::channel(self.queue);
        let queue = Queue { signal: self.signal, sender, lost: Arc::clone(&self.lost) };
        (queue, Pump { pipe: self, receiver, sink }.run())
    }
}

struct Pump<T, S> {
    pipe: Pipe,
    receiver: Receiver<T>,
    sink: S,
}

impl<T: Send + Sync + 'static, S: Sink<T> + Sync> Pump<T, S> {
    async fn run(mut self) {
        let closing = self.pipe.closing.clone();
        let mut batch = Vec::new();
        while !closing.is_cancelled() {
            tokio::select! {
                () = self.fill(&mut batch) => {}
                () = closing.cancelled() => break,
            }
            if batch.is_empty() {
                return;
            }
            let sent = tokio::select! {
                biased;
                sent = self.sink.send(&batch) => sent,
                // It may be on its way: then it comes twice, which is better than not at all.
                () = closing.cancelled() => break,
            };
            self.note(&mut batch, sent);
        }
        self.finish(batch).await;
    }

    /// Waits for the first, and then for a whole batch, but no longer than the delay.
    ///
    /// Cancel safe: what was taken is in the batch.
    async fn fill(&mut self, batch: &mut Vec<T>) {
        if self.receiver.recv_many(batch, self.pipe.batch).await == 0 {
            return;
        }
        let deadline = Instant::now() + self.pipe.delay;
        while batch.len() < self.pipe.batch {
            let room = self.pipe.batch - batch.len();
            match timeout_at(deadline, self.receiver.recv_many(batch, room)).await {
                Ok(1..) => {}
                Ok(0) | Err(_) => return,
            }
        }
    }

    fn note(&self, batch: &mut Vec<T>, sent: OTelSdkResult) -> bool {
        let count = batch.len();
        batch.clear();
        match sent {
            Ok(()) => self.pipe.lost.delivered(self.pipe.signal),
            Err(error) => self.pipe.lost.failed(self.pipe.signal, count, &error),
        }
    }

    /// One try for each of what is left, until one fails: then the others would fail too.
    async fn finish(mut self, mut batch: Vec<T>) {
        self.receiver.close();
        loop {
            while batch.len() < self.pipe.batch
                && let Ok(item) = self.receiver.try_recv()
            {
                batch.push(item);
            }
            if batch.is_empty() {
                return;
            }
            let sent = self.sink.send_once(&batch).await;
            if !self.note(&mut batch, sent) {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    use opentelemetry_sdk::error::OTelSdkError;

    use super::*;

    /// Remembers batches; while it is down it keeps whoever sends, or refuses the one who sends once.
    #[derive(Clone, Default)]
    struct Memory(Arc<(AtomicBool, Mutex<Vec<Vec<u32>>>)>);

    impl Memory {
        fn take(&self, batch: &[u32]) -> OTelSdkResult {
            self.0.1.lock().unwrap().push(batch.to_vec());
            Ok(())
        }

        fn batches(&self) -> Vec<Vec<u32>> {
            self.0.1.lock().unwrap().clone()
        }
    }

    impl Sink<u32> for Memory {
        async fn send(&self, batch: &[u32]) -> OTelSdkResult {
            while self.0.0.load(Relaxed) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            self.take(batch)
        }

        async fn send_once(&self, batch: &[u32]) -> OTelSdkResult {
            if self.0.0.load(Relaxed) {
                return Err(OTelSdkError::InternalFailure("down".into()));
            }
            self.take(batch)
        }
    }

    fn pipe() -> Pipe {
        let (lost, closing) = (Arc::default(), CancellationToken::new());
        Pipe { signal: Signal::Logs, queue: 10, batch: 4, delay: Duration::from_secs(1), lost, closing }
    }

    #[tokio::test(start_paused = true)]
    async fn t1_batches_are_full_or_have_waited_long_enough() {
        let (memory, pipe) = (Memory::default(), pipe());
        let closing = pipe.closing.clone();
        let (queue, pump) = pipe.open(memory.clone());
        let task = tokio::spawn(pump);
        (0..6).for_each(|n| queue.push(n));
        tokio::time::sleep(Duration::from_millis(900)).await;
        assert_eq!(memory.batches(), [vec![0, 1, 2, 3]], "full at once; the rest waits");
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(memory.batches().last().unwrap(), &[4, 5]);
        queue.push(6);
        closing.cancel();
        task.await.unwrap();
        assert_eq!(memory.batches().last().unwrap(), &[6], "the last one does not wait");
    }

    #[tokio::test(start_paused = true)]
    async fn b77_while_nobody_takes_anything_the_queue_is_the_bound_and_nobody_waits() {
        let (memory, pipe) = (Memory::default(), pipe());
        memory.0.0.store(true, Relaxed);
        let (closing, lost) = (pipe.closing.clone(), Arc::clone(&pipe.lost));
        let (queue, pump) = pipe.open(memory.clone());
        let task = tokio::spawn(pump);
        for n in 0..1_000 {
            queue.push(n);
            tokio::task::yield_now().await;
        }
        // One batch under way, and the queue.
        assert_eq!(lost.get(Signal::Logs, Reason::QueueFull), 1_000 - 14);
        memory.0.0.store(false, Relaxed);
        tokio::time::sleep(Duration::from_secs(5)).await;
        let arrived: Vec<u32> = memory.batches().concat();
        assert_eq!(arrived, (0..14).collect::<Vec<_>>(), "what was kept arrives, in its order, once");
        closing.cancel();
        task.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn b28_an_end_without_a_collector_is_one_try() {
        let (memory, pipe) = (Memory::default(), pipe());
        memory.0.0.store(true, Relaxed);
        let (closing, lost) = (pipe.closing.clone(), Arc::clone(&pipe.lost));
        let (queue, pump) = pipe.open(memory.clone());
        let task = tokio::spawn(pump);
        (0..9).for_each(|n| queue.push(n));
        tokio::time::sleep(Duration::from_secs(100)).await;
        let before = Instant::now();
        closing.cancel();
        task.await.unwrap();
        assert_eq!((before.elapsed(), memory.batches().len()), (Duration::ZERO, 0));
        assert_eq!(lost.get(Signal::Logs, Reason::Failed), 4);
    }
}
