//! The streams for embedding programs: channel, any stream, no-op, and the example of the docs (B20, Q1).

use std::time::Duration;

use evenkeel::local::{Closed, Noop, channel, from_stream};
use evenkeel::{EventStream, Events, StreamError};
use tokio_stream::StreamExt;

use super::streams_sink::{FIRST, Sink, no_meter};

fn numbered(n: usize) -> Vec<String> {
    (0..n).map(|i| format!("id-{i:05}")).collect()
}

#[tokio::test(start_paused = true)]
async fn ids_that_are_sent_come_out_in_order() {
    let sink = Sink::new();
    let (sender, stream) = channel(4);
    let running = sink.start(stream);
    for id in ["b", "a", "", "bad\n", "a"] {
        sender.clone().send(id).await.unwrap();
    }
    drop(sender);
    let (_, result) = running.await.unwrap();
    assert!(result.is_ok(), "it ends with its senders");
    assert_eq!(sink.taken(), ["b", "a", "a"], "what is no id is passed over");
}

#[tokio::test(start_paused = true)]
async fn q5_a_full_engine_holds_the_senders() {
    let sink = Sink::with(1, &[0], 3, no_meter());
    let (sender, stream) = channel(2);
    let running = sink.start(stream);
    let sending = tokio::spawn(async move {
        for id in numbered(100) {
            sender.send(id).await.unwrap();
        }
        sender
    });
    sink.until(|sink| sink.waiting() == 3).await;
    // In virtual time everything that can happen has happened by then.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!sending.is_finished());
    assert_eq!(sink.taken().len(), 3);
    while !sending.is_finished() || sink.taken().len() < 100 {
        sink.run(FIRST, 1);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(sink.taken(), numbered(100), "all of them, once, in order");
    let sender = sending.await.unwrap();
    drop(sender);
    assert!(running.await.unwrap().1.is_ok());
}

#[tokio::test(start_paused = true)]
async fn try_send_says_whether_there_was_room() {
    let sink = Sink::new();
    let (sender, stream) = channel(0);
    assert_eq!(sender.try_send("a"), Ok(true), "a capacity of 0 is 1");
    assert_eq!(sender.try_send("b"), Ok(false));
    let running = sink.start(stream);
    sink.until(|sink| sink.taken() == ["a"]).await;
    assert_eq!(sender.try_send("b"), Ok(true));
    sink.until(|sink| sink.taken() == ["a", "b"]).await;
    sink.stopping.cancel();
    let (stream, result) = running.await.unwrap();
    assert!(matches!(result, Ok(()) | Err(StreamError::Stopped(_))));
    assert_eq!(sender.try_send("c"), Ok(true), "the stream may run again");
    drop(stream);
    assert_eq!(sender.try_send("d"), Err(Closed));
    assert_eq!(sender.send("d").await, Err(Closed));
}

/// The engine drops a stream's future at any await, and runs the stream again: no id that was in the channel is lost.
#[tokio::test(start_paused = true)]
async fn b20_an_id_in_hand_survives_the_future() {
    let (sender, mut stream) = channel(16);
    let wanted = numbered(10_000);
    let ids = wanted.clone();
    let sending = tokio::spawn(async move {
        for id in ids {
            sender.send(id).await.unwrap();
        }
    });
    let mut seen = Vec::new();
    for round in 0_usize.. {
        let sink = Sink::with(1, &[0], round % 300, no_meter());
        let run = stream.run(Events::new(sink.clone(), stream.class()));
        // The room ends before the ids do, so the future is dropped while it holds one.
        let ended = tokio::time::timeout(Duration::from_millis(1), run).await;
        seen.extend(sink.take());
        if let Ok(result) = ended {
            result.unwrap();
            break;
        }
    }
    sending.await.unwrap();
    assert_eq!(seen, wanted);
}

#[tokio::test(start_paused = true)]
async fn ids_of_another_process_are_counted() {
    let sink = Sink::with(4, &[0], usize::MAX, no_meter());
    let stream = from_stream(tokio_stream::iter(numbered(100)));
    sink.start(stream).await.unwrap().1.unwrap();
    let (here, elsewhere) = (sink.taken().len(), sink.errors.lock().unwrap().len());
    assert!(here > 0 && elsewhere > 0);
    assert_eq!(here + elsewhere, 100);
    assert!(sink.errors.lock().unwrap().iter().all(|name| *name == "foreign"));
}

#[tokio::test(start_paused = true)]
async fn any_stream_of_ids_will_do() {
    let sink = Sink::new();
    let ticks = tokio_stream::wrappers::IntervalStream::new(tokio::time::interval(Duration::from_secs(1)));
    let running = sink.start(from_stream(ticks.map(|_| "tick".to_owned()).take(3)));
    let (mut stream, result) = running.await.unwrap();
    result.unwrap();
    assert_eq!(sink.taken(), ["tick"; 3]);
    // A stream that has ended is not asked again.
    stream.run(Events::new(sink.clone(), stream.class())).await.unwrap();
    assert_eq!(sink.taken().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn the_no_op_stream_says_nothing_until_it_is_stopped() {
    let sink = Sink::new();
    let running = sink.start(Noop);
    tokio::time::sleep(Duration::from_secs(86_400)).await;
    assert!(!running.is_finished());
    sink.stopping.cancel();
    running.await.unwrap().1.unwrap();
    assert_eq!(sink.taken(), [""; 0]);
}
