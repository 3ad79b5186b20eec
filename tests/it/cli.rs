//! The command line, through the binary: exit codes, help, `check`, `init`, pipes that close, secrets.
//!
//! Help texts are compared with `cli/*.txt`; `EVENKEEL_TEST_UPDATE=1` rewrites those.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// What every secret is set to: it must never be seen (B87).
const CANARY: &str = "canary-5f1e";

/// The binary in this folder, with an environment that says nothing.
fn evenkeel(dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
    command.current_dir(dir).env_clear().env("PATH", "/usr/bin:/bin").stdin(Stdio::null());
    command
}

fn run<A: AsRef<OsStr>>(dir: &Path, args: impl IntoIterator<Item = A>) -> Output {
    evenkeel(dir).args(args).output().unwrap()
}

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[track_caller]
fn assert_code(output: &Output, code: i32, says: &str) {
    let all = format!("{}{}", text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{all}");
    assert!(all.contains(says), "{says:?} is not in:\n{all}");
    assert!(!all.contains("panicked"), "{all}");
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

const GOOD: &str =
    "name: dns\nreconciler: {exec: [cat, x]}\nstreams: {all: {resync: {every: 1m, list: {exec: [cat, y]}}}}\n";
const KAFKA: &str = "name: dns\nreconciler: {exec: cat}\nkafka: {brokers: ['127.0.0.1:1']}\n\
                     streams: {a: {kafka: {topics: [orders], dead_letter: dlq}}}\n";

#[test]
fn usage_errors_are_2_and_say_what_is_wrong() {
    let dir = folder();
    fs::write(dir.path().join("evenkeel.yaml"), KAFKA).unwrap();
    let long = "x".repeat(100_000);
    for (args, says) in [
        (vec![], "Usage: evenkeel"),
        (words("chek"), "similar subcommand exists: 'check'"),
        (words("check --nonsense"), "unexpected argument '--nonsense'"),
        (words("check --confg x"), "a similar argument exists: '--config'"),
        (words("run --shards=-1"), "unexpected argument '--shards'"),
        (words("check --config"), "a value is required for '--config <FILE>'"),
        (vec!["check", "--config", ""], "a value is required for '--config <FILE>'"),
        (words("check -o xml"), "invalid value 'xml'"),
        (words("config"), "Usage: evenkeel config"),
        (words("config nonsense"), "unrecognized subcommand 'nonsense'"),
        (words("completions korn"), "invalid value 'korn'"),
        (words("init"), "<DIR>"),
        (words("init --reconciler perl x"), "invalid value 'perl'"),
        (words("publish"), "<ID>..."),
        (words("publish -x"), "unexpected argument '-x'"),
        (vec!["publish", ""], "an id is empty"),
        (vec!["publish", "--", "-x", "a\u{202e}"], "an id holds U+202E at byte 1"),
        (vec!["publish", &long], "an id has 100000 bytes; at most 512 are allowed"),
        (words("publish - -"), "- can stand once only"),
    ] {
        assert_code(&run(dir.path(), &args), 2, says);
    }
    let not_utf8 = OsString::from_vec(vec![b'a', 0xff]);
    assert_code(&run(dir.path(), [OsString::from("publish"), not_utf8]), 2, "invalid UTF-8");
}

#[test]
fn ids_on_standard_input_are_checked_before_anything_is_sent() {
    let dir = folder();
    fs::write(dir.path().join("evenkeel.yaml"), KAFKA).unwrap();
    let mut child = evenkeel(dir.path())
        .args(["publish", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"good\n\nbad\x07\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_code(&output, 2, "standard input, line 3: an id holds U+0007 at byte 3");
}

#[test]
fn publish_needs_kafka_and_one_topic() {
    let dir = folder();
    let write = |config: &str| fs::write(dir.path().join("evenkeel.yaml"), config).unwrap();
    write(GOOD);
    assert_code(&run(dir.path(), ["publish", "a"]), 2, "use `evenkeel trigger`");
    write(&KAFKA.replace("[orders]", "[orders, users]"));
    assert_code(&run(dir.path(), ["publish", "a"]), 2, "name one with --topic: orders, users");
}

#[test]
fn without_a_config_it_says_where_it_looked_and_offers_init() {
    let dir = folder();
    for verb in ["run", "check"] {
        let output = run(dir.path(), [verb]);
        assert_code(&output, 2, "found no config; looked for ./evenkeel.yaml and /etc/evenkeel/evenkeel.yaml");
        assert_code(&output, 2, "`evenkeel init hello`");
        assert_code(
            &run(dir.path(), [verb, "--config", "none.yaml"]),
            2,
            "cannot read the config none.yaml: no such file",
        );
        assert_code(&run(dir.path(), [verb, "--config", "."]), 2, "cannot read the config .: it is a folder");
    }
    let named = evenkeel(dir.path()).arg("check").env("EVENKEEL_CONFIG", "other.yaml").output().unwrap();
    assert_code(&named, 2, "cannot read the config other.yaml: no such file");
    fs::write(dir.path().join("large.yaml"), "#".repeat(2 << 20)).unwrap();
    assert_code(&run(dir.path(), ["check", "--config", "large.yaml"]), 2, "it is larger than 1 MiB");
}

/// The ten that are shown to people, and all others: `check` and a start say the same.
#[test]
fn b86_check_and_run_say_the_same_about_every_bad_config() {
    let dir = folder();
    let bad = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/config/bad");
    let mut count = 0;
    for name in [
        "unknown_key_nested",
        "zero_is_never_off",
        "durations",
        "duplicate_keys",
        "words",
        "missing_keys",
        "webhook_and_exec",
        "tab",
        "later_versions",
        "memory_and_no_dead_letter",
    ] {
        fs::copy(bad.join(format!("{name}.yaml")), dir.path().join("evenkeel.yaml")).unwrap();
        fs::write(dir.path().join("ok.sh"), "#!/bin/sh\n").unwrap();
        fs::set_permissions(dir.path().join("ok.sh"), fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(dir.path().join("secret"), "s").unwrap();
        fs::set_permissions(dir.path().join("secret"), fs::Permissions::from_mode(0o600)).unwrap();
        let expected = fs::read_to_string(bad.join(format!("{name}.out"))).unwrap();
        let [check, start] = ["check", "run"].map(|verb| run(dir.path(), [verb]));
        let said =
            text(&check.stderr).lines().skip(1).map(|line| format!("{}\n", line.trim_start())).collect::<String>();
        assert_eq!((check.status.code(), said.as_str()), (Some(2), expected.as_str()), "{name}");
        assert_eq!((start.status.code(), text(&start.stderr)), (Some(2), text(&check.stderr)), "{name}");
        let json = run(dir.path(), ["check", "-o", "json"]);
        let report: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
        assert_eq!((json.status.code(), &report["good"]), (Some(2), &false.into()));
        assert_eq!(report["faults"].as_array().unwrap().len(), expected.lines().count(), "{report}");
        count += 1;
    }
    assert_eq!(count, 10);
}

#[test]
fn check_says_that_a_config_is_good_and_what_to_know_about_it() {
    let dir = folder();
    fs::write(dir.path().join("evenkeel.yaml"), GOOD).unwrap();
    let output = run(dir.path(), ["check"]);
    assert_code(&output, 0, "evenkeel.yaml is good: dns, exec cat, 1 shard, all (resync)\n");
    assert_eq!(text(&output.stderr), "");
    fs::write(dir.path().join("evenkeel.yaml"), "name: dns\nreconciler: {exec: cat}\n").unwrap();
    let output = run(dir.path(), ["check"]);
    assert_code(&output, 0, "warning: evenkeel.yaml:1:1: streams: no streams: nothing but `evenkeel trigger`");
    for (form, wanted) in [("json", "\"line\": 1"), ("yaml", "line: 1")] {
        assert_code(&run(dir.path(), ["check", "-o", form]), 0, wanted);
    }
}

#[test]
fn variables_override_and_are_named_in_faults() {
    let dir = folder();
    fs::write(dir.path().join("evenkeel.yaml"), GOOD).unwrap();
    let check = |name: &str, value: &str| evenkeel(dir.path()).arg("check").env(name, value).output().unwrap();
    assert_code(&check("EVENKEEL__SHARDS", "12"), 0, "12 shards");
    assert_code(&check("EVENKEEL__SHARDS", "0"), 2, "EVENKEEL__SHARDS: shards: the value is too small");
    assert_code(&check("EVENKEEL__SHARDS", ""), 2, "EVENKEEL__SHARDS: is set but empty");
    assert_code(&check("EVENKEEL__SHRDS", "1"), 2, "EVENKEEL__SHRDS: shrds: unknown key; did you mean shards?");
    let not_utf8 = evenkeel(dir.path()).arg("check").env("EVENKEEL__NAME", OsString::from_vec(vec![0xff])).output();
    assert_code(&not_utf8.unwrap(), 2, "EVENKEEL__NAME: the value is not UTF-8");
}

#[test]
fn a_reader_that_goes_away_is_no_failure_and_a_full_disk_is_one() {
    let dir = folder();
    fs::write(dir.path().join("evenkeel.yaml"), GOOD).unwrap();
    for args in
        ["--help", "--version", "help run", "config reference", "config example", "completions bash", "man", "check"]
    {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let output = evenkeel(dir.path()).args(words(args)).stdout(writer).output().unwrap();
        assert_code(&output, 0, "");
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let output = evenkeel(dir.path()).args(words(args)).stdout(full).output().unwrap();
        assert_code(&output, 1, "");
    }
    let (reader, writer) = io::pipe().unwrap();
    drop(reader);
    let output = evenkeel(dir.path()).args(["run", "--config", "none"]).stderr(writer).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "an error that nobody reads is still one");
}

#[test]
fn colour_is_for_terminals_and_for_those_who_ask() {
    let dir = folder();
    let esc = |args: &str, no_color: &str| {
        let output = evenkeel(dir.path()).args(words(args)).env("NO_COLOR", no_color).output().unwrap();
        output.stdout.contains(&0x1b) || output.stderr.contains(&0x1b)
    };
    assert!(!esc("check", "") && !esc("--help", "") && !esc("check", "1"));
    assert!(!esc("check --color never", ""));
    assert!(esc("check --color always", ""));
}

#[test]
fn b85_the_version_names_what_was_built_in() {
    let dir = folder();
    let output = run(dir.path(), ["--version"]);
    for part in
        [env!("CARGO_PKG_VERSION"), "features: kafka, file-store, hooks, cli", "librdkafka", "ssl", "sasl_scram"]
    {
        assert_code(&output, 0, part);
    }
    assert_code(&run(dir.path(), ["-V"]), 0, &format!("evenkeel {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn help_is_as_it_was_and_every_verb_shows_how_to_use_it() {
    let dir = folder();
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/cli");
    let mut wrong = Vec::new();
    for verb in ["", "run", "init", "check", "config", "config example", "publish", "completions", "man"] {
        let output = run(dir.path(), [words(verb), vec!["--help"]].concat());
        let (file, help) =
            (golden.join(format!("help {verb}").trim_end().replace(' ', "-") + ".txt"), text(&output.stdout));
        if std::env::var_os("EVENKEEL_TEST_UPDATE").is_some() {
            fs::write(&file, help).unwrap();
        }
        if fs::read_to_string(&file).unwrap_or_default() != help {
            wrong.push(format!("{} differs from:\n{help}", file.display()));
        }
        assert!(help.lines().all(|line| line.chars().count() <= 110), "{help}");
        let teaches = verb.is_empty() || verb.starts_with("config") || help.contains("Examples:\n  ");
        assert!(teaches, "{verb} has no examples");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The verbs that the program lists.
fn verbs() -> Vec<String> {
    let output = run(folder().path(), ["-h"]);
    let help = text(&output.stdout).to_owned();
    let commands = help.split("Commands:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    commands.lines().map(|line| words(line)[0].to_owned()).filter(|verb| verb != "help").collect()
}

#[test]
fn docs_completions_and_man_pages_know_every_verb() {
    let dir = folder();
    let verbs = verbs();
    assert!(verbs.len() >= 8, "{verbs:?}");
    let docs = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/cli.md")).unwrap();
    let completions =
        ["bash", "zsh", "fish", "elvish", "powershell"].map(|shell| run(dir.path(), ["completions", shell]));
    let man = run(dir.path(), ["man"]);
    assert_code(&man, 0, ".TH evenkeel 1");
    assert_code(&run(dir.path(), ["man", "."]), 0, "");
    assert_code(&run(dir.path(), ["man", "missing"]), 1, "cannot write missing/evenkeel.1");
    for verb in &verbs {
        assert!(docs.contains(&format!("`{verb}")), "{verb} is not in docs/cli.md");
        for output in &completions {
            assert_code(output, 0, verb);
        }
        assert!(text(&man.stdout).contains(verb.as_str()), "{verb} is not in the man page");
        let page = fs::read_to_string(dir.path().join(format!("evenkeel-{verb}.1"))).unwrap();
        assert!(page.contains(".TH"), "{page}");
    }
}

#[test]
fn init_makes_projects_that_pass_check_and_overwrites_nothing() {
    let dir = folder();
    for (kind, files) in [
        ("exec", ["evenkeel.yaml", "reconcile.sh", "list.sh", "wanted/greeting"].as_slice()),
        ("webhook", &["evenkeel.yaml", "app.py"]),
        ("rust", &["Cargo.toml", "src/main.rs", "wanted/greeting"]),
    ] {
        let project = dir.path().join(format!("My {kind}"));
        let args = ["init", "--reconciler", kind, project.to_str().unwrap()];
        let output = run(dir.path(), args);
        assert_code(&output, 0, &format!("cd '{}'\n", project.display()));
        for file in files {
            assert!(project.join(file).is_file(), "{kind}: {file}");
        }
        let text = fs::read_to_string(project.join(files[0])).unwrap();
        assert!(text.contains(&format!("my-{kind}")), "the project has the folder's name: {text}");
        if kind != "rust" {
            assert_code(&run(&project, ["check"]), 0, &format!("evenkeel.yaml is good: my-{kind}"));
        }
        fs::remove_file(project.join(files[0])).unwrap();
        let before = fs::read(project.join(files[1])).unwrap();
        assert_code(&run(dir.path(), args), 2, "nothing is overwritten");
        assert!(!project.join(files[0]).exists(), "nothing is written if anything is there");
        assert_eq!(fs::read(project.join(files[1])).unwrap(), before);
    }
}

#[test]
fn the_scripts_of_init_do_what_they_say() {
    let dir = folder();
    assert_code(&run(dir.path(), ["init", "p"]), 0, "wrote p/reconcile.sh");
    let project = dir.path().join("p");
    let reconcile = |id: &str| {
        let answer = project.join("answer");
        let _ = fs::remove_file(&answer);
        let status = Command::new("./reconcile.sh")
            .current_dir(&project)
            .env("EVENKEEL_ID", id)
            .env("EVENKEEL_ANSWER", &answer)
            .stderr(Stdio::null())
            .status()
            .unwrap();
        (status.code().unwrap(), fs::read_to_string(answer).unwrap_or_default())
    };
    let list = || {
        let output = Command::new("./list.sh").current_dir(&project).output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    };
    let (wanted, actual) = (project.join("wanted/greeting"), project.join("actual/greeting"));
    assert_eq!(list(), "greeting\n");
    assert_eq!(reconcile("greeting"), (0, "{\"message\": \"written\"}\n".into()));
    assert_eq!(fs::read(&wanted).unwrap(), fs::read(&actual).unwrap());
    assert_eq!(reconcile("greeting"), (0, "{\"unchanged\": true}\n".into()));
    fs::rename(&wanted, project.join("wanted/other one")).unwrap();
    assert_eq!(list(), "greeting\nother one\n");
    assert_eq!(reconcile("greeting").0, 0);
    assert!(!actual.exists());
    assert_eq!(reconcile("other one").0, 0);
    assert_eq!((reconcile("../secret").0, reconcile(".hidden").0), (65, 65));
    fs::remove_dir_all(project.join("wanted")).unwrap();
    assert!(!Command::new("./list.sh").current_dir(&project).stderr(Stdio::null()).status().unwrap().success());
}

/// B87: whatever is typed, with a canary in every secret.
#[test]
fn b87_no_verb_prints_a_secret() {
    let dir = folder();
    fs::write(dir.path().join("secret"), CANARY).unwrap();
    fs::set_permissions(dir.path().join("secret"), fs::Permissions::from_mode(0o644)).unwrap();
    let good = format!(
        "name: dns\nreconciler: {{webhook: {{url: \"http://h/r\", secret_file: secret, authorization_file: secret}}}}\n\
         kafka:\n  brokers: [\"127.0.0.1:1\"]\n  options: {{client.rack: {CANARY}}}\n  \
         sasl: {{mechanism: PLAIN, username: u, password: \"${{PASSWORD}}\"}}\nadmin: {{token_file: secret}}\n"
    );
    let bad = good.replace("secret_file: secret", &format!("secret: {CANARY}")).replace("PLAIN", "PLAN") + "name: 2\n";
    for (config, codes) in [(&good, [0, 0, 0]), (&bad, [2, 2, 2])] {
        fs::write(dir.path().join("evenkeel.yaml"), config).unwrap();
        for (args, code) in ["check", "check -o json", "check -o yaml"].into_iter().zip(codes) {
            let output = evenkeel(dir.path()).args(words(args)).env("PASSWORD", CANARY).output().unwrap();
            assert_code(&output, code, "");
            let said = [output.stdout, output.stderr].concat();
            assert!(!text(&said).contains(CANARY), "{}", text(&said));
        }
    }
}

/// The Python reconciler answers as the webhook contract wants it. Where no Python is, there is nothing to try.
#[test]
fn the_web_application_of_init_answers() {
    use std::io::{BufRead as _, BufReader, Read as _};
    let dir = folder();
    assert_code(&run(dir.path(), ["init", "--reconciler", "webhook", "p"]), 0, "python3 app.py &");
    let python =
        Command::new("python3").args(["app.py", "0"]).current_dir(dir.path().join("p")).stdout(Stdio::piped()).spawn();
    let mut app = match python {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return eprintln!("no python3 here: not tried"),
        python => python.unwrap(),
    };
    let mut lines = BufReader::new(app.stdout.take().unwrap());
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    let address = line.trim().rsplit_once("http://").unwrap().1.strip_suffix("/reconcile").unwrap();
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    for (body, status, says) in [
        (r#"{"version": 1, "id": "cust-42", "attempt": 1}"#, "HTTP/1.1 200", r#"{"message": "hello, cust-42"}"#),
        ("[", "HTTP/1.1 500", r#"{"error": {"message": "JSONDecodeError"#),
    ] {
        write!(stream, "POST /reconcile HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{body}", body.len()).unwrap();
        let mut answer = String::new();
        let mut byte = [0];
        while !answer.ends_with('}') || answer.matches('{').count() != answer.matches('}').count() {
            stream.read_exact(&mut byte).unwrap();
            answer.push(byte[0].into());
        }
        assert!(answer.starts_with(status) && answer.contains(says), "{answer}");
    }
    app.kill().unwrap();
    app.wait().unwrap();
}
