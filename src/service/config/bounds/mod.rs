//! The table of all keys: names, units, defaults, limits and reasons. What is read, printed and documented comes from
//! here.
//!
//! Must never have a limit that is "none" by being 0; what can be switched off has a word for it (I2). Tested below,
//! and by `tests/it/config.rs`: the reference, the example and the docs say the same.

pub(super) mod etcd;
pub(super) mod kafka;
pub(super) mod otlp;
pub(super) mod reconciler;
pub(super) mod streams;
pub(super) mod top;

use super::form::{Block, FilePath, Hidden};
use super::key::{AnyKey, Default, Key, Section};

/// Calls `visit` for every section, the outer before the inner, in the order of the table.
pub(super) fn each_section(visit: &mut dyn FnMut(&'static Section)) {
    fn walk(section: &'static Section, visit: &mut dyn FnMut(&'static Section)) {
        visit(section);
        for key in section.keys {
            // One block may stand at several keys; it is told once, where it is the key's own.
            if let Some(block) = key.block().filter(|block| is_own(section, *key, block)) {
                walk(block, visit);
            }
        }
    }
    walk(&top::ROOT, visit);
}

fn is_own(section: &Section, key: &dyn AnyKey, block: &Section) -> bool {
    let named = if key.is_map() { ".NAME" } else { "" };
    block.path == format!("{}{named}", super::expand::join(section.path, key.name()))
}

/// Where a key of this name stands, if it stands in one place.
pub(super) fn path_of(name: &str) -> Option<String> {
    let mut found = Vec::new();
    each_section(&mut |section| {
        if section.keys.iter().any(|key| key.name() == name) {
            found.push(super::expand::join(section.path, name));
        }
    });
    if found.len() == 1 { found.pop() } else { None }
}

/// A key whose value is a secret from the environment.
const fn secret(name: &'static str, about: &'static str) -> Key<Hidden> {
    Key {
        name,
        form: Hidden,
        default: Default::Absent { means: "none", example: "${SECRET}" },
        about,
        reason: "written in the file itself it would be read by whoever reads the file; that is warned about",
    }
}

/// The same secret from a file.
const fn secret_file(name: &'static str, about: &'static str, example: &'static str) -> Key<FilePath> {
    Key {
        name,
        form: FilePath { what: "a file that only its owner can read" },
        default: Default::Absent { means: "none", example },
        about,
        reason: "read again when it changes; a file that everybody may write is refused",
    }
}

/// A block that need not be written.
const fn block(name: &'static str, section: &'static Section) -> Key<Block> {
    Key {
        name,
        form: Block::of(section),
        default: Default::Absent { means: "its defaults", example: "" },
        about: section.about,
        reason: "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_complete_and_named_once() {
        let mut sections = Vec::new();
        each_section(&mut |section| sections.push(section));
        assert!(sections.len() > 12, "{}", sections.len());
        for section in sections {
            let names = section.keys.iter().map(|key| key.name()).collect::<Vec<_>>();
            let mut unique = names.clone();
            unique.sort_unstable();
            unique.dedup();
            assert_eq!(unique.len(), names.len(), "{}", section.path);
            for key in section.keys {
                let path = super::super::expand::join(section.path, key.name());
                assert!(!key.about().is_empty() && !key.about().ends_with('.'), "{path}");
                assert!(!key.allowed().is_empty(), "{path}");
                let bounded = matches!(key.default(), Default::Is(_)) && key.allowed().contains(" to ");
                assert!(!bounded || !key.reason().is_empty(), "{path} has bounds and no reason");
            }
        }
    }

    #[test]
    fn a_key_in_the_wrong_block_is_found() {
        assert_eq!(path_of("workers").as_deref(), Some("reconciler.workers"));
        assert_eq!(path_of("brokers").as_deref(), Some("kafka.brokers"));
        assert_eq!(path_of("url"), None, "stands in several places");
        assert_eq!(path_of("nothing"), None);
    }
}
