//! Calls to etcd: one client per member, our own time limits, our own choice among the members.
//!
//! The client library spreads calls over its endpoints and fails or hangs with those that are dead. So each member has
//! a client of its own here; calls stay with one member until it fails, and then go on to the next. Must never repeat a
//! call that may have happened, unless the caller says that it may. Tested in `tests/live/etcd/`.

use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use etcd_client::{Client, Error};
use tokio::time::{Instant, timeout};

use super::error::EtcdError;
use super::settings::Connection;

/// After a round of all members without an answer, the next round waits: first, and at most.
const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// A cluster of etcd. Clones share their connections.
///
/// Connections are made when they are first needed, and belong to the runtime on which that was.
#[derive(Clone)]
pub struct Etcd {
    members: Arc<[Member]>,
    /// The member that answered last.
    current: Arc<AtomicUsize>,
}

/// One member of the cluster.
#[derive(Clone)]
pub struct Member {
    endpoint: Arc<str>,
    connection: Arc<Connection>,
    client: Arc<Mutex<Option<Client>>>,
}

/// Whether a call that may have happened may be made once more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repeat {
    /// Twice is as good as once: a read, or a change that compares what it changes.
    Always,
    /// Only where it is certain that nothing happened.
    IfNotDone,
}

impl Etcd {
    /// A cluster with this connection. Nothing is sent yet.
    ///
    /// # Errors
    /// [`EtcdError::Settings`]: an address that could never work, a file that cannot be read.
    pub fn new(connection: Connection) -> Result<Self, EtcdError> {
        connection.check()?;
        connection.options()?;
        let connection = Arc::new(connection);
        let member = |endpoint: &String| Member {
            endpoint: endpoint.as_str().into(),
            connection: Arc::clone(&connection),
            client: Arc::default(),
        };
        Ok(Self { members: connection.endpoints.iter().map(member).collect(), current: Arc::default() })
    }

    /// All members that the configuration names, in its order.
    #[must_use]
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// The member that answered last, and those after it.
    pub fn preferred(&self) -> impl Iterator<Item = &Member> {
        let first = self.current.load(Ordering::Relaxed);
        self.members.iter().cycle().skip(first).take(self.members.len())
    }

    /// Makes a call, with one member after the other, until one answers or `patience` is over. Each member is tried at
    /// least once.
    ///
    /// # Errors
    /// The last one, where it is final; an [unknown](EtcdError::is_unknown) one, where any try may have happened.
    ///
    /// # Cancel safety
    /// What was asked for may have happened or may happen yet.
    pub async fn call<T, F>(
        &self,
        patience: Duration,
        repeat: Repeat,
        request: impl Fn(Client) -> F,
    ) -> Result<T, EtcdError>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let deadline = Instant::now() + patience;
        let mut pause = PAUSE_FIRST;
        let mut unknown = None;
        loop {
            let first = self.current.load(Ordering::Relaxed);
            let mut last = EtcdError::Unknown("there is no member".into());
            for (i, member) in self.members.iter().enumerate().cycle().skip(first).take(self.members.len()) {
                match member.call(&request).await {
                    Ok(answer) => {
                        self.current.store(i, Ordering::Relaxed);
                        return Ok(answer);
                    }
                    Err(error) => last = error,
                }
                if last.is_unknown() {
                    unknown = Some(last.clone());
                }
                if !last.is_passing() || (last.is_unknown() && repeat == Repeat::IfNotDone) {
                    return Err(unknown.unwrap_or(last));
                }
            }
            if Instant::now() + pause >= deadline {
                return Err(unknown.unwrap_or(last));
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }
}

impl Member {
    /// Its address.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Makes one call, within the time that a member has for an answer.
    ///
    /// # Errors
    /// As the call; [`EtcdError::Unknown`] when the time is over.
    ///
    /// # Cancel safety
    /// What was asked for may have happened or may happen yet.
    pub async fn call<T, F>(&self, request: impl Fn(Client) -> F) -> Result<T, EtcdError>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let limit = self.connection.request;
        let client = self.client().await?;
        let once = || async { timeout(limit, request(client.clone())).await };
        let mut answer = once().await;
        if let Ok(Err(error)) = &answer
            && EtcdError::wants_login(error)
            && self.connection.user.is_some()
        {
            // The library renews a token that has run out, but not one that is older than the last change of a user.
            self.login(&client).await?;
            answer = once().await;
        }
        let error = match answer {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) => EtcdError::of(&error),
            Err(_) => EtcdError::Unknown(format!("no answer within {limit:?}")),
        };
        if error.is_passing() {
            self.forget();
        }
        Err(self.name(error))
    }

    /// The client, for streams. The one who holds a stream sees to its time limits, and [forgets](Self::forget) the
    /// client of a stream that has gone silent.
    ///
    /// # Errors
    /// With a login: that it failed, or took too long. Without one: files that cannot be read.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn client(&self) -> Result<Client, EtcdError> {
        if let Some(client) = self.slot().clone() {
            return Ok(client);
        }
        let connecting = Client::connect([&self.endpoint], Some(self.connection.options()?));
        let client = match timeout(self.connection.request, connecting).await {
            Ok(Ok(client)) => client,
            Ok(Err(error)) => return Err(self.name(not_sent(EtcdError::of(&error)))),
            Err(_) => return Err(self.name(EtcdError::Unreachable("no answer to the login".into()))),
        };
        *self.slot() = Some(client.clone());
        Ok(client)
    }

    /// Drops the client, so that the next call makes a connection of its own and reads the files anew.
    pub fn forget(&self) {
        self.slot().take();
    }

    /// Logs in again, for streams that a token which has run out has ended; without a user nothing is to be done.
    ///
    /// # Errors
    /// The user or password is refused, or the member does not answer.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn login(&self, client: &Client) -> Result<(), EtcdError> {
        match timeout(self.connection.request, client.refresh_token()).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(self.name(not_sent(EtcdError::of(&error)))),
            Err(_) => Err(self.name(EtcdError::Unreachable("no answer to the login".into()))),
        }
    }

    fn slot(&self) -> std::sync::MutexGuard<'_, Option<Client>> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The error with the member's address, where it is about that member.
    fn name(&self, error: EtcdError) -> EtcdError {
        match error {
            EtcdError::Unreachable(reason) => EtcdError::Unreachable(format!("{}: {reason}", self.endpoint)),
            EtcdError::Unknown(reason) => EtcdError::Unknown(format!("{}: {reason}", self.endpoint)),
            error => error,
        }
    }
}

/// A login that failed has asked for nothing else yet.
fn not_sent(error: EtcdError) -> EtcdError {
    match error {
        EtcdError::Unknown(reason) => EtcdError::Unreachable(reason),
        error => error,
    }
}

impl fmt::Debug for Etcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Etcd").field("members", &self.members).finish_non_exhaustive()
    }
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.endpoint)
    }
}
