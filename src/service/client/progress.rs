//! Says that something takes time: on a terminal one line that changes, elsewhere a line now and then.
//!
//! Must never print to standard output, nor anything for what takes less than a second. Tested in `tests/it/client.rs`.

use std::time::Duration;

use tokio::time::Instant;

use super::out::Terminal;
use crate::service::telemetry::text::seconds;

/// What takes less is not worth a word.
const FIRST: Duration = Duration::from_secs(1);
/// How often the line on a terminal changes.
const EVERY_WATCHED: Duration = Duration::from_secs(1);
/// How often a line is printed where nobody may watch.
const EVERY_UNWATCHED: Duration = Duration::from_secs(10);

/// Waits for the work, and says meanwhile what is waited for.
pub(super) async fn with_progress<T>(terminal: &mut Terminal, what: &str, work: impl Future<Output = T>) -> T {
    let began = Instant::now();
    let mut next = began + if terminal.is_watched { FIRST } else { EVERY_UNWATCHED };
    let mut is_shown = false;
    let mut work = std::pin::pin!(work);
    let done = loop {
        tokio::select! {
            done = work.as_mut() => break done,
            () = tokio::time::sleep_until(next) => {}
        }
        let line = format!("{what} … {}", seconds(began.elapsed().as_secs().max(1) as f64));
        if terminal.is_watched {
            is_shown = true;
            show(terminal, &line);
            next += EVERY_WATCHED;
        } else {
            terminal.note(line);
            next += EVERY_UNWATCHED;
        }
    };
    if is_shown {
        show(terminal, "");
    }
    done
}

/// Writes over the line that is there.
fn show(terminal: &mut Terminal, line: &str) {
    // Nobody is left to see it if standard error is closed.
    let _ = write!(terminal.err, "\r\u{1b}[K{line}").and_then(|()| terminal.err.flush());
}
