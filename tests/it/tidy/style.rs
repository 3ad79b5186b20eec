//! How files look: headers, lengths, nothing unfinished, nothing that belongs to one machine.
//!
//! Must never judge what rustfmt and clippy judge. Tested below with planted faults.

use super::scan;
use super::{Fault, File};

const COLUMNS_MAX: usize = 120;
const FUNCTION_LINES_MAX: usize = 70;
/// Without the tests in it.
const FILE_LINES_MAX: usize = 500;

/// The first line says what the file is.
pub(super) fn header(file: &File) -> Vec<Fault> {
    let first = file.text.lines().next().unwrap_or_default();
    let told = first.strip_prefix("//! ").is_some_and(|says| !says.trim().is_empty());
    if told { Vec::new() } else { vec![file.fault(1, "the first line must be `//!` and say what the file is")] }
}

/// Lines that people read fit a screen. What cannot be broken may be longer: a table's row, an address, a test's text.
pub(super) fn columns(file: &File) -> Vec<Fault> {
    let name = file.path.rsplit('/').next().unwrap_or_default();
    let script = file.text.starts_with("#!") || file.path.starts_with(".ci/") || name == "Makefile";
    if !(script || [".rs", ".md"].iter().any(|end| name.ends_with(end))) {
        return Vec::new();
    }
    let mut faults = Vec::new();
    for (number, line) in file.lines() {
        let text = is_test(&file.path) && line.contains('"');
        let unbreakable = text || name.ends_with(".md") && (line.starts_with('|') || line.contains("](http"));
        let columns = line.chars().count();
        if columns > COLUMNS_MAX && !unbreakable {
            faults.push(file.fault(number, format!("{columns} columns, at most {COLUMNS_MAX} are allowed")));
        }
    }
    faults
}

/// Whether a Rust file holds tests and nothing else.
pub(super) fn is_test(path: &str) -> bool {
    path.ends_with(".rs") && (path.starts_with("tests/") || path.contains("/tests/") || path.ends_with("/tests.rs"))
}

/// A function fits a screen.
pub(super) fn function_lines(file: &File) -> Vec<Fault> {
    let tokens = scan::tokens(&file.text);
    let long = scan::functions(&tokens).into_iter().filter(|function| function.len() > FUNCTION_LINES_MAX);
    long.map(|function| {
        let (name, lines) = (function.name, function.len());
        file.fault(function.lines.start, format!("{name} has {lines} lines, at most {FUNCTION_LINES_MAX} are allowed"))
    })
    .collect()
}

/// A file can be held in the head. Files of tests are lists of cases and may be longer.
pub(super) fn file_lines(file: &File) -> Vec<Fault> {
    if is_test(&file.path) {
        return Vec::new();
    }
    let tokens = scan::tokens(&file.text);
    let of_tests: usize = scan::test_items(&tokens)
        .into_iter()
        .map(|range| tokens[range.end - 1].line + 1 - tokens[range.start].line)
        .sum();
    let lines = file.text.lines().count() - of_tests;
    if lines > FILE_LINES_MAX {
        vec![file.fault(1, format!("{lines} lines without tests, at most {FILE_LINES_MAX} are allowed"))]
    } else {
        Vec::new()
    }
}

/// No code that is still to be written, and no test that does not run.
pub(super) fn unfinished(file: &File) -> Vec<Fault> {
    let tokens = scan::tokens(&file.text);
    let mut faults = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        let next = tokens.get(at + 1).map_or("", |next| next.text);
        let before = at.checked_sub(1).map_or("", |before| tokens[before].text);
        match (before, token.text, next) {
            (_, "todo" | "unimplemented", "!") => {
                faults.push(file.fault(token.line, format!("{}! would panic when it is called", token.text)));
            }
            ("[", "ignore", _) => faults.push(file.fault(token.line, "a test that is ignored keeps nothing")),
            _ => {}
        }
    }
    faults
}

/// No notes to oneself; what is to be done stands in the roadmap.
pub(super) fn marks(file: &File) -> Vec<Fault> {
    find(file, &[concat!("TO", "DO"), concat!("FIX", "ME")], |mark| {
        format!("{mark}: do it, or put it in docs/roadmap.md")
    })
}

