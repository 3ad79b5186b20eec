//! Commands that keep the contract: what they are given, and what their ends mean (B70, the exec row of bad input).

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use super::support::{PATIENCE, TRANSIENT, capture_logs, in_own_process, reconcile, run_of, write_program};
use crate::contract::{Action, Failure, FailureKind, Reconciler, Requeue};
use crate::hooks::{ANSWER_BYTES_MAX, Exec, ExecSettings, HookError, Request};

fn exec(argv: &[&str], folder: &Path) -> Exec {
    Exec::new(ExecSettings::new(argv.iter().copied(), folder)).unwrap()
}

/// What a shell script ends with, and where it ran.
async fn script(text: &str) -> (Result<Action, Failure>, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let outcome = reconcile(&exec(&["sh", "-c", text], dir.path())).await;
    (outcome, dir)
}

fn environment_in(file: &Path) -> BTreeMap<String, String> {
    let text = String::from_utf8(std::fs::read(file).unwrap()).unwrap();
    let entries = text.split_terminator('\0').map(|entry| entry.split_once('=').unwrap());
    entries.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

#[test]
fn a_command_is_given_the_contract_and_nothing_else() {
    let variables =
        [("EVK_ALLOWED", "yes"), ("EVK_OTHER", "no"), ("LANG", "C"), ("TZ", "UTC"), ("EVENKEEL_ID", "wrong")];
    if !in_own_process("exec::a_command_is_given_the_contract_and_nothing_else", &variables) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    // No shell between: it would add variables of its own.
    let mut settings = ExecSettings::new(["cp", "/proc/self/environ", "env"], dir.path());
    settings.env = vec!["EVK_ALLOWED".to_owned(), "EVK_NOT_SET".to_owned()];
    let exec = Exec::new(settings).unwrap();
    let run = run_of("prod/Database/orders", Some(PATIENCE));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    assert_eq!(runtime.block_on(exec.reconcile(&run)).unwrap(), Action::done());
    let mut found = environment_in(&dir.path().join("env"));
    let (answer, left) = (found.remove("EVENKEEL_ANSWER").unwrap(), found.remove("EVENKEEL_TIMEOUT_SECONDS").unwrap());
    assert!(Path::new(&answer).is_absolute() && !Path::new(&answer).parent().unwrap().exists());
    assert!(left.parse::<f64>().unwrap() > 0.0, "{left}");
    let home = std::env::var("HOME").ok();
    let wanted = [
        ("EVENKEEL_ID", "prod/Database/orders"),
        ("EVENKEEL_KIND", "zones"),
        ("EVENKEEL_NAME", "prod/Database/orders"),
        ("EVENKEEL_NAMESPACE", ""),
        ("EVENKEEL_OPERATION", "reconcile"),
        ("EVENKEEL_ATTEMPT", "3"),
        ("EVENKEEL_FENCING_TOKEN", "0001-0000000000000004711-000000000042"),
        ("EVENKEEL_RUN", &run.name()),
        ("EVENKEEL_KEY", "000000000000feed"),
        ("TRACEPARENT", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
        ("EVK_ALLOWED", "yes"),
        ("LANG", "C"),
        ("TZ", "UTC"),
        ("PATH", &std::env::var("PATH").unwrap()),
    ];
    let mut wanted: BTreeMap<_, _> = wanted.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    wanted.extend(home.map(|home| ("HOME".to_owned(), home)));
    assert_eq!(found, wanted);
}

// B43 as well: nothing of an attempt is kept for the next one, each is described anew.
#[tokio::test]
async fn b72_the_key_is_given_by_environment_and_is_the_same_for_all_attempts() {
    let dir = tempfile::tempdir().unwrap();
    let exec = exec(&["sh", "-c", "echo $EVENKEEL_KEY $EVENKEEL_ATTEMPT >> keys; exit 1"], dir.path());
    let mut run = run_of("a", Some(PATIENCE));
    for attempt in [1, 2] {
        run.parts.attempt = attempt;
        run.parts.number += 1;
        exec.reconcile(&run).await.unwrap_err();
    }
    let keys = std::fs::read_to_string(dir.path().join("keys")).unwrap();
    assert_eq!(keys, "000000000000feed 1\n000000000000feed 2\n");
}

#[tokio::test]
async fn the_request_comes_on_stdin_and_need_not_be_read() {
    let (outcome, dir) = script("cat > request; pwd -P > where").await;
    assert_eq!(outcome.unwrap(), Action::done());
    let text = std::fs::read_to_string(dir.path().join("request")).unwrap();
    let request: Request = serde_json::from_str(&text).unwrap();
    assert_eq!((request.id.as_str(), request.causes.len()), ("prod/Database/orders", 2));
    let here = std::fs::read_to_string(dir.path().join("where")).unwrap();
    assert_eq!(Path::new(here.trim_end()), dir.path().canonicalize().unwrap());

    // More than a pipe holds, and nobody reads it; or somebody reads it after all else is closed.
    let mut run = run_of("a", Some(PATIENCE));
    run.parts.last_error = Some("x".repeat(1_000_000).into());
    for script in ["true", "exec <&-; true", "exec >&- 2>&-; cat > all"] {
        assert_eq!(exec(&["sh", "-c", script], dir.path()).reconcile(&run).await.unwrap(), Action::done(), "{script}");
    }
    assert!(std::fs::metadata(dir.path().join("all")).unwrap().len() > 1_000_000);
}

#[tokio::test]
async fn b70_every_exit_has_its_meaning() {
    for (text, wanted, says) in [
        ("exit 1", TRANSIENT, "sh ended with exit status 1"),
        ("echo no such zone >&2; echo giving up >&2; exit 2", TRANSIENT, "exit status 2: no such zone | giving up"),
        ("echo bad data >&2; exit 65", FailureKind::Terminal, "sh ended with exit status 65: bad data"),
        ("exit 78", FailureKind::Terminal, "sh ended with exit status 78"),
        ("exit 255", TRANSIENT, "exit status 255"),
        ("no-such-program", TRANSIENT, "exit status 127"),
        ("kill -KILL $$", TRANSIENT, "sh was killed by signal 9"),
        ("kill -SEGV $$", TRANSIENT, "sh was killed by signal 11"),
        ("kill -TERM $$", TRANSIENT, "sh was killed by signal 15"),
        // A good answer does not make a bad exit good, nor the other way round.
        ("echo '{\"message\": \"fine\"}' > $EVENKEEL_ANSWER; exit 1", TRANSIENT, "sh ended with exit status 1"),
        (
            "echo garbage > $EVENKEEL_ANSWER",
            TRANSIENT,
            "sh ended well, but its answer cannot be used: the answer does not",
        ),
        ("echo '{\"requeue_after\": -5}' > $EVENKEEL_ANSWER", TRANSIENT, "requeue_after: invalid type"),
        (
            "printf '{\"message\": \"trunc' > $EVENKEEL_ANSWER",
            TRANSIENT,
            "does not keep the contract: message: EOF while parsing",
        ),
        ("ln -s /etc/passwd $EVENKEEL_ANSWER", TRANSIENT, "its answer cannot be used: it cannot be opened"),
        ("mkdir $EVENKEEL_ANSWER", TRANSIENT, "its answer cannot be used: it is not a file"),
        ("head -c 2000000 /dev/zero > $EVENKEEL_ANSWER", TRANSIENT, "it is larger than 1048576 bytes"),
        ("printf '\\033[31mred\\033[0m\\r\\n\\000\\007x' >&2; exit 1", TRANSIENT, "exit status 1: red | x"),
        ("head -c 3000000 /dev/urandom >&2; printf '\\n\\nlast\\n' >&2; exit 1", TRANSIENT, "last"),
    ] {
        let failure = script(text).await.0.expect_err(text);
        assert_eq!(failure.kind(), wanted, "{text}");
        assert!(failure.message().contains(says), "{text}: {failure}");
        assert!(failure.message().len() < 4096 && !failure.message().chars().any(char::is_control), "{failure:?}");
    }
    const { assert!(ANSWER_BYTES_MAX == 1_048_576) };
}

#[tokio::test]
async fn b70_exit_0_is_done_and_an_answer_says_more() {
    for text in
        ["true", ": > $EVENKEEL_ANSWER", "echo '{}' > $EVENKEEL_ANSWER", "head -c 2000000 /dev/urandom", "echo x >&2"]
    {
        assert_eq!(script(text).await.0.unwrap(), Action::done(), "{text}");
    }
    let answer = r#"printf %s '{"requeue_after": "90s", "message": "\u001b[1mtwo\nlines"}' > $EVENKEEL_ANSWER"#;
    let action = script(answer).await.0.unwrap();
    assert_eq!(action.requeue(), Some(Requeue::After(Duration::from_secs(90))));
    assert_eq!(action.message(), Some("two lines"));
    let answer = r#"echo '{"error": {"message": "later", "retry_after": "5s"}}' > $EVENKEEL_ANSWER"#;
    let failure = script(answer).await.0.unwrap_err();
    assert_eq!(failure.kind(), FailureKind::Transient(Some(Duration::from_secs(5))));
    assert_eq!(failure.message(), "later");
}

#[tokio::test]
async fn a_command_that_cannot_be_started_says_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| write_program(&dir.path().join(name), text);
    file("no-interpreter", "#!/no/such/interpreter\n");
    file("no-shebang", "echo hello\n");
    file("binary", "\u{7f}ELF no program\n");
    std::fs::write(dir.path().join("not-executable"), "#!/bin/sh\n").unwrap();
    std::fs::create_dir(dir.path().join("folder")).unwrap();
    for (program, says) in [
        ("./missing.sh", "missing.sh does not exist; correct the config"),
        ("/no/such/program", "/no/such/program does not exist"),
        ("no-such-program-anywhere", "it is not in PATH"),
        ("./not-executable", "it is not executable for this user; chmod +x"),
        ("./folder", "it is a folder"),
        ("./no-interpreter", "the interpreter that its first line names does not exist"),
        ("./no-shebang", "a script needs a first line such as #!/bin/sh"),
        ("./binary", "a script needs a first line such as #!/bin/sh"),
    ] {
        let failure = reconcile(&exec(&[program, "canary"], dir.path())).await.expect_err(program);
        assert_eq!(failure.kind(), TRANSIENT, "{program}");
        assert!(failure.message().starts_with(&format!("cannot run {program}: ")), "{failure}");
        assert!(failure.message().contains(says), "{failure}");
        assert!(!failure.message().contains("canary"), "{failure}");
    }
    let gone = dir.path().join("gone");
    let failure = reconcile(&exec(&["true"], &gone)).await.unwrap_err();
    assert!(failure.message().contains("gone does not exist"), "{failure}");
}

#[test]
fn settings_that_cannot_be_used_are_refused() {
    let with_env = |name: &str| {
        let mut settings = ExecSettings::new(["true"], "/");
        settings.env = vec![name.to_owned()];
        settings
    };
    for (settings, says) in [
        (ExecSettings::new([""; 0], "/"), "the command is not usable: it is empty"),
        (ExecSettings::new([""], "/"), "it is empty"),
        (ExecSettings::new(["true", "a\0b"], "/"), "it holds a zero byte"),
        (with_env("PGPASSWORD=canary"), "without = and a value"),
        (with_env(""), "write the name of a variable"),
        (with_env("EVENKEEL_KEY"), "variables that begin with EVENKEEL_"),
    ] {
        let error: HookError = Exec::new(settings).err().expect(says);
        assert!(error.to_string().contains(says), "{error}");
    }
    let shown = format!("{:?}", ExecSettings::new(["curl", "--user", "canary"], "/"));
    assert!(shown.contains("curl") && !shown.contains("canary"), "{shown}");
}

#[tokio::test]
async fn output_becomes_log_lines_of_the_run() {
    let (logs, _guard) = capture_logs();
    let (outcome, _dir) = script("echo one; printf 'two \\033[31mred\\033[0m\\n\\nlast' ; echo careful >&2").await;
    assert_eq!(outcome.unwrap(), Action::done());
    let text = logs.text();
    for wanted in ["INFO evenkeel::hook: one", "INFO evenkeel::hook: two red", "INFO evenkeel::hook: last"] {
        assert!(text.contains(wanted), "{text}");
    }
    assert!(text.contains("DEBUG evenkeel::hook: careful id=\"prod/Database/orders\" stream=\"stderr\""), "{text}");
    assert!(!text.contains('\u{1b}'), "{text}");
}

#[tokio::test]
async fn a_flood_is_drained_and_not_logged_without_end() {
    let (logs, _guard) = capture_logs();
    let (outcome, _dir) =
        script("yes | head -c 20000000; yes err | head -c 20000000 >&2; echo '{}' > $EVENKEEL_ANSWER").await;
    assert_eq!(outcome.unwrap(), Action::done());
    let text = logs.text();
    for stream in ["stdout", "stderr"] {
        let last = text.lines().rfind(|line| line.ends_with(&format!("stream=\"{stream}\""))).unwrap_or_default();
        assert!(last.contains("more output is read and dropped"), "{stream}: {last} of {}", text.len());
    }
    assert!(text.len() < 10_000_000, "{}", text.len());
}

#[test]
fn a_hardened_process_gives_its_commands_no_core_files_no_open_files_and_a_strict_umask() {
    let name = "exec::a_hardened_process_gives_its_commands_no_core_files_no_open_files_and_a_strict_umask";
    if !in_own_process(name, &[]) {
        return;
    }
    crate::hooks::harden_process().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let open = tempfile::NamedTempFile::new().unwrap();
    let text = "(umask; ulimit -Hc; cut -d' ' -f5 /proc/self/stat; echo $$; ls -l /proc/self/fd) > out";
    let (outcome, dir) = runtime.block_on(script(text));
    assert_eq!(outcome.unwrap(), Action::done());
    let text = std::fs::read_to_string(dir.path().join("out")).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines[..2], ["0077", "0"], "{text}");
    assert_eq!(lines[2], lines[3], "the command leads a process group of its own");
    // What this process opened itself: a file, the runtime's handles, the other ends of the pipes.
    let name = open.path().file_name().unwrap().to_str().unwrap();
    for leaked in [name, "anon_inode", "socket"] {
        assert!(!text.contains(leaked), "{text}");
    }
    assert!(lines[4..].iter().any(|line| line.contains(" 2 -> pipe:")), "{text}");
}
