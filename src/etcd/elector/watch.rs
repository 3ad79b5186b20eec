//! The watch on all keys of leadership: tells at once when an own key is gone, and when another's is (L3, L9).
//!
//! Each watch begins with a list that was read after it: what lies before is in the list, what comes after is told, in
//! the order of revisions. Must never be taken for good while it is silent: it is asked for progress, and goes to
//! another member when it does not answer. Tested against real members in `tests/live/etcd`.

use std::time::Duration;

use etcd_client::{WatchOptions, WatchResponse, WatchStream};
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::calls::Calls;
use super::driver::News;
use super::values::change;
use crate::etcd::{EtcdError, Member};
use crate::leadership::timing;

/// After a round of all members that could not be watched.
const PAUSE: Duration = Duration::from_millis(250);
/// After a member that denies it: a password does not mend itself in a moment, and each try costs etcd a login.
const DENIED_PAUSE: Duration = Duration::from_secs(5);
/// The largest message: keys that go together come in one.
const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// Watches until nobody listens any more.
pub(super) async fn watch(calls: Calls, ttl: Duration, limit: Duration, news: UnboundedSender<News>) {
    let members = calls.etcd.members().to_vec();
    for (number, member) in members.iter().enumerate().cycle() {
        let watched = watch_member(&calls, member, ttl, limit, &news).await;
        let Err(error) = watched else { return };
        let is_denied = matches!(error, EtcdError::Denied(_));
        member.forget();
        if news.send(News::Blind(error)).is_err() {
            return;
        }
        if is_denied {
            tokio::time::sleep(DENIED_PAUSE).await;
        } else if number + 1 == members.len() {
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Watches by one member; returns well once nobody listens.
async fn watch_member(
    calls: &Calls,
    member: &Member,
    ttl: Duration,
    limit: Duration,
    news: &UnboundedSender<News>,
) -> Result<(), EtcdError> {
    let silent = || EtcdError::Unknown(format!("{}: the watch is silent", member.endpoint()));
    let mut stream = timeout(limit, open(calls, member)).await.map_err(|_| silent())??;
    let (list, names) = calls.list().await?;
    if news.send(News::Listed(list, names)).is_err() {
        return Ok(());
    }
    let mut ask = interval(timing::renew_every(ttl) / 2);
    ask.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // Silent for longer than the lease's renewal takes: then its answer to two questions is missing.
    let patience = timing::renew_every(ttl).max(limit);
    let mut heard = tokio::time::Instant::now();
    loop {
        tokio::select! {
            message = stream.message() => {
                let message = message.map_err(|error| EtcdError::of(&error))?;
                let message = message.ok_or_else(|| EtcdError::Unknown("the watch ended".into()))?;
                refused(&message)?;
                heard = tokio::time::Instant::now();
                for (at, change, leader) in message.events().iter().filter_map(|event| change(&calls.keys, event)) {
                    if news.send(News::Saw(at, change, leader)).is_err() {
                        return Ok(());
                    }
                }
            }
            _ = ask.tick() => {
                if heard.elapsed() > patience {
                    return Err(silent());
                }
                timeout(limit, stream.request_progress()).await.map_err(|_| silent())?.map_err(|e| EtcdError::of(&e))?;
            }
        }
    }
}

/// Opens a watch without a start revision: one that starts after the current one answers no question for progress.
async fn open(calls: &Calls, member: &Member) -> Result<WatchStream, EtcdError> {
    let client = member.client().await?;
    match open_once(calls, &client).await {
        // The library renews a token for calls, never for a watch.
        Err(EtcdError::Denied(_)) => {
            member.login(&client).await?;
            open_once(calls, &client).await
        }
        opened => opened,
    }
}

async fn open_once(calls: &Calls, client: &etcd_client::Client) -> Result<WatchStream, EtcdError> {
    let mut watches = client.watch_client().max_decoding_message_size(MESSAGE_BYTES_MAX);
    let options = WatchOptions::new().with_prefix();
    let mut stream = watches.watch(calls.keys.leading(), Some(options)).await.map_err(|error| EtcdError::of(&error))?;
    let first = stream.message().await.map_err(|error| EtcdError::of(&error))?;
    let first = first.ok_or_else(|| EtcdError::Unknown("the watch ended".into()))?;
    // That it was created says nothing: a refused one is created and cancelled in one message.
    refused(&first)?;
    Ok(stream)
}

fn refused(message: &WatchResponse) -> Result<(), EtcdError> {
    let reason = message.cancel_reason();
    match message.canceled() {
        false => Ok(()),
        true if ["auth", "permission", "user"].iter().any(|word| reason.contains(word)) => {
            Err(EtcdError::Denied(format!("the watch on the leader keys: {reason}")))
        }
        true => Err(EtcdError::Unknown(format!("the watch was cancelled: {reason}"))),
    }
}
