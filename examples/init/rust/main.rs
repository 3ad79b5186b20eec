//! Keeps the folder actual/ the same as wanted/: each file is an id, looked at again every five seconds.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::time::Duration;

use evenkeel::local::Resync;
use evenkeel::{Action, Engine, Failure, Reconciler, Run};
use tokio::fs;

struct Files;

impl Reconciler for Files {
    /// Makes one file what it should be, whatever it is now. It may be called at any time and any number of times, so
    /// it looks at what is true now, not at what has happened. Any error is tried again later; `Failure::terminal` is
    /// not.
    async fn reconcile(&self, run: &Run) -> Result<Action, Failure> {
        if run.id().contains('/') {
            return Err(Failure::terminal("no name of a file here"));
        }
        let (wanted, actual) = (Path::new("wanted").join(run.id()), Path::new("actual").join(run.id()));
        let text = match fs::read(&wanted).await {
            Ok(text) => text,
            // No longer wanted: what is left of it goes.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                fs::remove_file(&actual).await?;
                return Ok(Action::done().with_message("removed"));
            }
            Err(e) => return Err(e.into()),
        };
        if fs::read(&actual).await.is_ok_and(|now| now == text) {
            return Ok(Action::unchanged());
        }
        // Written beside and renamed, so that nobody ever reads half a file.
        let new = actual.with_extension("new");
        fs::create_dir_all("actual").await?;
        fs::write(&new, text).await?;
        fs::rename(new, actual).await?;
        Ok(Action::done().with_message("written"))
    }
}

/// All ids: what is wanted, and what is left of what once was.
async fn list() -> io::Result<Vec<String>> {
    let mut ids = BTreeSet::new();
    for folder in ["wanted", "actual"] {
        fs::create_dir_all(folder).await?;
        let mut files = fs::read_dir(folder).await?;
        while let Some(file) = files.next_entry().await? {
            ids.extend(file.file_name().into_string().ok());
        }
    }
    Ok(ids.into_iter().collect())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let engine = Engine::builder("hello")
        .reconciler(Files)
        .stream("all", Resync::every(Duration::from_secs(5)).list_fn(list))
        .build()?;
    // The engine stops in order when this resolves: no new events, and what runs may finish.
    let shutdown = async {
        let _ = tokio::signal::ctrl_c().await;
    };
    engine.run(shutdown).await?;
    Ok(())
}
