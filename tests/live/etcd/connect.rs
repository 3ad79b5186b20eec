//! Calls to members that are dead, deaf, or ask who we are.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::time::Duration;

use etcd_client::{Client, Error, PermissionType};
use evenkeel::Secret;
use evenkeel::etcd::{Connection, Etcd, EtcdError, Repeat, Tls, User};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

use crate::member::Members;

const PATIENCE: Duration = Duration::from_secs(60);

async fn put(etcd: &Etcd, key: &str) -> Result<(), EtcdError> {
    let call = |mut client: Client| {
        let key = key.to_owned();
        async move { client.put(key, "x", None).await }
    };
    etcd.call(PATIENCE, Repeat::Always, call).await.map(drop)
}

fn quick(endpoints: Vec<String>) -> Connection {
    Connection { request: Duration::from_millis(500), ..Connection::new(endpoints) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b62_one_endpoint_refuses_and_one_swallows() {
    let Some(members) = Members::shared() else { return };
    let refusing = TcpListener::bind("127.0.0.1:0").unwrap();
    let refused = format!("http://{}", refusing.local_addr().unwrap());
    drop(refusing);
    // Connections to it are taken by the system; nobody ever reads them.
    let hole = TcpListener::bind("127.0.0.1:0").unwrap();
    let swallowed = format!("http://{}", hole.local_addr().unwrap());

    let good = members.endpoint(0);
    for order in [[&refused, &swallowed, &good], [&swallowed, &good, &refused], [&good, &refused, &swallowed]] {
        let etcd = Etcd::new(quick(order.into_iter().cloned().collect())).unwrap();
        for _ in 0..20 {
            put(&etcd, "b62/endpoints").await.unwrap();
        }
        assert_eq!(etcd.preferred().next().unwrap().endpoint(), good, "calls stay with the member that answers");
    }

    let etcd = Etcd::new(quick(vec![refused.clone()])).unwrap();
    let once = |mut client: Client| async move { client.put("b62/x", "x", None).await };
    let error = etcd.call(Duration::ZERO, Repeat::IfNotDone, once).await.unwrap_err();
    assert!(matches!(&error, EtcdError::Unreachable(reason) if reason.contains(&refused)), "{error}");
    assert!(!error.is_unknown(), "nothing was sent");
    let etcd = Etcd::new(quick(vec![swallowed.clone(), good])).unwrap();
    let error = etcd.call(PATIENCE, Repeat::IfNotDone, once).await.unwrap_err();
    assert!(error.is_unknown() && error.to_string().contains(&swallowed), "{error}");
}

/// Makes users in a fresh member, and turns authentication on.
async fn authenticate(members: &Members) {
    let mut hand = members.hand(0).await;
    hand.role_add("keeper").await.unwrap();
    let all = etcd_client::Permission::new(PermissionType::Readwrite, "evenkeel/").with_prefix();
    hand.role_grant_permission("keeper", all).await.unwrap();
    for (user, password, role) in [("root", "root-canary", "root"), ("alice", "alice-canary", "keeper")] {
        hand.user_add(user, password, None).await.unwrap();
        hand.user_grant_role(user, role).await.unwrap();
    }
    hand.auth_enable().await.unwrap();
}

async fn root(members: &Members) -> Client {
    let options = etcd_client::ConnectOptions::new().with_user("root", "root-canary");
    Client::connect([members.endpoint(0)], Some(options)).await.unwrap()
}

fn as_user(members: &Members, name: &str, password: &str) -> Etcd {
    let user = Some(User { name: name.into(), password: Secret::new(password) });
    Etcd::new(Connection { user, ..members.connection() }).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b62_a_token_that_is_dead_or_old_is_renewed() {
    let keys = tempfile::tempdir().unwrap();
    let (private, public) = (keys.path().join("private.pem"), keys.path().join("public.pem"));
    let pair = KeyPair::generate().unwrap();
    fs::write(&private, pair.serialize_pem()).unwrap();
    fs::write(&public, pair.public_key_pem()).unwrap();
    let (private, public) = (private.display(), public.display());
    let jwt = format!("jwt,pub-key={public},priv-key={private},sign-method=ES256,ttl=1s");
    for token in ["simple", &jwt] {
        let args = ["--auth-token", token, "--auth-token-ttl", "1", "--bcrypt-cost", "4"];
        let Some(members) = Members::start_with(1, "http", &args) else { return };
        authenticate(&members).await;
        let etcd = as_user(&members, "alice", "alice-canary");
        put(&etcd, "evenkeel/a").await.unwrap();
        let denied = put(&etcd, "elsewhere").await.unwrap_err();
        assert!(matches!(denied, EtcdError::Denied(_)), "{denied}");

        // The change makes every JWT too old.
        root(&members).await.user_add("bob", "bob-canary", None).await.unwrap();
        put(&etcd, "evenkeel/b").await.unwrap();

        // A member that starts anew knows no simple token.
        members.stop(0);
        members.restart(0);
        put(&etcd, "evenkeel/c").await.unwrap();

        root(&members).await.user_change_password("alice", "changed").await.unwrap();
        for (user, password) in [("alice", "alice-canary"), ("nobody", "x-canary")] {
            let error = put(&as_user(&members, user, password), "evenkeel/d").await.unwrap_err();
            assert!(matches!(error, EtcdError::Denied(_)), "{error}");
            assert!(!error.to_string().contains("canary"), "{error}");
        }
        let nobody = Etcd::new(members.connection()).unwrap();
        let error = put(&nobody, "evenkeel/d").await.unwrap_err();
        assert!(error.to_string().contains("user name is empty") && error.to_string().contains("etcd.auth"), "{error}");
        put(&as_user(&members, "alice", "changed"), "evenkeel/d").await.unwrap();
    }
}

/// An authority, with a certificate for the member and one for us.
struct Certificates(tempfile::TempDir);

impl Certificates {
    fn make() -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        folder.write("ca.crt", &authority.pem());
        for (name, hosts) in [("server", vec!["localhost".into(), "127.0.0.1".into()]), ("client", vec![])] {
            let mut params = CertificateParams::new(hosts).unwrap();
            params.distinguished_name.push(DnType::CommonName, "alice");
            let key = KeyPair::generate().unwrap();
            folder.write(&format!("{name}.crt"), &params.signed_by(&key, &authority).unwrap().pem());
            folder.write(&format!("{name}.key"), &key.serialize_pem());
        }
        folder
    }

    fn write(&self, name: &str, pem: &str) {
        fs::write(self.file(name), pem).unwrap();
    }

    fn file(&self, name: &str) -> std::path::PathBuf {
        self.0.path().join(name)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_with_a_client_certificate() {
    let (right, wrong) = (Certificates::make(), Certificates::make());
    let path = |file: &str| right.file(file).to_str().unwrap().to_owned();
    let (ca, cert, key) = (path("ca.crt"), path("server.crt"), path("server.key"));
    let args = ["--client-cert-auth", "--trusted-ca-file", &ca, "--cert-file", &cert, "--key-file", &key];
    let Some(members) = Members::start_with(1, "https", &args) else { return };
    let connect = |ca: &Path, own: Option<(&Certificates, &str)>| {
        let certificate = own.map(|(own, name)| (own.file(&format!("{name}.crt")), own.file(&format!("{name}.key"))));
        let tls = Some(Tls { ca_file: Some(ca.into()), certificate });
        Etcd::new(Connection { tls, ..members.connection() }).unwrap()
    };
    let ca = right.file("ca.crt");
    put(&connect(&ca, Some((&right, "client"))), "tls").await.unwrap();

    let call = |mut client: Client| async move { client.put("tls", "x", None).await };
    let once = async |etcd: Etcd| etcd.call(Duration::ZERO, Repeat::IfNotDone, call).await.unwrap_err();
    let error = once(connect(&wrong.file("ca.crt"), Some((&right, "client")))).await;
    assert!(matches!(&error, EtcdError::Unreachable(text) if text.contains("invalid peer certificate")), "{error}");
    // The member says nothing when it refuses, so nothing is known but that there was no answer.
    for own in [None, Some((&wrong, "client"))] {
        let error = once(connect(&ca, own)).await;
        assert!(error.is_passing(), "{error}");
    }

    // A certificate that is renewed while the process runs is used once the old one fails.
    let own = Certificates::make();
    let etcd = connect(&ca, Some((&own, "client")));
    assert!(etcd.call(Duration::ZERO, Repeat::IfNotDone, call).await.is_err());
    for name in ["client.crt", "client.key"] {
        fs::copy(right.file(name), own.file(name)).unwrap();
    }
    put(&etcd, "tls").await.unwrap();
    let never = etcd.members()[0].call(|_| async { Err::<(), _>(Error::WatchError("x".into())) }).await;
    assert!(never.unwrap_err().is_unknown());
}
