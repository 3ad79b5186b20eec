//! Tables in the documents that name tests, keys and metrics: what they name is there.
//!
//! Must never need the network. Tested below with planted faults.

use std::collections::{BTreeMap, BTreeSet};

use super::{Fault, File, Tree};

/// The cases that one process can meet, each of which needs its row. Those of clusters come with their rooms.
const CASES: [u8; 38] = [
    1, 2, 3, 4, 5, 6, 14, 19, 20, 21, 22, 27, 31, 39, 42, 43, 45, 47, 49, 50, 51, 53, 54, 55, 56, 57, 70, 72, 73, 74,
    75, 76, 80, 85, 86, 87, 89, 91,
];

/// docs/cases.md has each case once and in order, and names tests that are there and carry its number.
pub(super) fn cases(tree: &Tree) -> Vec<Fault> {
    let Some(page) = tree.get("docs/cases.md") else { return Vec::new() };
    let tests = tests(tree);
    let mut faults = Vec::new();
    let mut last = String::new();
    let mut seen = BTreeSet::new();
    for (number, cells) in rows(page) {
        let [case, _, named] = cells[..] else {
            faults.push(page.fault(number, "a row has a case, what must not happen, and tests"));
            continue;
        };
        if case <= last.as_str() {
            faults.push(page.fault(number, format!("{case} comes after {last}")));
        }
        last = case.to_owned();
        seen.insert(case.to_owned());
        let named = quoted(named);
        if named.is_empty() {
            faults.push(page.fault(number, format!("{case} names no test")));
        }
        for name in named {
            match place(tree, &tests, name) {
                None => faults.push(page.fault(number, format!("there is no test `{name}`"))),
                Some(file) if !carries(name, file, case) => {
                    faults.push(page.fault(number, format!("`{name}` does not say that it is about {case}")));
                }
                Some(_) => {}
            }
        }
    }
    let missing = CASES.iter().map(|case| format!("B{case:02}")).filter(|case| !seen.contains(case));
    faults.extend(missing.map(|case| page.fault(1, format!("{case} has no row"))));
    faults
}

/// docs/kreconciler.md: each row names tests that are there; the keys, metrics and methods that it names are too.
pub(super) fn kreconciler(tree: &Tree) -> Vec<Fault> {
    let Some(page) = tree.get("docs/kreconciler.md") else { return Vec::new() };
    let text = |path: &str| tree.get(path).map_or("", |file| file.text.as_str());
    let (keys, metrics, builder) = (text("docs/config.md"), text("docs/metrics.md"), text("src/engine/builder.rs"));
    let tests = tests(tree);
    let mut faults = Vec::new();
    for (number, cells) in rows(page) {
        let [_, here, named] = cells[..] else {
            faults.push(page.fault(number, "a row has what kreconciler does, what is here, and tests"));
            continue;
        };
        let named = quoted(named);
        if named.is_empty() {
            faults.push(page.fault(number, "the row names no test"));
        }
        let gone = named.iter().filter(|name| place(tree, &tests, name).is_none());
        faults.extend(gone.map(|name| page.fault(number, format!("there is no test `{name}`"))));
        for code in quoted(here) {
            let there = match code.strip_prefix("Builder::") {
                Some(method) => builder.contains(&format!("pub fn {method}(")),
                None if code.starts_with("evenkeel_") => metrics.contains(&format!("| `{code}` |")),
                None if is_key(code) => code.split('.').all(|key| keys.contains(&format!("| `{key}` |"))),
                None => true,
            };
            if !there {
                faults.push(page.fault(number, format!("there is no `{code}`")));
            }
        }
    }
    faults
}

/// Whether this is the path of a key of the configuration.
fn is_key(code: &str) -> bool {
    const WORDS: [&str; 4] = ["never", "tracing", "reconcile", "attempt"];
    code.chars().all(|c| c.is_ascii_lowercase() || matches!(c, '_' | '.')) && !WORDS.contains(&code)
}

/// The rows of a page's tables, without heads and rules, cut into cells.
fn rows(page: &File) -> Vec<(usize, Vec<&str>)> {
    let lines: Vec<_> = page.lines().collect();
    let is_row = |at: usize| lines.get(at).is_some_and(|(_, line)| line.starts_with('|'));
    let is_rule =
        |at: usize| lines.get(at).is_some_and(|(_, line)| line.starts_with("| ---") || line.starts_with("|---"));
    (0..lines.len())
        .filter(|at| is_row(*at) && !is_rule(*at) && !is_rule(at + 1))
        .map(|at| (lines[at].0, lines[at].1.trim_matches('|').split('|').map(str::trim).collect()))
        .collect()
}

