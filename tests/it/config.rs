//! The config: bad files with their exact messages, warnings, defaults, overrides, secrets.
//!
//! Each `config/bad/NAME.yaml` stands beside `NAME.out`, what is said about it; `EVENKEEL_TEST_UPDATE=1`
//! rewrites those. All of them see the same small folder and environment, made by [`World`]. A first line
//! `# with: NAME=value …` adds variables.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use evenkeel::service::config::{self, Fault, GiveUp, IdFrom, List, Loaded, Sasl, StreamSource, Target, Variables};
use evenkeel::{Limits, ReconcilerOptions, Sharding, Timing};
use proptest::prelude::*;

/// What every secret is set to: it must never be seen (B87).
const CANARY: &str = "canary-5f1e";

/// A folder with what configs name, and an environment.
struct World {
    dir: tempfile::TempDir,
}

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for (name, text, mode) in [
            ("ok.sh", "#!/bin/sh\n", 0o755),
            ("secret", CANARY, 0o600),
            ("empty", "", 0o600),
            ("lines", "canary\ncanary\n", 0o600),
            ("readable", CANARY, 0o644),
            ("writable", CANARY, 0o666),
            ("cert.pem", "-----BEGIN CERTIFICATE-----\n", 0o644),
            ("key.pem", "-----BEGIN PRIVATE KEY-----\n", 0o600),
        ] {
            let path = dir.path().join(name);
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        }
        fs::create_dir(dir.path().join("folder")).unwrap();
        Self { dir }
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("evenkeel.yaml")
    }

    fn variables(&self, more: &[(&str, &str)]) -> Variables {
        let fixed = [
            ("CANARY", OsString::from(CANARY)),
            ("EMPTY", OsString::new()),
            ("BAD", OsString::from_vec(vec![0xff])),
            ("PATH", self.dir.path().join("nothing-here").into()),
        ];
        let more = more.iter().map(|(name, value)| (*name, OsString::from(value)));
        fixed.into_iter().chain(more).collect()
    }

    fn parse(&self, text: &[u8], more: &[(&str, &str)]) -> Result<Loaded, Vec<Fault>> {
        config::parse(text, self.file(), &self.variables(more))
    }

    fn loaded(&self, text: &str, more: &[(&str, &str)]) -> Loaded {
        self.parse(text.as_bytes(), more).unwrap_or_else(|faults| panic!("{}", self.lines(&faults)))
    }

    /// The faults as people see them, without the name of the temporary folder.
    fn lines(&self, faults: &[Fault]) -> String {
        let lines = faults.iter().map(|fault| format!("{}\n", fault.line("evenkeel.yaml"))).collect::<String>();
        let dir = self.dir.path().display().to_string();
        lines.replace(&format!("{dir}/"), "").replace(&dir, ".")
    }
}

/// The variables of a first line `# with: NAME=value …`.
fn with(text: &str) -> Vec<(&str, &str)> {
    let line = text.lines().next().and_then(|line| line.strip_prefix("# with: ")).unwrap_or("");
    line.split_whitespace().filter_map(|pair| pair.split_once('=')).collect()
}

fn cases(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/config").join(folder);
    let mut files = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ext| ext == "yaml"))
        .collect::<Vec<_>>();
    files.sort();
    files
}

/// Compares with the file beside the case, or rewrites it.
fn check_golden(file: &Path, actual: &str) -> Result<(), String> {
    if std::env::var_os("EVENKEEL_TEST_UPDATE").is_some() {
        fs::write(file, actual).unwrap();
    }
    let expected = fs::read_to_string(file).unwrap_or_default();
    if actual == expected {
        return Ok(());
    }
    Err(format!("{}\n--- expected\n{expected}--- actual\n{actual}", file.display()))
}

