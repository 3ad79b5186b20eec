//! A real Kafka broker: starts, stops, kills, freezes and restarts it, on free ports of 127.0.0.1.
//!
//! The jars and a formatted data folder come from `tests/services/kafka/install`; every broker works on a copy of its
//! own. A small shell stands between the tests and each broker: when the tests end, in whatever way, its standard input
//! closes, and it kills the broker and removes its data.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use evenkeel::kafka::Connection;
use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::{Semaphore, SemaphorePermit};

/// A broker that is not ready by then will not be; on a busy machine a start takes half a minute.
const READY_MAX: Duration = Duration::from_secs(120);
/// A clean stop that takes longer is no clean stop.
const STOP_MAX: Duration = Duration::from_secs(60);
/// Starts the broker, prints its process id, and kills it when standard input closes; a line says that it is gone
/// already.
const KEEPER: &str = r#"
data=$1; log=$2; shift 2
"$@" </dev/null >>"$log" 2>&1 &
pid=$!
exec 2>/dev/null
echo $pid
if read -r _; then wait $pid 2>/dev/null; exit; fi
kill -KILL $pid 2>/dev/null
wait $pid 2>/dev/null
rm -rf "$data"
"#;

/// Where the services are installed; `None` where they are to be passed over.
fn installed() -> Option<&'static Path> {
    static FOLDER: OnceLock<Option<PathBuf>> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        if std::env::var("EVENKEEL_TEST_SKIP_SERVICES").is_ok_and(|value| value == "1") {
            return None;
        }
        // `make test` has just set it up; by hand it may stand where the last run left it.
        if let Some(folder) = std::env::var_os("EVENKEEL_TEST_KAFKA") {
            return Some(PathBuf::from(folder));
        }
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/services/kafka/install");
        let found = Command::new(&script).arg("--installed").output().expect("bash runs tests/services/kafka/install");
        assert!(
            found.status.success(),
            "Kafka is not installed for the live tests. `make test` sets it up (or run tests/services/kafka/install); \
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

/// A broker of one node. Dropping it kills it and removes its data.
pub(crate) struct Broker {
    folder: PathBuf,
    ports: [u16; 6],
    keeper: Mutex<Option<Keeper>>,
    /// Held by brokers of a test's own, so that only one of them runs at a time.
    _turn: Option<SemaphorePermit<'static>>,
}

struct Keeper {
    shell: Child,
    broker: Pid,
}

impl Broker {
    /// The broker that most tests share; started by the first one that asks.
    pub(crate) fn shared() -> Option<&'static Self> {
        static SHARED: OnceLock<Option<Broker>> = OnceLock::new();
        installed()?;
        SHARED.get_or_init(|| Self::begin(None)).as_ref()
    }

    /// A broker for one test, to be stopped and killed.
    pub(crate) async fn own() -> Option<Self> {
        static TURN: Semaphore = Semaphore::const_new(1);
        installed()?;
        Self::begin(Some(TURN.acquire().await.unwrap()))
    }

    fn begin(turn: Option<SemaphorePermit<'static>>) -> Option<Self> {
        let installed = installed()?;
        let folder = tempfile::Builder::new().prefix("evenkeel-kafka-").tempdir().unwrap().keep();
        copy(&installed.join("template"), &folder.join("data"));
        let mut broker = Self { folder, ports: [0; 6], keeper: Mutex::default(), _turn: turn };
        // Another process may take a port between the look and the start.
        for _ in 0..3 {
            broker.ports = free_ports();
            broker.write_properties(installed);
            if broker.try_start() {
                return Some(broker);
            }
        }
        panic!("Kafka does not start:\n{}", broker.log_tail());
    }

    fn write_properties(&self, installed: &Path) {
        let mut text = fs::read_to_string(installed.join("kafka.properties.in")).unwrap();
        text = text.replace("@DIR@", self.folder.join("data").to_str().unwrap());
        text = text.replace("@CERTS@", installed.join("certs").to_str().unwrap());
        for (i, port) in self.ports.iter().enumerate() {
            text = text.replace(&format!("@P{}@", i + 1), &port.to_string());
        }
        fs::write(self.folder.join("kafka.properties"), text).unwrap();
    }

    /// Starts the broker on its ports and its data, and waits until it serves.
    pub(crate) fn start(&self) {
        assert!(self.try_start(), "Kafka does not start again:\n{}", self.log_tail());
    }

    fn try_start(&self) -> bool {
        let installed = installed().expect("there is a broker");
        let _ = fs::remove_file(self.log());
        let java = fs::read_to_string(installed.join("java")).unwrap();
        let args = fs::read_to_string(installed.join("args")).unwrap();
        let mut shell = Command::new("bash")
            .args(["-c", KEEPER, "keeper"])
            .args([&self.folder, &self.log()])
            .arg(java.trim())
            .args(args.lines())
            .arg(self.folder.join("kafka.properties"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // A Ctrl-C at the tests ends the keeper by its standard input.
            .process_group(0)
            .spawn()
            .expect("bash runs");
        let mut line = String::new();
        BufReader::new(shell.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let broker = Pid::from_raw(line.trim().parse().unwrap()).unwrap();
        let mut keeper = Keeper { shell, broker };
        let deadline = Instant::now() + READY_MAX;
        while Instant::now() < deadline {
            if fs::read_to_string(self.log()).is_ok_and(|log| log.contains("Kafka Server started")) {
                *self.lock() = Some(keeper);
                return true;
            }
            if rustix::process::test_kill_process(broker).is_err() {
                break;
            }
            pause();
        }
        keeper.end(Signal::KILL);
        false
    }

    /// Stops it as an operator does, and waits.
    pub(crate) fn stop(&self) {
        if let Some(mut keeper) = self.lock().take() {
            keeper.end(Signal::TERM);
        }
    }

    /// Kills it (SIGKILL).
    pub(crate) fn kill(&self) {
        if let Some(mut keeper) = self.lock().take() {
            keeper.end(Signal::KILL);
        }
    }

    /// Stops it in mid-flight: connections stay open, nothing is answered.
    pub(crate) fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets it go on.
    pub(crate) fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let keeper = self.lock();
        kill_process(keeper.as_ref().expect("the broker runs").broker, signal).unwrap();
    }

    fn lock(&self) -> MutexGuard<'_, Option<Keeper>> {
        self.keeper.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn log(&self) -> PathBuf {
        self.folder.join("log")
    }

    fn log_tail(&self) -> String {
        let log = fs::read_to_string(self.log()).unwrap_or_default();
        log.lines().rev().take(30).collect::<Vec<_>>().into_iter().rev().collect::<Vec<_>>().join("\n")
    }

    /// Runs one of Kafka's own tools against it; a few seconds each, so only for what a client cannot do.
    pub(crate) async fn tool(&self, class: &str, args: &[&str]) {
        let installed = installed().expect("there is a broker");
        let done = tokio::process::Command::new(fs::read_to_string(installed.join("java")).unwrap().trim())
            .args([
                "-XX:+UseSerialGC",
                "-XX:TieredStopAtLevel=1",
                "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
                "-cp",
            ])
            .arg(installed.join("libs").join("*"))
            .args([class, "--bootstrap-server", &self.plain()])
            .args(args)
            .output()
            .await
            .unwrap();
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{class} {args:?}: {said}{}", String::from_utf8_lossy(&done.stdout));
    }

    /// Without TLS and login.
    pub(crate) fn plain(&self) -> String {
        self.address(0)
    }

    /// With a login, without TLS.
    pub(crate) fn sasl(&self) -> String {
        self.address(2)
    }

    /// With TLS.
    pub(crate) fn tls(&self) -> String {
        self.address(3)
    }

    /// With TLS, and the broker asks for our certificate.
    pub(crate) fn mutual_tls(&self) -> String {
        self.address(4)
    }

    /// With TLS and a login.
    pub(crate) fn sasl_tls(&self) -> String {
        self.address(5)
    }

    fn address(&self, at: usize) -> String {
        format!("127.0.0.1:{}", self.ports[at])
    }

    /// A file among the test certificates.
    pub(crate) fn certificate(&self, name: &str) -> PathBuf {
        installed().expect("there is a broker").join("certs").join(name)
    }

    /// The settings of a plain connection.
    pub(crate) fn connection(&self) -> Connection {
        Connection { brokers: vec![self.plain()], ..Connection::default() }
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.kill();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl Keeper {
    /// Signals the broker, waits until it is gone, and lets the shell end.
    fn end(&mut self, signal: Signal) {
        let _ = kill_process(self.broker, signal);
        // A frozen one hears nothing but SIGKILL.
        let _ = kill_process(self.broker, Signal::CONT);
        if let Some(stdin) = self.shell.stdin.as_mut() {
            let _ = stdin.write_all(b"gone\n");
        }
        let deadline = Instant::now() + STOP_MAX;
        while self.shell.try_wait().unwrap().is_none() {
            if Instant::now() > deadline {
                let _ = kill_process(self.broker, Signal::KILL);
            }
            pause();
        }
    }
}

/// Six ports that nobody listens on, below the range from which the system takes ports for outgoing connections.
fn free_ports() -> [u16; 6] {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = 20_000 + u16::try_from(std::process::id() % 1_000).unwrap() * 12;
    let mut held = Vec::new();
    while held.len() < 6 {
        let port = 20_000 + (first - 20_000 + NEXT.fetch_add(1, Ordering::Relaxed)) % 12_000;
        held.extend(TcpListener::bind(("127.0.0.1", port)).ok().map(|listener| (port, listener)));
    }
    std::array::from_fn(|i| held[i].0)
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// Between two looks at a condition, outside of any async runtime.
#[expect(clippy::disallowed_methods, reason = "waits for another process, which cannot be awaited")]
fn pause() {
    std::thread::sleep(Duration::from_millis(20));
}