/// What stands in backquotes.
fn quoted(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

/// All functions marked as tests, and the file each stands in.
fn tests(tree: &Tree) -> BTreeMap<&str, &File> {
    let mut found = BTreeMap::new();
    for file in tree.rust() {
        let mut marked = false;
        for (_, line) in file.lines().map(|(number, line)| (number, line.trim_start())) {
            if line.starts_with("#[") {
                marked |= line.contains("test");
            } else if !line.starts_with("//") {
                let name =
                    line.trim_start_matches("async ").strip_prefix("fn ").and_then(|rest| rest.split('(').next());
                found.extend(name.filter(|_| marked).map(|name| (name, file)));
                marked = false;
            }
        }
    }
    found
}

/// The file of a test: a function, a scenario, or a script.
fn place<'a>(tree: &'a Tree, tests: &BTreeMap<&str, &'a File>, name: &str) -> Option<&'a File> {
    let path = if name.contains('/') { name.to_owned() } else { format!("tests/scenarios/{name}") };
    tests.get(name).copied().or_else(|| tree.get(&path))
}

/// A test says in its name or beside it which case it keeps out.
fn carries(name: &str, file: &File, case: &str) -> bool {
    name.split('_').any(|part| part.eq_ignore_ascii_case(case)) || file.text.contains(case)
}

#[cfg(test)]
mod checks {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> Tree {
        let file = |(path, text): &(&str, &str)| File { path: (*path).to_owned(), text: (*text).to_owned() };
        Tree { files: files.iter().map(file).collect() }
    }

    /// A page with a row for each case, but for what is put in its place.
    fn page(change: impl Fn(u8) -> Option<String>) -> String {
        let row = |case: &u8| change(*case).unwrap_or_else(|| format!("| B{case:02} | x | `all` |"));
        let rows: Vec<_> = CASES.iter().map(row).filter(|row| !row.is_empty()).collect();
        format!("| case | what | tests |\n| --- | --- | --- |\n{}", rows.join("\n"))
    }

    fn whats(page: &str) -> Vec<String> {
        let all: Vec<_> = CASES.iter().map(|case| format!("B{case:02}")).collect();
        let all = format!("// {}\n#[test]\nfn all() {{}}", all.join(" "));
        let one =
            "#[tokio::test(start_paused = true)]\n// A comment between.\nasync fn k4_b04_one() {}\nfn no_test() {}";
        let files = [
            ("docs/cases.md", page),
            ("tests/it/a.rs", all.as_str()),
            ("src/b.rs", one),
            ("tests/scenarios/s.txt", "# B01"),
            ("tests/deploy/static", "# B81"),
        ];
        cases(&tree(&files)).into_iter().map(|fault| fault.what).collect()
    }

    #[test]
    fn a_table_of_cases_that_is_true_passes() {
        let row = |case| match case {
            1 => Some("| B01 | x | `s.txt`, `all` |".to_owned()),
            4 => Some("| B04 | x | `k4_b04_one` |".to_owned()),
            80 => Some("| B80 | x | `all` |\n| B81 | x | `tests/deploy/static` |".to_owned()),
            _ => None,
        };
        assert_eq!(whats(&page(row)), [""; 0]);
    }

    #[test]
    fn a_table_of_cases_that_is_not_true_is_caught() {
        let row = |case| match case {
            1 => Some("| B01 | x | `gone`, `no_test` |".to_owned()),
            2 => Some("| B02 | x | |\n| B02 | x | `all` |".to_owned()),
            3 => Some("| B03 | x | `k4_b04_one` |".to_owned()),
            91 => Some(String::new()),
            _ => None,
        };
        let expected = [
            "there is no test `gone`",
            "there is no test `no_test`",
            "B02 names no test",
            "B02 comes after B02",
            "`k4_b04_one` does not say that it is about B03",
            "B91 has no row",
        ];
        assert_eq!(whats(&page(row)), expected);
    }

    #[test]
    fn a_table_of_features_that_is_not_true_is_caught() {
        let page = "| kreconciler | here | tests |\n| --- | --- | --- |\n\
                    | `A` | `retry.initial`, `evenkeel_runs_total`, `Builder::hasher`, `never`, `a: b` | `one` |\n\
                    | `B` | `retry.initials` | `one` |\n| `C` | `evenkeel_run_total` | `one` |\n\
                    | `D` | `Builder::hash` | `two` |\n| `E` | | |";
        let files = [
            ("docs/kreconciler.md", page),
            ("docs/config.md", "| `retry` | x |\n| `initial` | y |"),
            ("docs/metrics.md", "| a | `evenkeel_runs_total` | b"),
            ("src/engine/builder.rs", "    pub fn hasher(mut self)"),
            ("tests/it/a.rs", "#[test]\nfn one() {}"),
        ];
        let whats: Vec<_> = kreconciler(&tree(&files)).into_iter().map(|fault| fault.what).collect();
        let expected = [
            "there is no `retry.initials`",
            "there is no `evenkeel_run_total`",
            "there is no test `two`",
            "there is no `Builder::hash`",
            "the row names no test",
        ];
        assert_eq!(whats, expected);
    }
}
