//! Two whole processes and a real etcd: a leader that stands still for longer than its lease.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::member::Members;
use crate::support::until;

/// Says when it begins and ends, and by which token. While there is a file `slow` it takes longer than any lease here.
const RECONCILE: &str = r#"#!/bin/sh
echo "begin $EVENKEEL_FENCING_TOKEN" >> seen
if [ -e slow ]; then rm slow; sleep 300; fi
echo "end $EVENKEEL_FENCING_TOKEN" >> seen
"#;

struct Process {
    child: Child,
    log: std::path::PathBuf,
}

impl Process {
    fn start(folder: &Path, name: &str) -> Self {
        let log = folder.join(format!("{name}.log"));
        let child = Command::new(env!("CARGO_BIN_EXE_evenkeel"))
            .args(["run", "--config", "evenkeel.yaml"])
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(&log).unwrap())
            .spawn()
            .unwrap();
        Self { child, log }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn said(&self, what: &str) -> usize {
        fs::read_to_string(&self.log).unwrap_or_default().matches(what).count()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The begins and ends that were seen, with their tokens.
fn seen(folder: &Path) -> Vec<(String, String)> {
    let text = fs::read_to_string(folder.join("seen")).unwrap_or_default();
    text.lines().filter_map(|line| line.split_once(' ')).map(|(what, token)| (what.into(), token.into())).collect()
}

/// The one that stood still is overtaken; when it wakes it ends its run and stands by, and it can lead again.
#[tokio::test(flavor = "multi_thread")]
async fn l3_l4_b10_b59_a_leader_that_stands_still_is_overtaken_and_does_no_harm() {
    let Some(members) = Members::start(1) else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    fs::write(path.join("reconcile.sh"), RECONCILE).unwrap();
    fs::set_permissions(path.join("reconcile.sh"), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    fs::write(path.join("slow"), "").unwrap();
    let config = format!(
        "name: frozen\nreconciler: {{exec: ./reconcile.sh, timeout: none}}\nadmin: {{listen: none}}\n\
         streams: {{all: {{resync: {{every: 1s, list: {{exec: [echo, a]}}}}}}}}\n\
         etcd: {{endpoints: [\"{}\"], ttl: 3s}}\n",
        members.endpoints()[0]
    );
    fs::write(path.join("evenkeel.yaml"), config).unwrap();

    let first = Process::start(path, "first");
    until("the first one runs", || seen(path).len() == 1).await;
    let second = Process::start(path, "second");
    until("the second one has started", || second.said("evenkeel starts") == 1).await;
    first.signal(Signal::STOP);
    until("the second one runs", || seen(path).len() >= 3).await;
    let tokens: Vec<String> = seen(path).into_iter().map(|(_, token)| token).collect();
    assert!(tokens[1] > tokens[0], "a target that compares refuses what comes late: {tokens:?}");
    first.signal(Signal::CONT);
    until("the first one has heard of it", || first.said("leads the shard no more") == 1).await;

    second.signal(Signal::TERM);
    until("the first one leads again", || first.said("leads the shard  ") == 2).await;
    let last = seen(path).len();
    until("it runs again", || seen(path).len() > last).await;
    let all = seen(path);
    assert!(!all.contains(&("end".into(), tokens[0].clone())), "its run was cut off: {all:?}");
    let later: Vec<&String> = all.iter().skip(1).map(|(_, token)| token).collect();
    assert!(later.is_sorted(), "tokens only grow: {all:?}");
}

/// `check --connect` asks etcd and Kafka, says what does not fit and where that stands, and writes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn l7_k2_check_asks_the_services_where_it_is_told_to() {
    let Some(members) = Members::start(1) else { return };
    let Some(broker) = crate::broker::Broker::shared() else { return };
    let topic = crate::support::fresh("check-connect");
    crate::support::Hand::new(broker).create(&topic, 3).await;
    let folder = tempfile::tempdir().unwrap();
    let check = |shards: u32, endpoint: &str, topic: &str| {
        let config = format!(
            "name: dns\nshards: {shards}\nreconciler: {{exec: [ls]}}\n\
             streams: {{t: {{kafka: {{topics: [{topic}], dead_letter: {topic}.dead}}}}}}\n\
             kafka: {{brokers: [\"{}\"]}}\netcd: {{endpoints: [\"{endpoint}\"]}}\n",
            broker.plain()
        );
        fs::write(folder.path().join("evenkeel.yaml"), config).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
        let output = command.args(["check", "--connect"]).current_dir(folder.path()).output().unwrap();
        (output.status.code(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
    };
    let endpoint = &members.endpoints()[0];
    let (code, said) = check(3, endpoint, &topic);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(members.ctl(&["get", "", "--prefix"]), "", "nothing was written");
    let (code, said) = check(2, endpoint, &topic);
    let wanted = "3 partitions, no multiple of the 2 shards: part of its events come to a wrong shard; give it 4";
    assert!(code == Some(2) && said.contains("evenkeel.yaml:4:") && said.contains(wanted), "{said}");
    members.ctl(&[
        "put",
        "evenkeel/dns/cluster",
        r#"{"shards":6,"hash":"fnv1a","use":"ids","format":1,"incarnation":1}"#,
    ]);
    let (code, said) = check(3, endpoint, &format!("{topic}-none"));
    assert!(code == Some(2) && said.contains("evenkeel.yaml:6:") && said.contains("made with shards 6"), "{said}");
    assert!(said.contains("does not exist; create it first"), "both are said: {said}");
    let (code, said) = check(3, "http://127.0.0.1:1", &topic);
    assert!(code == Some(2) && said.contains("cannot reach etcd: http://127.0.0.1:1"), "{said}");
}
