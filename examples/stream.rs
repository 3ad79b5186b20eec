//! An event stream of one's own: the files of a folder that have changed. `cargo run --example stream -- FOLDER`
//!
//! Must never need anything but the public API. Tested in tests/it/streams_example.rs.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use evenkeel::{Action, Engine, EventStream, Events, Failure, Reconciler, Run, StreamError};

/// Looks at a folder every second and hands over the names of files that are new or have changed.
pub(crate) struct Changed {
    pub(crate) folder: PathBuf,
}

impl EventStream for Changed {
    async fn run(&mut self, events: Events) -> Result<(), StreamError> {
        // Empty after a failure: then all names are handed over once more, which is never wrong.
        let mut seen = HashMap::new();
        let mut tick = tokio::time::interval(Duration::from_secs(1));
        loop {
            tick.tick().await;
            for file in std::fs::read_dir(&self.folder).map_err(StreamError::failed)? {
                let file = file.map_err(StreamError::failed)?;
                let modified = file.metadata().and_then(|m| m.modified()).map_err(StreamError::failed)?;
                let name = file.file_name().to_string_lossy().into_owned();
                if seen.get(&name) != Some(&modified) {
                    // Waits while there is no room. Remembered after it was taken, not before.
                    events.send(&name).await?;
                    seen.insert(name, modified);
                }
            }
        }
    }
}

/// Prints how long a file is.
struct Lengths(PathBuf);

impl Reconciler for Lengths {
    async fn reconcile(&self, run: &Run) -> Result<Action, Failure> {
        let length = std::fs::metadata(self.0.join(run.id()))?.len();
        eprintln!("{}: {length} bytes", run.id());
        Ok(Action::done())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = PathBuf::from(std::env::args().nth(1).unwrap_or_else(|| ".".into()));
    let engine =
        Engine::builder("lengths").reconciler(Lengths(folder.clone())).stream("changed", Changed { folder }).build()?;
    engine.run(async { _ = tokio::signal::ctrl_c().await }).await?;
    Ok(())
}
