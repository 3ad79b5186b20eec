//! The table of keys as people read it: `config reference`, `config example`, and the tables of `docs/config.md`.
//!
//! Tested by `tests/it/config.rs`: the example is a config that works, and the docs are what is printed here.

use std::fmt::Write as _;

use super::bounds::{each_section, top::ROOT};
use super::expand::join;
use super::key::{AnyKey, Default, Section};
use super::overlay::RULES;

/// The widest line of what is printed.
const WIDTH: usize = 100;

/// Every key with what is allowed, its default and its reason; a block's keys follow the key that it stands at.
#[must_use]
pub fn reference() -> String {
    let mut out = String::new();
    keys_text(&mut out, &ROOT);
    out.push_str(RULES);
    out.push('\n');
    out
}

fn keys_text(out: &mut String, section: &'static Section) {
    for key in section.keys {
        key_text(out, section, *key);
        if let Some(block) = key.block() {
            keys_text(out, block);
        }
    }
}

fn key_text(out: &mut String, section: &Section, key: &dyn AnyKey) {
    out.push_str(&join(section.path, key.name()));
    out.push('\n');
    for (label, text) in [
        ("", key.about().to_owned()),
        ("allowed: ", key.allowed()),
        ("default: ", default_text(key)),
        ("because: ", key.reason().to_owned()),
    ] {
        if !(text.is_empty() || key.is_later() && label == "default: ") {
            out.push_str(&wrapped(&format!("{label}{text}"), "    "));
        }
    }
    out.push('\n');
}

fn default_text(key: &dyn AnyKey) -> String {
    match key.default() {
        Default::Required(_) => "none, it must be written".to_owned(),
        Default::Is(text) => text.to_owned(),
        Default::Absent { means, .. } => means.to_owned(),
    }
}

/// The text in lines of at most [`WIDTH`], each behind `indent`.
fn wrapped(text: &str, indent: &str) -> String {
    let mut out = String::new();
    let mut line = String::new();
    for word in text.split(' ') {
        if !line.is_empty() && indent.len() + line.chars().count() + 1 + word.chars().count() > WIDTH {
            let _ = writeln!(out, "{indent}{line}");
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    let _ = writeln!(out, "{indent}{line}");
    out
}

/// The tables of `docs/config.md`: a heading and a table for each block.
#[must_use]
pub fn markdown() -> String {
    let mut out = String::new();
    each_section(&mut |section| {
        if section.keys.is_empty() {
            return;
        }
        let title = if section.path.is_empty() { "At the top".to_owned() } else { format!("`{}`", section.path) };
        let _ = writeln!(out, "### {title}\n\n{}.\n", section.about);
        let _ = writeln!(out, "| key | allowed | default | what it is |\n|---|---|---|---|");
        for key in section.keys {
            let reason = if key.reason().is_empty() { String::new() } else { format!(" *{}.*", key.reason()) };
            let default = match key.default() {
                Default::Required(_) => "must be written".to_owned(),
                Default::Is(text) => format!("`{text}`"),
                Default::Absent { means, .. } => means.to_owned(),
            };
            let row = [format!("`{}`", key.name()), key.allowed(), default, format!("{}.{reason}", key.about())];
            let _ = writeln!(out, "| {} |", row.map(|cell| cell.replace('|', "\\|")).join(" | "));
        }
        out.push('\n');
    });
    out
}

/// A config with every key: those with a default at their default, the others as comments.
#[must_use]
pub fn example() -> String {
    let mut out = String::from(
        "# A config of evenkeel with every key. A key that is written has its default, unless its line says\n\
         # \"example\"; one like #this: is not set. `evenkeel config reference` says what is allowed, and why.\n",
    );
    example_block(&mut out, &ROOT, 0, false);
    out
}

fn example_block(out: &mut String, section: &'static Section, depth: usize, commented: bool) {
    for key in section.keys.iter().filter(|key| !key.is_later()) {
        if depth == 0 {
            out.push('\n');
        }
        let is_set = !commented && is_set_in_example(*key, section);
        let lead = format!("{}{}", "  ".repeat(depth), if is_set { "" } else { "#" });
        let note = if is_set { "   # example" } else { "" };
        let about = wrapped(key.about(), &format!("{}# ", "  ".repeat(depth)));
        out.push_str(&about);
        match (key.default(), key.block()) {
            (Default::Is(text), _) => line(out, &lead, key.name(), text, ""),
            (Default::Required(text) | Default::Absent { example: text, .. }, _) if !text.is_empty() => {
                line(out, &lead, key.name(), text, note);
            }
            (_, Some(block)) if key.is_map() => {
                let _ = writeln!(out, "{lead}{}:", key.name());
                let _ = writeln!(out, "{lead}  orders:   # example");
                example_block(out, block, depth + 2, !is_set);
            }
            (_, Some(block)) => {
                let _ = writeln!(out, "{lead}{}:", key.name());
                example_block(out, block, depth + 1, !is_set);
            }
            _ => line(out, &lead, key.name(), "", ""),
        }
    }
}

/// Of keys without a default the example sets those that make a working config: one webhook, one Kafka stream.
fn is_set_in_example(key: &dyn AnyKey, section: &Section) -> bool {
    const SET: [&str; 5] =
        ["reconciler.webhook", "streams", "streams.NAME.kafka", "streams.NAME.kafka.dead_letter", "kafka"];
    let path = join(section.path, key.name());
    match key.default() {
        Default::Required(_) | Default::Is(_) => true,
        Default::Absent { means, .. } => means == "its defaults" || SET.contains(&path.as_str()),
    }
}

fn line(out: &mut String, lead: &str, name: &str, value: &str, note: &str) {
    // A word of YAML's own, or one that it would read as something else, stands in quotes.
    let quoted = value.starts_with("${");
    let value = if quoted { format!("\"{value}\"") } else { value.to_owned() };
    let _ = writeln!(out, "{lead}{name}: {value}{note}");
}
