//! The journal as it grows, for a reader that comes again and again.
//!
//! Must never keep anything for a reader in the engine: where it is stands in its own cursor, and what has left the
//! ring meanwhile is counted, not waited for. Tested in `tests/it/admin_engine.rs`.

use std::collections::BTreeMap;

use super::handle::{Handle, HandleError};
use super::shard::Message;
use super::view::{JournalEntry, PAGE_MAX};
use crate::contract::Term;
use crate::id::{ShardId, check};

/// Where a reader of the journal is. A new one stands before the last runs.
#[derive(Debug, Clone, Default)]
pub struct JournalCursor {
    seen: BTreeMap<ShardId, Seen>,
    started: bool,
}

/// How many runs of a term a reader has seen.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen {
    pub(crate) term: Term,
    pub(crate) runs: u64,
}

/// Which runs a shard is asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Point {
    /// The last ones.
    History,
    /// Those since then; of another term, all.
    After(Option<Seen>),
}

/// A shard's answer.
#[derive(Debug)]
pub(crate) struct ShardNews {
    pub(crate) seen: Seen,
    /// The latest first.
    pub(crate) entries: Vec<JournalEntry>,
    pub(crate) skipped: u64,
}

/// What is new in the journal.
#[derive(Debug, Clone, Default)]
pub struct JournalNews {
    /// The runs, the oldest first.
    pub entries: Vec<JournalEntry>,
    /// How many runs are not shown: they were more than asked for, or have left the journal. Not counted where only one
    /// id is asked for.
    pub skipped: u64,
}

impl Handle {
    /// The runs since this cursor was here last, at most `limit` of them, the latest ones; a new cursor gets the last
    /// runs. Only those of one id, if it is given.
    ///
    /// # Errors
    /// The engine has stopped, or what is asked for is no id.
    ///
    /// # Cancel safety
    /// Dropped, the cursor may have moved for some shards: their news are lost to it.
    pub async fn journal_news(
        &self,
        cursor: &mut JournalCursor,
        id: Option<&str>,
        limit: usize,
    ) -> Result<JournalNews, HandleError> {
        id.map(check).transpose().map_err(|error| HandleError::Invalid(error.to_string()))?;
        let limit = limit.min(PAGE_MAX);
        let only = id.and_then(|id| self.shared.router.place(id)).map(|place| place.shard);
        let mut news = JournalNews::default();
        for shard in (0..self.shared.router.shards()).map(ShardId) {
            if !self.shared.door(shard).is_led() || only.is_some_and(|only| only != shard) {
                continue;
            }
            let point = match cursor.started {
                true => Point::After(cursor.seen.get(&shard).copied()),
                false => Point::History,
            };
            let id = id.map(str::to_owned);
            let part = self.ask(shard, |reply| Message::News { id, point, limit, reply }).await?;
            cursor.seen.insert(shard, part.seen);
            news.skipped += part.skipped;
            news.entries.extend(part.entries);
        }
        news.entries.sort_by_key(|entry| entry.at);
        let surplus = news.entries.len().saturating_sub(limit);
        news.entries.drain(..surplus);
        if cursor.started && id.is_none() {
            news.skipped += surplus as u64;
        }
        cursor.started = true;
        Ok(news)
    }
}