#[test]
fn b86_i2_every_bad_config_is_refused_with_its_place_and_what_is_allowed() {
    let world = World::new();
    let cases = cases("bad");
    assert!(cases.len() > 60, "{}", cases.len());
    let mut wrong = Vec::new();
    for case in cases {
        let text = fs::read_to_string(&case).unwrap();
        let said = match world.parse(text.as_bytes(), &with(&text)) {
            Ok(_) => "accepted\n".to_owned(),
            Err(faults) => world.lines(&faults),
        };
        assert!(!said.contains("accepted"), "{} is accepted", case.display());
        assert!(!said.contains("canary"), "{} shows a secret: {said}", case.display());
        wrong.extend(check_golden(&case.with_extension("out"), &said).err());
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_warning_is_given_where_it_is_due() {
    let world = World::new();
    let mut wrong = Vec::new();
    for case in cases("warn") {
        let text = fs::read_to_string(&case).unwrap();
        let said = world.lines(&world.loaded(&text, &with(&text)).warnings);
        assert!(!said.contains("canary"), "{} shows a secret: {said}", case.display());
        wrong.extend(check_golden(&case.with_extension("out"), &said).err());
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Files whose bytes matter, which an editor would not keep.
#[test]
fn b86_files_that_are_hardly_text_are_refused_and_harmless_ones_accepted() {
    let world = World::new();
    let good = "name: dns\nreconciler: {exec: ./ok.sh}\nstreams: {a: {http: {}}}\n";
    let crlf = good.replace('\n', "\r\n");
    let utf16 = good.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<_>>();
    for (what, bytes) in [
        ("BOM", [b"\xef\xbb\xbf", good.as_bytes()].concat()),
        ("CRLF", crlf.clone().into_bytes()),
        ("both", [b"\xef\xbb\xbf", crlf.as_bytes()].concat()),
        ("no newline at the end", good.trim_end().into()),
        ("document marks", format!("---\n{good}...\n").into()),
    ] {
        let loaded = world.parse(&bytes, &[]).unwrap_or_else(|faults| panic!("{what}: {}", world.lines(&faults)));
        assert_eq!((loaded.config.name.as_str(), loaded.warnings.len()), ("dns", 0), "{what}");
    }
    for (bytes, says) in [
        ([b"\xff\xfe".as_slice(), &utf16].concat(), "evenkeel.yaml:1:1: UTF-16; save the file as UTF-8"),
        (b"name: dns\nb: caf\xe9\n".to_vec(), "evenkeel.yaml:2:7: not UTF-8 from here on; save the file as UTF-8"),
        (b"name: d\0ns\n".to_vec(), "evenkeel.yaml:1:"),
        (vec![b'['; 10_000], "evenkeel.yaml:1:256: too deeply nested"),
        ("- ".repeat(10_000).into(), "too deeply nested"),
        ("{a: ".repeat(10_000).into(), "too deeply nested"),
        ((0..10_000).map(|i| format!("{}a:\n", " ".repeat(i))).collect::<String>().into(), "too deeply nested"),
        (format!("name: {}\n", "x".repeat(100_000)).into(), "evenkeel.yaml:1:7: name: xxxx"),
    ] {
        let faults = world.parse(&bytes, &[]).unwrap_err();
        let said = world.lines(&faults);
        assert!(said.contains(says) && said.len() < 1_000, "{says}: {said}");
    }
}

#[test]
fn the_three_first_configs_work_as_they_stand_in_the_docs() {
    let world = World::new();
    let shell = world.loaded("name: zones\nreconciler: {exec: ./ok.sh}\nstreams: {all: {resync: {every: 30s, list: {exec: [./ok.sh, zones]}}}}\n", &[]);
    assert!(shell.warnings.is_empty());
    let Target::Exec(exec) = &shell.config.reconciler.target else { panic!("no command") };
    assert_eq!((exec.argv.as_slice(), exec.env.len()), (["./ok.sh".to_owned()].as_slice(), 0));
    assert_eq!(shell.config.dir, world.dir.path());
    let StreamSource::Resync(resync) = &shell.config.streams[0].source else { panic!("no resync") };
    let List::Exec(list) = &resync.list else { panic!("no command") };
    assert_eq!((list.argv.join(" ").as_str(), resync.every), ("./ok.sh zones", Duration::from_secs(30)));

    let web = world.loaded("name: billing\nreconciler: {webhook: \"http://127.0.0.1:5000/reconcile\"}\n", &[]);
    let Target::Webhook(http) = &web.config.reconciler.target else { panic!("no webhook") };
    assert_eq!(http.url, "http://127.0.0.1:5000/reconcile");
    assert_eq!(web.config.reconciler.options.concurrency, 64);
    assert_eq!(web.warnings.len(), 1, "only a trigger can make events");

    let later = "name: billing\nreconciler: {webhook: \"http://127.0.0.1:5000/reconcile\"}\nkafka: {brokers: [\"kafka:9092\"]}\nstreams: {billing: {kafka: {topics: [billing]}}}\n";
    let StreamSource::Kafka(kafka) = &world.loaded(later, &[]).config.streams[0].source else { panic!("no Kafka") };
    assert_eq!((kafka.topics.as_slice(), &kafka.id), (["billing".into()].as_slice(), &IdFrom::Key { pointer: None }));
}

#[test]
fn defaults_are_those_of_the_rules() {
    let world = World::new();
    let config = world.loaded("name: a\nreconciler: {webhook: \"http://h/\"}\n", &[]).config;
    // The library's defaults are the file's; Q7, D2, D3, D5, D6, D7, D10, D12 and C4 name them.
    assert_eq!(
        (config.sharding, config.limits, config.timing),
        (Sharding::default(), Limits::default(), Timing::default())
    );
    assert_eq!(config.reconciler.options, ReconcilerOptions::default());
    let (options, timing) = (config.reconciler.options, config.timing);
    assert_eq!((options.concurrency, options.timeout), (64, Some(Duration::from_secs(10))));
    assert_eq!((options.retry.initial, options.retry.max_retries), (Duration::from_millis(250), Some(20)));
    assert_eq!((options.cancel_grace, timing.drain), (Duration::from_secs(10), Duration::from_secs(30)));
    assert_eq!((timing.max_hold, timing.min_requeue), (Duration::from_secs(60), Duration::from_millis(250)));
    assert_eq!((timing.resolution, config.limits.admitted), (Duration::from_millis(10), 1_000_000));
    assert_eq!(config.give_up, GiveUp::Keep);
    assert_eq!(config.data_dir, Some(world.dir.path().join("evenkeel-data")));
    assert_eq!(config.admin.unwrap().listen.to_string(), "127.0.0.1:7070");
}

#[test]
fn words_switch_off() {
    let world = World::new();
    let text = "name: a\ndata_dir: none\ngive_up: forget\nadmin: {listen: none}\nreconciler:\n  webhook: \"http://h/\"\n  \
                timeout: none\n  retry: {max_retries: never}\n";
    let config = world.loaded(text, &[]).config;
    assert_eq!(
        (config.data_dir, config.reconciler.options.timeout, config.reconciler.options.retry.max_retries),
        (None, None, None)
    );
    assert!(config.admin.is_none());
}

#[test]
fn variables_expand_and_override() {
    let world = World::new();
    let text = "name: ${NAME}\nreconciler: {webhook: \"http://${HOST}/r\"}\nkafka: {brokers: [\"${HOST}:1\"]}\n\
                streams: {a: {kafka: {topics: [x], id: {from: value, pointer: /id}}}}\n";
    let variables = [
        ("NAME", "dns"),
        ("HOST", "h"),
        ("EVENKEEL__SHARDS", "12"),
        ("EVENKEEL__HASH", "murmur2"),
        ("EVENKEEL__KAFKA__BROKERS", "a:1, b:2"),
        ("EVENKEEL__STREAMS__A__KAFKA__TOPICS", "[x, y]"),
        ("EVENKEEL__STREAMS__B", "{resync: {every: 5m, list: {exec: './ok.sh'}}}"),
        ("EVENKEEL__RECONCILER__RETRY__JITTER", "0%"),
        ("EVENKEEL__KAFKA__SASL", "{mechanism: PLAIN, username: u, password: '${NAME}'}"),
        ("EVENKEEL__KAFKA__OPTIONS__CLIENT_RACK", "eu-1a"),
    ];
    let loaded = world.loaded(text, &variables);
    let config = loaded.config;
    assert_eq!((config.name.as_str(), config.sharding.shards, config.sharding.hash.name()), ("dns", 12, "murmur2"));
    let kafka = config.kafka.unwrap();
    assert_eq!(kafka.brokers, ["a:1", "b:2"]);
    assert_eq!(kafka.options["client.rack"].expose(), "eu-1a");
    assert_eq!(config.streams.iter().map(|s| s.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    let StreamSource::Kafka(stream) = &config.streams[0].source else { panic!("no Kafka") };
    assert_eq!(
        (stream.topics.as_slice(), &stream.id),
        (["x".to_owned(), "y".to_owned()].as_slice(), &IdFrom::Value { pointer: "/id".into() })
    );
    assert_eq!(config.reconciler.options.retry.jitter.to_bits(), 0.0_f64.to_bits());
    let Some(Sasl::Password { password, .. }) = &kafka.sasl else { panic!("no password") };
    assert_eq!(password.expose(), "${NAME}", "an overriding value is taken as it is");
}

#[test]
fn anchors_and_merge_keys_work() {
    let world = World::new();
    let text = "name: a\nreconciler: {exec: ./ok.sh}\nstreams:\n  a: {resync: &r {every: 1m, list: {exec: ./ok.sh}}}\n  \
                b: {resync: *r}\n  c: {resync: {<<: *r, every: 5m}}\n";
    let every = world.loaded(text, &[]).config.streams.into_iter().map(|stream| match stream.source {
        StreamSource::Resync(resync) => resync.every.as_secs(),
        other => panic!("{other:?}"),
    });
    assert_eq!(every.collect::<Vec<_>>(), [60, 60, 300]);
}

/// B87: a canary in every secret, in every way in which one can be given, and every way to print the config.
#[test]
fn b87_no_secret_is_ever_printed() {
    let world = World::new();
    let secrets = "name: dns\nreconciler: {webhook: {url: \"https://h/r\", secret_file: secret}}\nadmin: {token_file: secret}\n\
                   kafka:\n  brokers: [a:1]\n  options: {ssl.truststore.pem: canary-5f1e}\n  \
                   tls: {certificate_file: cert.pem, key_file: key.pem, key_password: canary-5f1e}\n  \
                   sasl: {mechanism: PLAIN, username: u, password: \"${CANARY}\"}\n";
    let loaded = world.loaded(secrets, &[("EVENKEEL__KAFKA__TLS__KEY_PASSWORD", CANARY)]);
    let Some(Sasl::Password { password, .. }) = &loaded.config.kafka.as_ref().unwrap().sasl else {
        panic!("no password")
    };
    assert_eq!(password.expose(), CANARY);
    let printed = format!("{loaded:?} {loaded:#?} {:?}", world.variables(&[]));
    assert!(!printed.contains(CANARY), "{printed}");
    assert!(printed.contains("***"));
    // Every prefix of the file is a broken file, and none of its faults may quote a secret.
    for end in 0..secrets.len() {
        if let Err(faults) = world.parse(&secrets.as_bytes()[..end], &[]) {
            let said = format!("{} {faults:?}", world.lines(&faults));
            assert!(!said.contains("canary-"), "cut at {end}: {said}");
        }
    }
}

#[test]
fn the_example_works_and_holds_every_key() {
    let world = World::new();
    let example = config::example();
    let loaded = world.loaded(&example, &[]);
    assert!(loaded.warnings.is_empty(), "{}", world.lines(&loaded.warnings));
    let reference = config::reference();
    let (keys, _) = reference.split_once("Every key can be overridden").unwrap();
    let keys = keys.lines().filter(|line| !line.is_empty() && !line.starts_with(' ')).collect::<Vec<_>>();
    assert!(keys.len() > 60, "{keys:?}");
    for path in keys {
        let key = path.rsplit('.').next().unwrap_or(path);
        let is_there = example.lines().any(|l| l.trim_start().trim_start_matches('#').starts_with(&format!("{key}:")));
        assert!(is_there || key == "kinds", "{path} is not in the example");
    }
}

/// The tables between the marks of `docs/config.md` are those of the program; `EVENKEEL_TEST_UPDATE=1` rewrites them.
#[test]
fn the_docs_are_what_the_program_says() {
    const MARKS: [&str; 2] = ["<!-- keys: begin -->\n", "<!-- keys: end -->"];
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/config.md");
    let docs = fs::read_to_string(&file).unwrap();
    let (head, rest) = docs.split_once(MARKS[0]).unwrap();
    let (_, tail) = rest.split_once(MARKS[1]).unwrap();
    let expected = format!("{head}{}\n{}{}{tail}", MARKS[0], config::markdown(), MARKS[1]);
    check_golden(&file, &expected).expect("docs/config.md is old; run this test with EVENKEEL_TEST_UPDATE=1");
}

fn yaml_ish() -> impl Strategy<Value = String> {
    let word = prop::sample::select(vec![
        "name",
        "shards",
        "reconciler",
        "webhook",
        "exec",
        "streams",
        "kafka",
        "resync",
        "list",
        "topics",
        "brokers",
        "none",
        "never",
        "${X}",
        "${",
        "$${",
        "*a",
        "&a",
        "<<",
        "10s",
        "20%",
        "-",
        "?",
        ":",
        "#",
        "[",
        "]",
        "{",
        "}",
        ",",
        "\"",
        "'",
        "|",
        ">",
        "!",
        "\t",
        "\n",
        "\n  ",
        "\n    ",
        ": ",
        "- ",
        "0",
        "1e999",
        "\u{feff}",
        "\u{202e}",
        "é",
        "\0",
        "---\n",
        "%",
    ]);
    prop::collection::vec(word, 0..40).prop_map(|words| words.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Whatever the file and the environment hold, the answer is a config or faults, and never a panic.
    #[test]
    fn nothing_makes_the_config_panic(file in yaml_ish(), value in yaml_ish(), any in any::<Vec<u8>>()) {
        let world = World::new();
        let overrides = [("X", value.as_str()), ("EVENKEEL__NAME", &value), ("EVENKEEL__STREAMS__A", &value)];
        for bytes in [file.as_bytes(), any.as_slice(), format!("name: a\nreconciler: {{webhook: x}}\n{file}").as_bytes()] {
            if let Err(faults) = world.parse(bytes, &overrides) {
                prop_assert!(!faults.is_empty());
                let raw = world.lines(&faults).contains(['\0', '\t', '\u{202e}']);
                prop_assert!(!raw, "a message holds a raw control character");
            }
        }
    }

    /// A good file with some bytes changed.
    #[test]
    fn no_change_of_a_good_config_makes_it_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)
    ) {
        let world = World::new();
        let mut bytes = config::example().into_bytes();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Err(faults) = world.parse(&bytes, &[]) {
            prop_assert!(!faults.is_empty());
        }
    }
}
