//! The quickstart's commands, called as evenkeel calls them (the exec contract).
//!
//! Must never work on the files in the repository: each test has a copy of its own.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

struct Quickstart {
    folder: TempDir,
}

/// How a run ended: the exit code, the answer and what it said on standard error.
#[derive(Debug, PartialEq, Eq)]
struct Ended {
    code: i32,
    answer: String,
    stderr: String,
}

impl Quickstart {
    fn copy() -> Self {
        let folder = tempfile::tempdir().unwrap();
        copy_all(&Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/quickstart"), folder.path());
        Self { folder }
    }

    fn call(&self, command: &str, env: &[(&str, &str)], stdin: &str) -> Output {
        let mut child = Command::new(self.folder.path().join(command))
            .current_dir(self.folder.path())
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .envs(env.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // A command need not read its input.
        let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
        child.wait_with_output().unwrap()
    }

    fn reconcile(&self, id: &str) -> Ended {
        let answer = self.folder.path().join("answer.json");
        fs::write(&answer, "").unwrap();
        let request = serde_json::json!({"version": 1, "operation": "reconcile", "id": id, "run": "r", "attempt": 1});
        let env =
            [("EVENKEEL_ID", id), ("EVENKEEL_OPERATION", "reconcile"), ("EVENKEEL_ANSWER", answer.to_str().unwrap())];
        let output = self.call("reconcile.sh", &env, &request.to_string());
        Ended {
            code: output.status.code().unwrap(),
            answer: fs::read_to_string(&answer).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    fn list(&self) -> Vec<String> {
        let output = self.call("list.sh", &[], "");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
    }

    fn read(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.folder.path().join(path)).ok()
    }

    fn write(&self, path: &str, text: &str) {
        fs::write(self.folder.path().join(path), text).unwrap();
    }

    fn remove(&self, path: &str) {
        fs::remove_file(self.folder.path().join(path)).unwrap();
    }

    /// One pass over everything listed.
    fn converge(&self) {
        for id in self.list() {
            assert_eq!(self.reconcile(&id).code, 0, "{id}");
        }
    }

    fn generated(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder.path().join("generated")).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

fn copy_all(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            fs::create_dir(&target).unwrap();
            copy_all(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

const BLOG: &str = "generated/blog.example.zone";

#[test]
fn a_file_that_is_damaged_or_gone_comes_back() {
    let quickstart = Quickstart::copy();
    quickstart.converge();
    let good = quickstart.read(BLOG).unwrap();
    assert!(good.contains("www          300 IN A 192.0.2.10"), "{good}");
    assert_eq!(quickstart.reconcile("blog.example").answer, "{\"unchanged\": true}\n");

    quickstart.write(BLOG, &format!("{good}\n"));
    assert_eq!(quickstart.reconcile("blog.example").answer, "{\"message\": \"its file is written\"}\n");
    assert_eq!(quickstart.read(BLOG).unwrap(), good);

    quickstart.remove(BLOG);
    quickstart.converge();
    assert_eq!(quickstart.read(BLOG).unwrap(), good);
}

#[test]
fn declarations_come_and_go() {
    let quickstart = Quickstart::copy();
    quickstart.converge();
    quickstart.write("zones/docs.example", "www 192.0.2.30\n");
    quickstart.remove("zones/blog.example");
    assert_eq!(quickstart.list(), ["blog.example", "docs.example", "shop.example"]);
    quickstart.converge();
    assert_eq!(quickstart.generated(), ["docs.example.zone", "shop.example.zone"]);
    assert_eq!(quickstart.list(), ["docs.example", "shop.example"]);
}

#[test]
fn a_wrong_declaration_fails_and_leaves_the_last_good_file() {
    let quickstart = Quickstart::copy();
    quickstart.converge();
    let good = quickstart.read(BLOG).unwrap();
    for (line, says) in [
        ("ftp 999.0.0.1", "999.0.0.1 is no IPv4 address"),
        ("ftp 1.2.3", "1.2.3 is no IPv4 address"),
        ("ftp", "expected a name and an address, found: ftp"),
    ] {
        quickstart.write("zones/blog.example", &format!("# one line\n{line}\n"));
        let ended = quickstart.reconcile("blog.example");
        assert_eq!(ended.code, 1, "transient, so that it is tried again");
        assert_eq!(ended.stderr, format!("zones/blog.example, line 2: {says}\n"));
    }
    assert_eq!(quickstart.read(BLOG).unwrap(), good);
    assert_eq!(quickstart.generated(), ["blog.example.zone", "shop.example.zone"], "nothing half-written is left");
}

#[test]
fn an_id_that_is_a_path_is_refused_for_good() {
    let quickstart = Quickstart::copy();
    for id in ["../zones", "a/b", ".hidden"] {
        assert_eq!(quickstart.reconcile(id).code, 65, "{id}");
    }
}

#[test]
fn a_list_that_cannot_be_made_fails() {
    let quickstart = Quickstart::copy();
    fs::remove_dir_all(quickstart.folder.path().join("zones")).unwrap();
    assert!(!quickstart.call("list.sh", &[], "").status.success(), "an empty list would be a lie");
}

#[test]
fn the_welcome_names_files_that_are_there() {
    let quickstart = Quickstart::copy();
    let welcome = quickstart.read("welcome.txt").unwrap();
    let commands = welcome.lines().filter(|line| line.starts_with("  ")).count();
    assert_eq!(commands, 3);
    quickstart.converge();
    for path in welcome.split_whitespace().filter_map(|word| word.strip_prefix("target/quickstart/")) {
        let path = path.trim_end_matches([';', '.']);
        let new = path == "zones/docs.example";
        assert!(new || quickstart.folder.path().join(path).exists(), "{path}");
    }
}
