//! The stream that examples/stream.rs shows.

use std::fs;
use std::time::Duration;

use tokio::time::sleep;

use super::streams_sink::Sink;

#[path = "../../examples/stream.rs"]
#[allow(dead_code, reason = "its main runs in an engine")]
mod example;

#[tokio::test(start_paused = true)]
async fn q1_a_stream_of_ones_own_takes_twenty_lines() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a"), "1").unwrap();
    let sink = Sink::new();
    let running = sink.start(example::Changed { folder: folder.path().into() });
    sink.until(|sink| sink.taken() == ["a"]).await;
    sleep(Duration::from_secs(10)).await;
    assert_eq!(sink.take(), ["a"], "once, while it does not change");

    fs::write(folder.path().join("b"), "1").unwrap();
    sink.until(|sink| sink.taken() == ["b"]).await;
    let later = std::time::SystemTime::now() + Duration::from_secs(5);
    fs::File::options().append(true).open(folder.path().join("a")).unwrap().set_modified(later).unwrap();
    sink.until(|sink| sink.taken() == ["b", "a"]).await;

    drop(folder);
    let (_, result) = running.await.unwrap();
    assert!(result.unwrap_err().to_string().contains("No such file"), "a folder that is gone is a failure");

    let source = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/stream.rs")).unwrap();
    let (_, stream) = source.split_once("impl EventStream for").unwrap();
    let (stream, _) = stream.split_once("\n}\n").unwrap();
    assert!(stream.lines().count() <= 22, "{} lines", stream.lines().count());
}
