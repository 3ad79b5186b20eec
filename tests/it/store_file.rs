//! The file store and its folder: who may use it, what is refused, damage, a full disk (B66, L6, L7, fault rows 31 and
//! 32).

use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use evenkeel::id::ShardId;
use evenkeel::local::FileStore;
use evenkeel::{OwedRecord, RecordChange, RecordStore, StoreError, Term};

use super::store_conformance::{attempt, cluster, load_all, put, record};
use super::support::{Chance, again, child, this_binary};

const SHARD: ShardId = ShardId(7);

async fn term(store: &FileStore) -> Term {
    Term { shard: SHARD, incarnation: 1, revision: store.next_revision(SHARD).await.unwrap() }
}

async fn refusal(folder: &Path) -> String {
    match FileStore::open(folder).await {
        Ok(_) => panic!("{} was opened", folder.display()),
        Err(StoreError::Unusable(message)) => message,
        Err(error) => panic!("{error:?}"),
    }
}

fn file(folder: &Path) -> PathBuf {
    folder.join("store.redb")
}

#[tokio::test]
async fn only_its_user_can_read_it() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("deep/data");
    drop(FileStore::open(&data).await.unwrap());
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&data), mode(&file(&data)), mode(&data.join("lock"))), (0o700, 0o600, 0o600));
    let names: Vec<_> = fs::read_dir(&data).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 2, "nothing else is left there: {names:?}");
}

#[tokio::test]
async fn l6_a_second_store_on_the_folder_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let store = FileStore::open(folder.path()).await.unwrap();
    let message = refusal(folder.path()).await;
    assert!(message.contains("is in use by this process already: stop that one, or give"), "{message}");
    fs::remove_file(folder.path().join("lock")).unwrap();
    let message = refusal(folder.path()).await;
    assert!(message.contains("is open in another program: end that one"), "{message}");
    store.commit(term(&store).await, &[put("a")]).await.unwrap();
    drop(store);
    FileStore::open(folder.path()).await.unwrap();
}

#[tokio::test]
async fn l6_a_second_process_is_refused_until_the_first_has_ended() {
    if let Some(folder) = child() {
        let _store = FileStore::open(&folder).await.unwrap();
        println!("opened");
        std::io::stdin().read_line(&mut String::new()).unwrap();
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let test = "store_file::l6_a_second_process_is_refused_until_the_first_has_ended";
    let mut command = again(Command::new(this_binary()), test, &folder.path().display().to_string());
    let mut first = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(first.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().ends_with("opened")), "the first process opens it");

    let message = refusal(folder.path()).await;
    assert!(message.contains(&format!("is in use by process {}: stop that one", first.id())), "{message}");
    first.kill().unwrap();
    first.wait().unwrap();
    FileStore::open(folder.path()).await.unwrap();
}

#[tokio::test]
async fn a_folder_that_cannot_be_used_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plain");
    fs::write(&path, "not a folder").unwrap();
    let message = refusal(&path).await;
    assert!(message.contains("cannot make the data_dir") && message.contains("name a folder"), "{message}");
    let message = refusal(&path.join("below")).await;
    assert!(message.contains("cannot make the data_dir"), "{message}");
    fs::create_dir_all(folder.path().join("a/store.redb")).unwrap();
    let message = refusal(&folder.path().join("a")).await;
    assert!(message.contains("cannot open the store") && message.contains("must be readable"), "{message}");
}

#[tokio::test]
async fn b66_a_file_that_is_no_store_is_refused_with_instructions() {
    let zeros = vec![0; 80_000];
    let bad: [&[u8]; 6] = [b"", b"\n", &zeros, &zeros[..100], b"SQLite format 3\0", &[0xff; 5_000]];
    for bytes in bad {
        let folder = tempfile::tempdir().unwrap();
        fs::write(file(folder.path()), bytes).unwrap();
        let message = refusal(folder.path()).await;
        assert!(
            message.contains("is damaged (") && message.contains("backup") && message.contains("move it away"),
            "{} bytes: {message}",
            bytes.len()
        );
        assert_eq!(fs::read(file(folder.path())).unwrap(), bytes, "it is left as it was");
    }
}

#[tokio::test]
async fn b66_a_start_that_was_interrupted_is_none() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("store.redb.new"), "half").unwrap();
    let store = FileStore::open(folder.path()).await.unwrap();
    store.commit(term(&store).await, &[put("a")]).await.unwrap();
    assert!(!folder.path().join("store.redb.new").exists());
}

/// Writes a fact into the file's `meta` table, as another version of evenkeel would.
fn set_meta(folder: &Path, key: &str, json: Option<&str>) {
    let meta: redb::TableDefinition<'_, &str, &[u8]> = redb::TableDefinition::new("meta");
    let database = redb::Database::open(file(folder)).unwrap();
    let transaction = database.begin_write().unwrap();
    {
        let mut table = transaction.open_table(meta).unwrap();
        match json {
            Some(json) => drop(table.insert(key, json.as_bytes()).unwrap()),
            None => drop(table.remove(key).unwrap()),
        };
    }
    transaction.commit().unwrap();
}

