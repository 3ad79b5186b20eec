//! TLS and logins against a real broker: what works, and what is said where it does not (K6, B85).

use std::path::PathBuf;
use std::time::Duration;

use evenkeel::id::Partitioner;
use evenkeel::kafka::{Connection, Sasl, SaslMechanism, Secret, Tls, Token};

use crate::broker::Broker;
use crate::sink::Sink;
use crate::support::{Hand, Live, SOON, fresh, settings, until};

fn login(mechanism: SaslMechanism, password: &str) -> Option<Sasl> {
    Some(Sasl::Password { mechanism, username: "alice".into(), password: Secret::new(password) })
}

fn trusting(broker: &Broker, authority: &str) -> Tls {
    Tls { ca_file: Some(broker.certificate(authority)), ..Tls::default() }
}

fn connection(address: String, tls: Option<Tls>, sasl: Option<Sasl>) -> Connection {
    Connection { brokers: vec![address], tls, sasl, ..Connection::default() }
}

/// Reads an event, commits it, and sends a dead letter, all through this connection.
async fn works(broker: &Broker, what: &str, connection: Connection) {
    let (hand, topic, letters) = (Hand::new(broker), fresh("secure"), fresh("secure-letters"));
    hand.create(&topic, 1).await;
    hand.create(&letters, 1).await;
    hand.send(&topic, 0, None, Some(b"poison")).await;
    hand.send(&topic, 0, Some(b"id"), Some(b"x")).await;
    let mut settings = settings(broker, &topic, 1);
    settings.connection = connection;
    settings.dead_letter = Some(letters);
    let live = Live::start(settings.clone(), Sink::new(Partitioner::Fnv1a, 1));
    until(&format!("an event through {what}"), || live.sink.count() == 1).await;
    until(&format!("a commit through {what}"), || hand.committed(&settings.group, &topic, 1).get(&0) == Some(&2)).await;
    live.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn k6_b85_tls_and_every_promised_login_work() {
    let Some(broker) = Broker::shared() else { return };
    let tls = || Some(trusting(broker, "ca.crt"));
    works(broker, "TLS", connection(broker.tls(), tls(), None)).await;
    let mutual = Tls {
        certificate_file: Some(broker.certificate("client.crt")),
        key_file: Some(broker.certificate("client.key")),
        ..trusting(broker, "ca.crt")
    };
    works(broker, "mutual TLS", connection(broker.mutual_tls(), Some(mutual), None)).await;
    for mechanism in [SaslMechanism::Plain, SaslMechanism::ScramSha256, SaslMechanism::ScramSha512] {
        let sasl = login(mechanism, "alice-secret");
        works(broker, mechanism.name(), connection(broker.sasl(), None, sasl.clone())).await;
        works(broker, mechanism.name(), connection(broker.sasl_tls(), tls(), sasl)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn k6_a_bearer_token_from_a_file_works_and_a_missing_file_is_said() {
    let Some(broker) = Broker::shared() else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    let (hand, topic) = (Hand::new(broker), fresh("token"));
    hand.create(&topic, 1).await;
    hand.send(&topic, 0, Some(b"id"), Some(b"x")).await;
    let mut settings = settings(broker, &topic, 1);
    settings.connection = connection(broker.sasl(), None, Some(Sasl::OauthBearer(Token::File(file.clone()))));
    let live = Live::start(settings, Sink::new(Partitioner::Fnv1a, 1));
    until("it is said", || live.sink.problem().is_some_and(|p| p.contains("token file") && p.contains("kafka.sasl")))
        .await;
    // An unsecured token, which this broker accepts: {"alg":"none"} and {"sub":"alice","iat":…,"exp":…}.
    let now = jiff::Timestamp::now().as_second();
    let claims = format!(r#"{{"sub":"alice","iat":{now},"exp":{}}}"#, now + 3_600);
    std::fs::write(&file, format!("eyJhbGciOiJub25lIn0.{}.", base64_url(claims.as_bytes()))).unwrap();
    until("the event", || live.sink.count() == 1).await;
    live.until_well().await;
    live.stop().await.unwrap();
}

fn base64_url(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::prelude::BASE64_URL_SAFE_NO_PAD.encode(bytes)
}

/// What is said where a connection is refused; it never ends the stream, never spins, never shows the password.
async fn refused(broker: &Broker, connection: Connection, wanted: &[&str]) {
    let (hand, topic) = (Hand::new(broker), fresh("refused"));
    hand.create(&topic, 1).await;
    let mut settings = settings(broker, &topic, 1);
    settings.connection = connection;
    let live = Live::start(settings, Sink::new(Partitioner::Fnv1a, 1));
    let deadline = std::time::Instant::now() + SOON;
    loop {
        let problem = live.sink.problem().unwrap_or_default();
        if wanted.iter().all(|part| problem.contains(part)) {
            break;
        }
        assert!(std::time::Instant::now() < deadline, "wanted {wanted:?}, said: {problem}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let began = std::time::Instant::now();
    until("a while", || began.elapsed() > Duration::from_secs(3)).await;
    let problem = live.sink.problem().unwrap_or_default();
    assert!(!problem.contains("canary"), "{problem}");
    assert!(!live.has_ended());
    let errors: u64 = ["login", "tls", "unreachable", "client"].iter().map(|name| live.sink.errors(name)).sum();
    assert!((1..100).contains(&errors), "no storm: {errors}");
    live.sink.stop();
    let _ = live.committer.close(Duration::from_secs(5)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn k6_a_wrong_password_is_said() {
    let Some(broker) = Broker::shared() else { return };
    for mechanism in [SaslMechanism::Plain, SaslMechanism::ScramSha512] {
        let wrong = connection(broker.sasl(), None, login(mechanism, "canary"));
        refused(broker, wrong, &["refuse the login", "kafka.sasl"]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn k6_tls_that_fails_is_said() {
    let Some(broker) = Broker::shared() else { return };
    let said = ["TLS to the Kafka brokers fails", "kafka.tls"];
    let wrong = trusting(broker, "other-ca.crt");
    refused(broker, connection(broker.tls(), Some(wrong), None), &said).await;
    // Without a certificate of our own where the broker asks for one.
    let without = trusting(broker, "ca.crt");
    refused(broker, connection(broker.mutual_tls(), Some(without), None), &["can be reached", "certificate"]).await;
}

#[test]
fn a_file_that_is_not_there_is_said_before_anything_is_connected() {
    let tls = Tls { ca_file: Some(PathBuf::from("/nowhere/ca.pem")), ..Tls::default() };
    let made = evenkeel::kafka::Publisher::new(&connection("127.0.0.1:1".into(), Some(tls), None), Partitioner::Fnv1a);
    let error = made.err().unwrap().to_string();
    assert!(error.contains("ssl.ca.location") || error.contains("/nowhere/ca.pem"), "{error}");
}
