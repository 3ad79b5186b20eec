//! What librdkafka tells us beside messages: errors with their reason, its log, requests for a token.
//!
//! Must never block, since librdkafka calls it from the thread that polls, and never show a token. Tested below.

use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use rdkafka::ClientContext;
use rdkafka::client::OAuthToken;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::ConsumerContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{DeliveryResult, ProducerContext};

use super::settings::{Connection, Token};

/// The most things that wait to be looked at; the consumer's thread does so several times a second.
const MAIL_MAX: usize = 1_000;
/// A token that names no end is asked for again after this, in milliseconds.
const TOKEN_LIFE_MS: i64 = 300_000;

/// A client's context: keeps what it hears until the owner of the client asks.
pub(super) struct Context {
    token: Option<Token>,
    mail: Mutex<Vec<Mail>>,
}

/// Something that librdkafka said.
#[derive(Debug)]
pub(super) enum Mail {
    /// An error of the client as a whole, with its reason.
    Error(RDKafkaErrorCode, String),
    /// This topic was deleted and made anew.
    Recreated(String),
}

impl Context {
    pub(super) fn new(connection: &Connection) -> Self {
        Self { token: connection.token(), mail: Mutex::default() }
    }

    /// Takes what was said since the last time.
    pub(super) fn mail(&self) -> Vec<Mail> {
        std::mem::take(&mut *self.mail.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn put(&self, mail: Mail) {
        let mut list = self.mail.lock().unwrap_or_else(PoisonError::into_inner);
        if list.len() < MAIL_MAX {
            list.push(mail);
        }
    }
}

impl ClientContext for Context {
    const ENABLE_REFRESH_OAUTH_TOKEN: bool = true;

    fn log(&self, level: RDKafkaLogLevel, fac: &str, line: &str) {
        if let Some(topic) = recreated_topic(fac, line) {
            self.put(Mail::Recreated(topic.to_string()));
        }
        log(level, fac, line);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        if let Some(code) = error.rdkafka_error_code() {
            self.put(Mail::Error(code, reason.to_string()));
        }
    }

    fn stats_raw(&self, _: &[u8]) {}

    fn generate_oauth_token(&self, _: Option<&str>) -> Result<OAuthToken, Box<dyn Error>> {
        token(self.token.as_ref()).inspect_err(|error| {
            // librdkafka keeps asking; without this line nobody would know why nothing connects.
            self.put(Mail::Error(RDKafkaErrorCode::Authentication, error.to_string()));
        })
    }
}

impl ConsumerContext for Context {}

/// What is to happen when a message has been delivered, or has not.
pub(super) type OnDelivery = Box<dyn FnOnce(Result<(), RDKafkaErrorCode>) + Send + Sync>;

/// A producer's context: hands each delivery report to whoever sent the message.
pub(super) struct SendContext {
    token: Option<Token>,
    reason: Arc<Mutex<Option<String>>>,
}

impl SendContext {
    pub(super) fn new(connection: &Connection, reason: Arc<Mutex<Option<String>>>) -> Self {
        Self { token: connection.token(), reason }
    }

    fn keep(&self, reason: String) {
        *self.reason.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason);
    }
}

impl ClientContext for SendContext {
    const ENABLE_REFRESH_OAUTH_TOKEN: bool = true;

    fn log(&self, level: RDKafkaLogLevel, fac: &str, line: &str) {
        log(level, fac, line);
    }

    fn error(&self, _: KafkaError, reason: &str) {
        self.keep(reason.to_string());
    }

    fn stats_raw(&self, _: &[u8]) {}

    fn generate_oauth_token(&self, _: Option<&str>) -> Result<OAuthToken, Box<dyn Error>> {
        token(self.token.as_ref()).inspect_err(|error| self.keep(error.to_string()))
    }
}

impl ProducerContext for SendContext {
    type DeliveryOpaque = Box<OnDelivery>;