#[tokio::test]
async fn l7_a_file_of_a_newer_version_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    drop(FileStore::open(folder.path()).await.unwrap());
    set_meta(folder.path(), "format", Some("2"));
    let message = refusal(folder.path()).await;
    assert!(
        message.contains("its format is 2, this version knows up to 1")
            && message.contains("run the version that made"),
        "{message}"
    );
    set_meta(folder.path(), "format", Some("1"));
    FileStore::open(folder.path()).await.unwrap();
    for (key, json) in [("format", Some("{}")), ("format", None), ("group", Some("-1")), ("group", None)] {
        set_meta(folder.path(), "format", Some("1"));
        set_meta(folder.path(), key, json);
        let message = refusal(folder.path()).await;
        assert!(message.contains("is damaged (") && message.contains(key), "{key} {json:?}: {message}");
    }
}

#[tokio::test]
async fn d12_a_record_that_cannot_be_understood_names_its_id() {
    let folder = tempfile::tempdir().unwrap();
    let store = FileStore::open(folder.path()).await.unwrap();
    store.check_cluster(&cluster()).await.unwrap();
    store.commit(term(&store).await, &[put("a"), put("b"), put("c")]).await.unwrap();
    drop(store);
    for (json, reason) in [
        (r#"{"v":2,"id":"b"}"#.to_owned(), "it has format 2"),
        (r#"{"v":1,"id":"b"}"#.to_owned(), "missing field"),
        (String::from_utf8(record("x").to_json()).unwrap(), "the record is one of \"x\""),
    ] {
        let records: redb::TableDefinition<'_, (u16, &[u8]), &[u8]> = redb::TableDefinition::new("records");
        let database = redb::Database::open(file(folder.path())).unwrap();
        let transaction = database.begin_write().unwrap();
        transaction.open_table(records).unwrap().insert((SHARD.0, b"b".as_slice()), json.as_bytes()).unwrap();
        transaction.commit().unwrap();
        drop(database);

        let store = FileStore::open(folder.path()).await.unwrap();
        let error = store.load(SHARD, None, 10).await.unwrap_err();
        assert!(matches!(&error, StoreError::Corrupt { id, .. } if id == "b"), "{error:?}");
        assert!(error.to_string().contains(reason), "{error}");
        assert_eq!(store.load(SHARD, None, 1).await.unwrap(), [record("a")], "the others can be read");
    }
}

/// Every commit writes the same attempt to all of these, so that a mixture of two commits shows.
const TOGETHER: usize = 20;

fn together(n: u32) -> Vec<RecordChange> {
    let error = Some("x".repeat(500));
    let one = |i| RecordChange::Put(OwedRecord { error: error.clone(), ..attempt(&format!("record-{i:02}"), n) });
    (0..TOGETHER).map(one).collect()
}

/// Which commit stands in a store, or that it was refused loudly; fails on a mixture.
async fn commit_in(folder: &Path, what: &str) -> Option<u32> {
    let store = match FileStore::open(folder).await {
        Err(StoreError::Unusable(message)) if message.contains("is damaged (") => return None,
        Err(error) => panic!("{what}: {error}"),
        Ok(store) => store,
    };
    let all = load_all(&store, SHARD).await;
    let n = all.first().map_or(0, |r| r.attempt);
    let whole = together(n).into_iter().filter_map(|change| match change {
        RecordChange::Put(record) if n > 0 => Some(record),
        _ => None,
    });
    assert_eq!(all, whole.collect::<Vec<_>>(), "{what}: a commit is whole");
    // What was opened must also go on.
    store.commit(term(&store).await, &together(n + 1)).await.unwrap_or_else(|e| panic!("{what}: {e}"));
    Some(n)
}

#[tokio::test]
async fn b66_a_damaged_file_opens_to_a_commit_or_is_refused() {
    const COMMITS: u32 = 8;
    let mut chance = Chance::new();
    let folder = tempfile::tempdir().unwrap();
    let store = FileStore::open(folder.path()).await.unwrap();
    let first = term(&store).await;
    for n in 1..=COMMITS {
        store.commit(first, &together(n)).await.unwrap();
    }
    let as_if_killed = fs::read(file(folder.path())).unwrap();
    drop(store);
    let closed = fs::read(file(folder.path())).unwrap();
    let (mut refused, mut opened) = (0, 0);
    for (state, good) in [("killed", &as_if_killed), ("closed", &closed)] {
        for round in 0..120 {
            let copy = tempfile::tempdir().unwrap();
            fs::write(file(copy.path()), good).unwrap();
            let bad = OpenOptions::new().write(true).open(file(copy.path())).unwrap();
            let length = u64::try_from(good.len()).unwrap();
            // Half of the damage goes to the head, which says where everything is.
            let at = if chance.below(2) == 0 { chance.below(320) } else { chance.below(length) };
            let what = match round % 3 {
                0 => {
                    bad.set_len(at).unwrap();
                    format!("{state}, cut at {at} of {length}")
                }
                1 => {
                    let bit = 1 << chance.below(8);
                    bad.write_all_at(&[good[usize::try_from(at).unwrap()] ^ bit], at).unwrap();
                    format!("{state}, byte {at} of {length} xor {bit}")
                }
                _ => {
                    let junk: Vec<u8> = (0..64).map(|_| u8::try_from(chance.below(256)).unwrap()).collect();
                    bad.write_all_at(&junk, at).unwrap();
                    format!("{state}, 64 bytes of junk at {at} of {length}")
                }
            };
            match commit_in(copy.path(), &what).await {
                Some(n) => {
                    assert!(n >= COMMITS - 1, "{what}: commit {n} is older than the last but one");
                    opened += 1;
                }
                None => refused += 1,
            }
        }
    }
    println!("{opened} opened, {refused} refused");
    assert!(opened > 0 && refused > 0);
}

/// Says what cannot be tried here, and fails unless that was allowed.
fn cannot_try(what: &str) {
    assert!(
        std::env::var("EVENKEEL_TEST_SKIP_ROOT").as_deref() == Ok("1"),
        "{what}; run as root, or set EVENKEEL_TEST_SKIP_ROOT=1 to go without this test"
    );
    eprintln!("not tried: {what}");
}

#[test]
fn d12_a_full_disk_refuses_and_recovers() {
    if let Some(folder) = child() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        return runtime.block_on(fill_the_disk(Path::new(&folder)));
    }
    let folder = tempfile::tempdir().unwrap();
    let test = "store_file::d12_a_full_disk_refuses_and_recovers";
    // A mount name space of its own, so that the small disk goes when the child does.
    for flags in ["-m", "-Urm"] {
        let script = r#"mount -t tmpfs -o size=8m,mode=700 evenkeel "$0" && exec "$@""#;
        let mut command = Command::new("unshare");
        command.args([flags, "sh", "-c", "mount -t tmpfs -o size=8m evenkeel \"$0\""]).arg(folder.path());
        if !command.output().is_ok_and(|output| output.status.success()) {
            continue;
        }
        let mut command = Command::new("unshare");
        command.args([flags, "sh", "-c", script]).arg(folder.path()).arg(this_binary());
        let output = again(command, test, &folder.path().display().to_string()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        println!("{text}");
        assert!(output.status.success() && text.contains("full at commit"), "{}", output.status);
        return;
    }
    cannot_try("a disk of 8 MiB cannot be mounted (unshare -m, mount -t tmpfs)");
}

async fn fill_the_disk(disk: &Path) {
    let folder = disk.join("data");
    let store = FileStore::open(&folder).await.unwrap();
    let leader = term(&store).await;
    store.commit(leader, &together(1)).await.unwrap();
    let ballast = disk.join("ballast");
    // First the store itself grows until the disk is full, then the disk fills up around it.
    fill(&ballast, 3 << 20);
    for round in 0..3 {
        // Until it is full: what was answered stands, what was refused left no trace.
        let big = |n: usize| {
            let error = Some("y".repeat(2_000));
            RecordChange::Put(OwedRecord { error, ..record(&format!("big-{round}-{n:04}")) })
        };
        let mut written = 0;
        let refused = loop {
            let changes: Vec<_> = (written..written + 10).map(big).collect();
            match store.commit(leader, &changes).await {
                Ok(()) => written += 10,
                Err(error) => break error,
            }
        };
        eprintln!("full at commit {} of round {round}: {refused}", written / 10);
        assert!(matches!(refused, StoreError::Refused(_)), "{refused:?}");
        let message = refused.to_string();
        assert!(message.contains("store.redb: No space left on device") && message.contains("make room"), "{message}");
        let again: Vec<_> = (0..50).map(|n| big(written + n)).collect();
        assert!(matches!(store.commit(leader, &again).await, Err(StoreError::Refused(_))), "it stays full");
        let all = load_all(&store, SHARD).await;
        assert_eq!(all.len(), written + TOGETHER, "it can be read, and no commit stands by halves");
        assert!(all.iter().filter(|r| r.id.starts_with("record-")).all(|r| r.attempt == round + 1));

        // Room appears: it goes on by itself.
        fs::remove_file(&ballast).unwrap();
        store.commit(leader, &together(round + 2)).await.unwrap();
        let deletes: Vec<_> = all.iter().filter(|r| r.id.starts_with("big-")).map(|r| r.id.clone()).collect();
        for some in deletes.chunks(50) {
            let changes: Vec<_> = some.iter().cloned().map(RecordChange::Delete).collect();
            store.commit(leader, &changes).await.unwrap();
        }
        assert_eq!(load_all(&store, SHARD).await.len(), TOGETHER);
        fill(&ballast, u64::MAX);
    }
    drop(store);
    fs::remove_file(&ballast).unwrap();
    assert_eq!(commit_in(&folder, "after a full disk").await, Some(4));
}

/// Takes so many bytes of the disk, or all that are left.
fn fill(path: &Path, bytes: u64) {
    let mut file = OpenOptions::new().create(true).append(true).open(path).unwrap();
    let page = [0xaa; 4_096];
    for _ in 0..bytes / 4_096 {
        if file.write_all(&page).is_err() {
            break;
        }
    }
}
