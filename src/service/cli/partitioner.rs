//! `check --partitioner`: which hash a topic's producers use, and whether the config says so.
//!
//! Must never guess: where no hash fits, it says so. Tested below and by the live tests.

use std::io::Write as _;
use std::process::ExitCode;

use super::args::{GlobalArgs, Output};
use super::check;
use super::exit::UsageError;
use super::tree::ConfigArgs;
use crate::service::wiring::{self, HashMatches};

/// A hash that explains this share of the messages, in percent, is taken to be the producers'.
const SURE_PERCENT: u64 = 95;

/// Reads the topic and says what it found; fails where the config names another hash, or none fits.
pub(super) fn partitioner(args: &ConfigArgs, topic: &str, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
    let loaded = check::load(args)?;
    if loaded.config.kafka.is_none() {
        return Err(UsageError("the config has no kafka, and --partitioner reads a topic of Kafka".to_owned()).into());
    }
    let found = wiring::partitioner(&loaded.config, topic)?;
    let verdict = verdict(&found);
    let text = match global.output {
        Output::Table => format!("{}{}\n", table(&found), verdict.text),
        Output::Yaml => serde_saphyr::to_string(&found).map_err(|e| UsageError(e.to_string()))?,
        Output::Json => serde_json::to_string_pretty(&found)? + "\n",
    };
    anstream::stdout().write_all(text.as_bytes())?;
    Ok(if verdict.good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn table(found: &HashMatches) -> String {
    let mut text = format!("{:<16}{:>8}  of {} messages with a key\n", "HASH", "MATCH", found.with_key);
    for entry in &found.hashes {
        let hundredths = (entry.matches * 10_000).checked_div(found.with_key).unwrap_or(0);
        text += &format!("{:<16}{:>5}.{:02}%\n", entry.hash, hundredths / 100, hundredths % 100);
    }
    text
}

struct Verdict {
    good: bool,
    text: String,
}

fn verdict(found: &HashMatches) -> Verdict {
    let HashMatches { topic, partitions, configured, with_key, .. } = found;
    let bad = |text| Verdict { good: false, text };
    if *with_key == 0 {
        return bad(format!(
            "{topic} has no message with a key to tell by; of {} messages none has one",
            found.messages
        ));
    }
    if *partitions == 1 {
        return Verdict { good: true, text: format!("{topic} has one partition, so every hash fits") };
    }
    let fits = |matches: u64| matches * 100 >= with_key * SURE_PERCENT;
    if found.hashes.iter().any(|entry| entry.hash == *configured && fits(entry.matches)) {
        return Verdict { good: true, text: format!("the producers of {topic} use {configured}, as the config says") };
    }
    match found.hashes.iter().filter(|entry| fits(entry.matches)).max_by_key(|entry| entry.matches) {
        Some(best) if best.can_route => bad(format!(
            "the producers of {topic} use {}; the config says {configured}: set hash: {}",
            best.hash, best.hash
        )),
        Some(best) => bad(format!(
            "the producers of {topic} use {}, which cannot be the config's hash: set their partitioner to {configured}",
            best.hash
        )),
        None => bad(format!(
            "no hash explains the partitions of {topic}: its producers ignore the key, or use a partitioner of their \
             own, or several; events of another shard go through hand_off"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::wiring::HashMatch;

    fn found(partitions: u32, matches: [u64; 4]) -> HashMatches {
        let hashes = ["fnv1a", "murmur2", "crc32", "fnv1a-ref"].into_iter().zip(matches);
        HashMatches {
            topic: "orders".into(),
            partitions,
            messages: 1_200,
            with_key: 1_000,
            configured: "fnv1a",
            hashes: hashes.map(|(hash, matches)| HashMatch { hash, matches, can_route: hash != "fnv1a-ref" }).collect(),
        }
    }

    #[test]
    fn k3_the_advice_follows_from_what_was_found() {
        for (found, good, says) in [
            (found(12, [1_000, 80, 90, 500]), true, "use fnv1a, as the config says"),
            (found(12, [950, 80, 90, 960]), true, "as the config says"),
            (found(12, [80, 1_000, 90, 60]), false, "use murmur2; the config says fnv1a: set hash: murmur2"),
            (found(12, [500, 80, 90, 1_000]), false, "set their partitioner to fnv1a"),
            (found(12, [80, 90, 100, 70]), false, "no hash explains"),
            (found(1, [1_000; 4]), true, "every hash fits"),
            (HashMatches { with_key: 0, ..found(12, [0; 4]) }, false, "of 1200 messages none has one"),
        ] {
            let verdict = verdict(&found);
            assert!(verdict.text.contains(says), "{}", verdict.text);
            assert_eq!(verdict.good, good, "{}", verdict.text);
        }
        assert!(table(&found(12, [1_000, 83, 0, 7])).contains("murmur2            8.30%\n"));
    }
}
