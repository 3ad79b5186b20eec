//! A real headless browser, spoken to over a pair of pipes: its DevTools protocol, messages that end with a zero byte.
//!
//! Waits for conditions, never for a time. Ended when it is dropped.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Longer than anything takes on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(90);
/// Debian's name for it. `make test` installs it there.
const PROGRAM: &str = "chromium-headless-shell";

pub(crate) struct Browser {
    child: Child,
    to: File,
    from: BufReader<File>,
    session: Option<String>,
    last: u64,
    _profile: tempfile::TempDir,
}

impl Browser {
    /// `None` where it is to be passed over.
    pub(crate) fn start() -> Option<Self> {
        if ["EVENKEEL_TEST_SKIP_BROWSER", "EVENKEEL_TEST_SKIP_SERVICES"]
            .iter()
            .any(|name| std::env::var(name).is_ok_and(|value| value == "1"))
        {
            println!("passed over: no browser is wanted");
            return None;
        }
        let profile = tempfile::tempdir().unwrap();
        let pipes = [profile.path().join("to"), profile.path().join("from")];
        assert!(Command::new("mkfifo").args(&pipes).status().unwrap().success());
        // It reads descriptor 3 and writes descriptor 4. A process of its own group: a Ctrl-C is not its.
        let shell = "exec 3<\"$1\" 4>\"$2\"; shift 2; exec \"$@\"";
        let child = Command::new("sh")
            .args(["-c", shell, "browser"])
            .args(&pipes)
            .args([PROGRAM, "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe"])
            .arg(format!("--user-data-dir={}", profile.path().join("profile").display()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(profile.path().join("log")).unwrap())
            .process_group(0)
            .spawn()
            .unwrap();
        let to = File::options().write(true).open(&pipes[0]).unwrap();
        let from = BufReader::new(File::open(&pipes[1]).unwrap());
        let mut browser = Self { child, to, from, session: None, last: 0, _profile: profile };
        let target = browser.call("Target.createTarget", &json!({"url": "about:blank"}))["targetId"].clone();
        let attached = browser.call("Target.attachToTarget", &json!({"targetId": target, "flatten": true}));
        browser.session = Some(attached["sessionId"].as_str().unwrap().to_owned());
        browser.call("Page.enable", &json!({}));
        Some(browser)
    }

    /// Calls a method of the protocol.
    #[track_caller]
    pub(crate) fn call(&mut self, method: &str, params: &Value) -> Value {
        self.last += 1;
        let mut message = json!({"id": self.last, "method": method, "params": params});
        if let Some(session) = &self.session {
            message["sessionId"] = session.as_str().into();
        }
        self.to.write_all(format!("{message}\0").as_bytes()).unwrap();
        loop {
            let mut answer = Vec::new();
            self.from.read_until(0, &mut answer).unwrap();
            assert!(
                answer.pop().is_some(),
                "{PROGRAM} does not run. On Debian `make test` installs it as root; EVENKEEL_TEST_SKIP_BROWSER=1 \
                 leaves the tests out that need it"
            );
            let answer: Value = serde_json::from_slice(&answer).unwrap();
            if answer["id"] == self.last {
                assert!(answer["error"].is_null(), "{method}: {answer}");
                return answer["result"].clone();
            }
        }
    }

    pub(crate) fn open(&mut self, address: &str) {
        let answer = self.call("Page.navigate", &json!({"url": address}));
        assert!(answer["errorText"].is_null(), "{answer}");
    }

    /// The value of an expression in the page.
    #[track_caller]
    pub(crate) fn value(&mut self, expression: &str) -> Value {
        let answer = self.call("Runtime.evaluate", &json!({"expression": expression, "returnByValue": true}));
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {answer}");
        answer["result"]["value"].clone()
    }

    /// Waits until an expression holds in the page.
    #[track_caller]
    pub(crate) fn until(&mut self, expression: &str) {
        let begun = Instant::now();
        let guarded = format!("(() => {{ try {{ return Boolean({expression}) }} catch {{ return false }} }})()");
        while self.value(&guarded) != true {
            let page = self.value("document.body ? document.body.innerText : ''");
            assert!(begun.elapsed() < PATIENCE, "not within {PATIENCE:?}: {expression}\n{page}");
            std::thread::park_timeout(Duration::from_millis(20));
        }
    }

    /// What the page says, as text.
    pub(crate) fn text(&mut self, selector: &str) -> String {
        let found = self.value(&format!("document.querySelector({selector:?})?.innerText ?? ''"));
        found.as_str().unwrap().to_owned()
    }

    /// Looks as a screen of this width does, in the dark or not.
    pub(crate) fn look(&mut self, width: u32, dark: bool) {
        let size = json!({"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", &size);
        let scheme = if dark { "dark" } else { "light" };
        let media = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.call("Emulation.setEmulatedMedia", &media);
    }

    /// Writes a picture of the whole page where `EVENKEEL_TEST_PICTURES` names a folder.
    pub(crate) fn picture(&mut self, name: &str) {
        use base64::Engine as _;
        let Some(folder) = std::env::var_os("EVENKEEL_TEST_PICTURES") else { return };
        let shot = self.call("Page.captureScreenshot", &json!({"captureBeyondViewport": true}));
        let data = base64::prelude::BASE64_STANDARD.decode(shot["data"].as_str().unwrap()).unwrap();
        std::fs::write(Path::new(&folder).join(format!("{name}.png")), data).unwrap();
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // All its processes: they are a group.
        let group = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        let _ = self.child.wait();
    }
}