    fn delivery(&self, result: &DeliveryResult<'_>, then: Self::DeliveryOpaque) {
        let result = result
            .as_ref()
            .map(|_| ())
            .map_err(|(error, _)| error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Fail));
        then(result);
    }
}

/// librdkafka's own lines, for debugging only: it repeats them at every try, and `trouble` says the same once.
fn log(level: RDKafkaLogLevel, fac: &str, line: &str) {
    match level {
        RDKafkaLogLevel::Debug => tracing::trace!(target: "librdkafka", "{fac}: {line}"),
        _ => tracing::debug!(target: "librdkafka", "{fac}: {line}"),
    }
}

/// librdkafka notices that a topic was deleted and made anew, but tells nobody and reads on at the old offset; only a
/// debug line shows it. (Where the new log is shorter, the broker says out of range.)
fn recreated_topic<'a>(fac: &str, line: &'a str) -> Option<&'a str> {
    const NO_ID: &str = "AAAAAAAAAAAAAAAAAAAAAA";
    if fac != "METADATA" {
        return None;
    }
    let (before, ids) = line.split_once(" changed id from ")?;
    let (old, new) = ids.split_once(" to ")?;
    let topic = before.rsplit("Topic ").next()?;
    (old != NO_ID && new.trim() != NO_ID && old != new.trim()).then_some(topic)
}

fn token(source: Option<&Token>) -> Result<OAuthToken, Box<dyn Error>> {
    let Some(Token::File(file)) = source else { return Err("no token is configured".into()) };
    let text = std::fs::read_to_string(file)
        .map_err(|error| format!("the token file {} cannot be read: {error}", file.display()))?;
    parse_token(text.trim(), now_ms()).ok_or_else(|| format!("{} holds no JSON Web Token", file.display()).into())
}

fn parse_token(text: &str, now: i64) -> Option<OAuthToken> {
    let claims = text.split('.').nth(1)?;
    let claims: serde_json::Value = serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(claims).ok()?).ok()?;
    let end = claims.get("exp").and_then(serde_json::Value::as_f64);
    #[expect(clippy::cast_possible_truncation, reason = "a float out of range saturates")]
    let end = end.map_or(now.saturating_add(TOKEN_LIFE_MS), |seconds| (seconds * 1_000.0) as i64);
    Some(OAuthToken {
        token: text.to_string(),
        principal_name: claims.get("sub").and_then(serde_json::Value::as_str).unwrap_or_default().to_string(),
        lifetime_ms: end,
    })
}

fn now_ms() -> i64 {
    jiff::Timestamp::now().as_millisecond()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn k6_b54_a_topic_made_anew_is_recognised() {
        let line = "[thrd:main]: Topic orders.v2 changed id from 6C1bDqTZQ3mvJ4OZRpLqRw to yDBr0vkuRrKb0FXW9eXh9g";
        assert_eq!(recreated_topic("METADATA", line), Some("orders.v2"));
        let first = "Topic orders changed id from AAAAAAAAAAAAAAAAAAAAAA to yDBr0vkuRrKb0FXW9eXh9g";
        for (fac, line) in [("METADATA", first), ("TOPIC", line), ("METADATA", "Topic orders changed id")] {
            assert_eq!(recreated_topic(fac, line), None, "{fac} {line}");
        }
    }

    #[test]
    fn tokens_tell_when_they_run_out() {
        let claims = BASE64_URL_SAFE_NO_PAD.encode(r#"{"sub":"alice","exp":1800000000}"#);
        let token = parse_token(&format!("e30.{claims}.x"), 5).unwrap();
        assert_eq!((token.principal_name.as_str(), token.lifetime_ms), ("alice", 1_800_000_000_000));
        let endless = BASE64_URL_SAFE_NO_PAD.encode("{}");
        assert_eq!(parse_token(&format!("e30.{endless}."), 5).unwrap().lifetime_ms, 5 + TOKEN_LIFE_MS);
        for bad in ["", "a.b", "a.!.c", "no token at all"] {
            assert!(parse_token(bad, 0).is_none(), "{bad}");
        }
    }
}
