//! A real etcd: one member or three, on free ports of 127.0.0.1; started, frozen, woken, killed, asked by etcdctl.
//!
//! The programs come from `tests/services/etcd/install`. A small shell stands between the tests and each member: when
//! the tests end, in whatever way, its standard input closes, and it kills the member.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// A cluster that does not answer by then will not.
const READY_MAX: Duration = Duration::from_secs(60);
/// Starts a member, prints its process id, and kills it when standard input closes.
const KEEPER: &str = r#"
"$@" </dev/null >/dev/null 2>&1 &
pid=$!
echo $pid
read -r _
kill -KILL $pid 2>/dev/null
wait $pid 2>/dev/null
"#;

/// Where etcd is installed; `None` where services are to be passed over.
fn installed() -> Option<&'static Path> {
    static FOLDER: OnceLock<Option<PathBuf>> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        if std::env::var("EVENKEEL_TEST_SKIP_SERVICES").is_ok_and(|value| value == "1") {
            return None;
        }
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/services/etcd/install");
        let found = Command::new(&script).arg("--installed").output().expect("bash runs tests/services/etcd/install");
        assert!(
            found.status.success(),
            "etcd is not installed for the live tests. `make test` sets it up (or run tests/services/etcd/install); \
             EVENKEEL_TEST_SKIP_SERVICES=1 passes these tests over"
        );
        Some(PathBuf::from(String::from_utf8(found.stdout).unwrap().trim()))
    });
    if folder.is_none() {
        let test = std::thread::current().name().unwrap_or("a test").to_string();
        println!("{test}: passed over, since EVENKEEL_TEST_SKIP_SERVICES=1");
    }
    folder.as_deref()
}

/// A cluster of a test's own. Dropping it kills it and removes its data.
pub(crate) struct Members {
    programs: &'static Path,
    members: Vec<Member>,
    _folder: tempfile::TempDir,
}

struct Member {
    keeper: Child,
    pid: Pid,
    endpoint: String,
}

impl Members {
    /// Starts members and waits until they answer.
    pub(crate) fn start(count: usize, options: &[&str]) -> Option<Self> {
        let programs = installed()?;
        let folder = tempfile::Builder::new().prefix("evenkeel-etcd-").tempdir().unwrap();
        let listeners: Vec<TcpListener> = (0..2 * count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let ports: Vec<u16> = listeners.iter().map(|listener| listener.local_addr().unwrap().port()).collect();
        drop(listeners);
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let cluster: Vec<String> = (0..count).map(|at| format!("m{at}={}", url(ports[2 * at + 1]))).collect();
        let start = |at: usize| {
            let (client, peer) = (url(ports[2 * at]), url(ports[2 * at + 1]));
            let data = folder.path().join(format!("m{at}"));
            let mut command = Command::new("bash");
            command.args(["-c", KEEPER, "keeper"]).arg(programs.join("etcd")).args(["--name", &format!("m{at}")]);
            command.arg("--data-dir").arg(data).args(["--listen-client-urls", &client]);
            command.args(["--advertise-client-urls", &client, "--listen-peer-urls", &peer]);
            command.args(["--initial-advertise-peer-urls", &peer, "--initial-cluster", &cluster.join(",")]);
            command.args(["--initial-cluster-state", "new", "--log-level", "error"]).args(options);
            let mut keeper = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
            let mut line = String::new();
            BufReader::new(keeper.stdout.take().unwrap()).read_line(&mut line).unwrap();
            let pid = Pid::from_raw(line.trim().parse().unwrap()).unwrap();
            Member { keeper, pid, endpoint: client }
        };
        let members = Self { programs, members: (0..count).map(start).collect(), _folder: folder };
        let begun = Instant::now();
        while !members.try_ctl(&["endpoint", "health"]).0 {
            assert!(begun.elapsed() < READY_MAX, "etcd does not start");
        }
        Some(members)
    }

    pub(crate) fn endpoints(&self) -> Vec<String> {
        self.members.iter().map(|member| member.endpoint.clone()).collect()
    }

    /// Sends a signal to a member: `Signal::STOP` freezes it, `Signal::CONT` wakes it up.
    pub(crate) fn signal(&self, member: usize, signal: Signal) {
        kill_process(self.members[member].pid, signal).unwrap();
    }

    /// Runs etcdctl; gives what it prints.
    pub(crate) fn ctl(&self, args: &[&str]) -> String {
        let (well, printed) = self.try_ctl(args);
        assert!(well, "etcdctl {args:?}: {printed}");
        printed
    }

    fn try_ctl(&self, args: &[&str]) -> (bool, String) {
        let output = Command::new(self.programs.join("etcdctl"))
            .args(["--endpoints", &self.endpoints().join(","), "--command-timeout", "5s"])
            .args(args)
            .output()
            .unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&text).into_owned())
    }
}

impl Drop for Members {
    fn drop(&mut self) {
        for member in &mut self.members {
            drop(member.keeper.stdin.take());
            let _ = member.keeper.wait();
        }
    }
}
