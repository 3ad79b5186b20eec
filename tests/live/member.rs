//! A real etcd, of one member or three: starts, stops, kills, freezes and restarts its members, on free ports of
//! 127.0.0.1.
//!
//! The program comes from `tests/services/etcd/install`. As with the broker, a small shell stands between the tests and
//! each member: when the tests end, in whatever way, its standard input closes, and it kills the member.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use etcd_client::{Client, ConnectOptions};
use evenkeel::etcd::{Connection, Etcd};
use rustix::process::{Pid, Signal, kill_process};

/// Members that do not serve by then will not.
const READY_MAX: Duration = Duration::from_secs(60);
/// A clean stop that takes longer is no clean stop.
const STOP_MAX: Duration = Duration::from_secs(30);
/// Starts the member, prints its process id, and kills it when standard input closes; a line says that it is gone
/// already.
const KEEPER: &str = r#"
log=$1; shift
"$@" </dev/null >>"$log" 2>&1 &
pid=$!
exec 2>/dev/null
echo $pid
if read -r _; then wait $pid 2>/dev/null; exit; fi
kill -KILL $pid 2>/dev/null
wait $pid 2>/dev/null
"#;

/// Where etcd is installed; `None` where it is to be passed over.
fn installed() -> Option<&'static Path> {
    static FOLDER: OnceLock<Option<PathBuf>> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        if std::env::var("EVENKEEL_TEST_SKIP_SERVICES").is_ok_and(|value| value == "1") {
            return None;
        }
        if let Some(folder) = std::env::var_os("EVENKEEL_TEST_ETCD") {
            return Some(PathBuf::from(folder));
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

/// A cluster of members. Dropping it kills them and removes their data.
pub(crate) struct Members {
    folder: tempfile::TempDir,
    ports: Vec<[u16; 2]>,
    scheme: &'static str,
    args: Vec<String>,
    keepers: Vec<Mutex<Option<Keeper>>>,
}

struct Keeper {
    shell: Child,
    member: Pid,
}

impl Members {
    /// The single member that most tests share; started by the first one that asks.
    pub(crate) fn shared() -> Option<&'static Self> {
        static SHARED: OnceLock<Option<Members>> = OnceLock::new();
        SHARED.get_or_init(|| Self::start(1)).as_ref()
    }

    /// A cluster of so many members for one test.
    pub(crate) fn start(count: usize) -> Option<Self> {
        Self::start_with(count, "http", &[])
    }

    /// The same with more options of etcd's own; `scheme` is how clients speak to it.
    pub(crate) fn start_with(count: usize, scheme: &'static str, args: &[&str]) -> Option<Self> {
        installed()?;
        // Another process may take a port between the look and the start.
        for _ in 0..3 {
            let folder = tempfile::Builder::new().prefix("evenkeel-etcd-").tempdir().unwrap();
            let keepers = (0..count).map(|_| Mutex::default()).collect();
            let args = args.iter().map(ToString::to_string).collect();
            let members = Self { folder, ports: free_ports(count), scheme, args, keepers };
            for at in 0..count {
                members.begin(at);
            }
            if (0..count).all(|at| members.is_ready(at)) {
                return Some(members);
            }
        }
        panic!("etcd does not start");
    }

    /// Starts a member on its ports and its data, and waits until it serves.
    pub(crate) fn restart(&self, at: usize) {
        self.begin(at);
        assert!(self.is_ready(at), "etcd does not start again:\n{}", self.log_tail(at));
    }

    /// Starts a member without waiting: with its others away, it cannot serve yet.
    pub(crate) fn begin(&self, at: usize) {
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let client = self.endpoint(at);
        let peers: Vec<_> =
            self.ports.iter().enumerate().map(|(i, [_, peer])| format!("m{i}={}", url(*peer))).collect();
        let _ = fs::remove_file(self.log(at));
        let mut shell = Command::new("bash")
            .args(["-c", KEEPER, "keeper"])
            .arg(self.log(at))
            .arg(installed().expect("there is an etcd").join("etcd"))
            .args(["--name", &format!("m{at}"), "--data-dir"])
            .arg(self.folder.path().join(format!("m{at}")))
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &url(self.ports[at][1])])
            .args(["--initial-advertise-peer-urls", &url(self.ports[at][1])])
            .args(["--initial-cluster", &peers.join(","), "--initial-cluster-state", "new"])
            .args(["--initial-cluster-token", &format!("evenkeel-{}", self.ports[0][1])])
            .args(&self.args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .expect("bash runs");
        let mut line = String::new();
        BufReader::new(shell.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let member = Pid::from_raw(line.trim().parse().unwrap()).unwrap();
        *self.lock(at) = Some(Keeper { shell, member });
    }

    /// Waits until the member serves; `false` if it has ended instead.
    fn is_ready(&self, at: usize) -> bool {
        let deadline = Instant::now() + READY_MAX;
        while Instant::now() < deadline {
            if fs::read_to_string(self.log(at)).is_ok_and(|log| log.contains("ready to serve client requests")) {
                return true;
            }
            let member = self.lock(at).as_ref().map(|keeper| keeper.member);
            if member.is_none_or(|member| rustix::process::test_kill_process(member).is_err()) {
                break;
            }
            pause();
        }
        false
    }

    /// Stops a member as an operator does, and waits.
    pub(crate) fn stop(&self, at: usize) {
        if let Some(mut keeper) = self.lock(at).take() {
            keeper.end(Signal::TERM);
        }
    }

    /// Kills a member (SIGKILL).
    pub(crate) fn kill(&self, at: usize) {
        if let Some(mut keeper) = self.lock(at).take() {
            keeper.end(Signal::KILL);
        }
    }

    /// Stops a member in mid-flight: connections stay open, nothing is answered, its clock goes on.
    pub(crate) fn freeze(&self, at: usize) {
        self.signal(at, Signal::STOP);
    }

    /// Lets it go on.
    pub(crate) fn thaw(&self, at: usize) {
        self.signal(at, Signal::CONT);
    }

    /// How many members there are.
    pub(crate) fn count(&self) -> usize {
        self.ports.len()
    }

    /// The address of a member.
    pub(crate) fn endpoint(&self, at: usize) -> String {
        format!("{}://127.0.0.1:{}", self.scheme, self.ports[at][0])
    }

    /// The addresses of all members.
    pub(crate) fn endpoints(&self) -> Vec<String> {
        (0..self.count()).map(|at| self.endpoint(at)).collect()
    }

    /// The settings of a plain connection.
    pub(crate) fn connection(&self) -> Connection {
        Connection::new(self.endpoints())
    }

    /// Ours, over a plain connection.
    pub(crate) fn etcd(&self) -> Etcd {
        Etcd::new(self.connection()).unwrap()
    }

    /// A plain client to a member, for what the tests do themselves.
    pub(crate) async fn hand(&self, at: usize) -> Client {
        let options = ConnectOptions::new().with_timeout(Duration::from_secs(20));
        Client::connect([self.endpoint(at)], Some(options)).await.unwrap()
    }

    /// Runs etcdctl; gives what it prints.
    pub(crate) fn ctl(&self, args: &[&str]) -> String {
        let done = Command::new(installed().expect("there is an etcd").join("etcdctl"))
            .args(["--endpoints", &self.endpoints().join(","), "--command-timeout", "20s"])
            .args(args)
            .output()
            .unwrap();
        let printed = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
        assert!(done.status.success(), "etcdctl {args:?}: {printed}");
        printed
    }

    /// Which member leads the cluster.
    pub(crate) async fn leader(&self) -> usize {
        let deadline = Instant::now() + READY_MAX;
        loop {
            for at in 0..self.count() {
                if self.lock(at).is_none() {
                    continue;
                }
                let status = tokio::time::timeout(Duration::from_secs(2), async { self.hand(at).await.status().await });
                // The member's own id comes with the answer.
                if let Ok(Ok(status)) = status.await
                    && status.leader() != 0
                    && status.header().is_some_and(|header| header.member_id() == status.leader())
                {
                    return at;
                }
            }
            assert!(Instant::now() < deadline, "the cluster has no leader");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn signal(&self, at: usize, signal: Signal) {
        kill_process(self.lock(at).as_ref().expect("the member runs").member, signal).unwrap();
    }

    fn lock(&self, at: usize) -> MutexGuard<'_, Option<Keeper>> {
        self.keepers[at].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn log(&self, at: usize) -> PathBuf {
        self.folder.path().join(format!("m{at}.log"))
    }

    fn log_tail(&self, at: usize) -> String {
        let log = fs::read_to_string(self.log(at)).unwrap_or_default();
        log.lines().rev().take(20).collect::<Vec<_>>().into_iter().rev().collect::<Vec<_>>().join("\n")
    }
}

impl Drop for Members {
    fn drop(&mut self) {
        for at in 0..self.count() {
            self.kill(at);
        }
    }
}

impl Keeper {
    /// Signals the member, waits until it is gone, and lets the shell end.
    fn end(&mut self, signal: Signal) {
        let _ = kill_process(self.member, signal);
        // A frozen one hears nothing but SIGKILL.
        let _ = kill_process(self.member, Signal::CONT);
        if let Some(stdin) = self.shell.stdin.as_mut() {
            let _ = stdin.write_all(b"gone\n");
        }
        let deadline = Instant::now() + STOP_MAX;
        while self.shell.try_wait().unwrap().is_none() {
            if Instant::now() > deadline {
                let _ = kill_process(self.member, Signal::KILL);
            }
            pause();
        }
    }
}

/// Two ports for each member that nobody listens on, below the range from which the system takes ports for outgoing
/// connections, and beside the brokers' range.
fn free_ports(count: usize) -> Vec<[u16; 2]> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = u16::try_from(std::process::id() % 500).unwrap() * 7;
    let mut held = Vec::new();
    while held.len() < 2 * count {
        let port = 12_000 + (first + NEXT.fetch_add(1, Ordering::Relaxed)) % 7_000;
        held.extend(TcpListener::bind(("127.0.0.1", port)).ok().map(|listener| (port, listener)));
    }
    held.chunks(2).map(|pair| [pair[0].0, pair[1].0]).collect()
}

/// Between two looks at a condition, outside of any async runtime.
#[expect(clippy::disallowed_methods, reason = "waits for another process, which cannot be awaited")]
fn pause() {
    std::thread::sleep(Duration::from_millis(20));
}