/// Nothing that is true on one machine or in one network only: package managers know where their registries are.
pub(super) fn places(file: &File) -> Vec<Fault> {
    if file.path == "Cargo.lock" {
        return Vec::new();
    }
    let root = format!("{}/", env!("CARGO_MANIFEST_DIR"));
    let places = [
        root.as_str(),
        concat!("/ro", "ot/"),
        concat!("/ho", "me/"),
        concat!("/Us", "ers/"),
        concat!("crates", ".io"),
        concat!("repo1.maven", ".org"),
        concat!("repo.maven", ".apache.org"),
        concat!("proxy.golang", ".org"),
        concat!("npmjs", ".org"),
        concat!("pypi", ".org"),
        concat!("pythonhosted", ".org"),
        concat!("deb.debian", ".org"),
    ];
    find(file, &places, |place| format!("`{place}` belongs to one machine or network"))
}

fn find(file: &File, needles: &[&str], what: impl Fn(&str) -> String) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (number, line) in file.lines() {
        faults.extend(
            needles.iter().filter(|needle| line.contains(**needle)).map(|needle| file.fault(number, what(needle))),
        );
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::super::catches;
    use super::*;

    #[test]
    fn a_missing_header_is_caught() {
        catches(header, "src/id/mod.rs", "//! Ids.\n", &[]);
        for text in ["use std::fmt;\n//! late", "//!\n", "", "/// Not a module's.\n"] {
            catches(header, "src/id/mod.rs", text, &[1]);
        }
    }

    #[test]
    fn a_long_line_is_caught() {
        let long = format!("ok\n{}\n{}", "ä".repeat(COLUMNS_MAX), "a".repeat(COLUMNS_MAX + 1));
        catches(columns, "src/id/mod.rs", &long, &[3]);
        catches(columns, "Makefile", &long, &[3]);
        catches(columns, "tests/it/x.rs", &long.replace("ok", &format!("\"{}\"", "x".repeat(200))), &[3]);
        catches(columns, "docs/x.md", &format!("| {} |", "a".repeat(200)), &[]);
        catches(columns, "Cargo.lock", &long, &[]);
    }

    #[test]
    fn a_long_function_is_caught() {
        let function = |lines: usize| format!("\nfn f() {{\n{}}}\n", "    x();\n".repeat(lines - 2));
        catches(function_lines, "src/a/b.rs", &function(FUNCTION_LINES_MAX), &[]);
        catches(function_lines, "src/a/b.rs", &function(FUNCTION_LINES_MAX + 1), &[2]);
        let inside_a_literal = format!("fn f() {{ \"{}\" }}", "}\n".repeat(FUNCTION_LINES_MAX));
        catches(function_lines, "src/a/b.rs", &inside_a_literal, &[1]);
    }

    #[test]
    fn a_long_file_is_caught_but_its_tests_do_not_count() {
        let code = "x();\n".repeat(FILE_LINES_MAX);
        let tests = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", "y();\n".repeat(100));
        catches(file_lines, "src/a/b.rs", &format!("{code}{tests}"), &[]);
        catches(file_lines, "src/a/b.rs", &format!("x();\n{code}{tests}"), &[1]);
        catches(file_lines, "tests/it/b.rs", &format!("x();\n{code}"), &[]);
    }

    #[test]
    fn what_is_unfinished_or_switched_off_is_caught() {
        catches(
            unfinished,
            "src/a/b.rs",
            concat!("fn f() { to", "do!() }\n// to", "do!()\nunimple", "mented!()"),
            &[1, 3],
        );
        catches(unfinished, "tests/it/b.rs", concat!("#[test]\n#[ig", "nore]\nfn f() { git.ignore() }"), &[2]);
        catches(unfinished, "tests/it/b.rs", concat!("#[ig", "nore = \"slow\"]"), &[1]);
        catches(marks, "Makefile", concat!("all:\n# TO", "DO: more\n# FIX", "ME"), &[2, 3]);
    }

    #[test]
    fn a_place_of_one_machine_is_caught() {
        catches(
            places,
            "README.md",
            concat!("see /ho", "me/me/x\nhttps://static.crates", ".io/x\nhttps://example.com"),
            &[1, 2],
        );
        catches(places, ".ci/run", &format!("cd {}/src", env!("CARGO_MANIFEST_DIR")), &[1]);
        catches(places, "Cargo.lock", concat!("https://github.com/rust-lang/crates", ".io-index"), &[]);
    }
}
