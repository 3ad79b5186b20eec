//! The project's own rules, kept by a test and not by reviewers: who may know whom, what is pure, how long things may
//! be, and that the documents say what is there.
//!
//! Must never be loosened to let one case pass: change the rule for all, or the code.
//! Each rule is a function of a file or of the tree, and is shown beside it to catch what it is for.

mod docs;
mod rooms;
mod scan;
mod style;
mod tables;

use std::fmt;
use std::fs;
use std::path::Path;
use std::sync::LazyLock;

/// The repository as these rules see it: text files under their paths from its top.
struct Tree {
    files: Vec<File>,
}

struct File {
    path: String,
    text: String,
}

/// What breaks a rule.
#[derive(Debug, PartialEq, Eq)]
struct Fault {
    path: String,
    line: usize,
    what: String,
}

impl Tree {
    fn read() -> Self {
        let mut files = Vec::new();
        collect(Path::new(env!("CARGO_MANIFEST_DIR")), "", &mut files);
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Self { files }
    }

    fn get(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }

    fn rust(&self) -> impl Iterator<Item = &File> {
        self.files.iter().filter(|file| file.path.ends_with(".rs"))
    }

    fn markdown(&self) -> impl Iterator<Item = &File> {
        self.files.iter().filter(|file| file.path.ends_with(".md"))
    }
}

impl File {
    fn fault(&self, line: usize, what: impl Into<String>) -> Fault {
        Fault { path: self.path.clone(), line, what: what.into() }
    }

    /// The lines with their numbers, from 1.
    fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(at, line)| (at + 1, line))
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.what)
    }
}

/// Reads every text file below `folder`, but for what was built and what git keeps.
fn collect(folder: &Path, prefix: &str, files: &mut Vec<File>) {
    for entry in fs::read_dir(folder).expect("the repository can be read") {
        let entry = entry.expect("the repository can be read");
        let name = entry.file_name().into_string().expect("file names are UTF-8");
        let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}/{name}") };
        if path == "target" || name == ".git" {
            continue;
        }
        let kind = entry.file_type().expect("the repository can be read");
        if kind.is_dir() {
            collect(&entry.path(), &path, files);
        } else if kind.is_file()
            && let Ok(text) = fs::read_to_string(entry.path())
        {
            files.push(File { path, text });
        }
    }
}

static TREE: LazyLock<Tree> = LazyLock::new(Tree::read);

#[track_caller]
fn none(faults: impl IntoIterator<Item = Fault>) {
    let faults: Vec<_> = faults.into_iter().map(|fault| fault.to_string()).collect();
    assert!(faults.is_empty(), "{} to put right:\n{}", faults.len(), faults.join("\n"));
}

/// For the rules' own tests: a file that is not there.
#[track_caller]
fn catches(rule: impl Fn(&File) -> Vec<Fault>, path: &str, text: &str, lines: &[usize]) {
    let file = File { path: path.to_owned(), text: text.to_owned() };
    let found: Vec<_> = rule(&file).into_iter().map(|fault| fault.line).collect();
    assert_eq!(found, lines, "in {path}:\n{text}");
}

#[test]
fn the_tree_is_read() {
    assert!(TREE.rust().count() > 20, "the rules below saw no code");
    for path in ["src/lib.rs", "tests/it/main.rs", "Cargo.lock", "Makefile", ".ci/test"] {
        assert!(TREE.get(path).is_some(), "{path} was not read");
    }
}

#[test]
fn rooms_know_only_whom_they_may() {
    none(TREE.rust().flat_map(rooms::arrows));
    none(rooms::listed(&TREE));
}

#[test]
fn a_library_is_known_in_its_own_room_only() {
    none(TREE.rust().flat_map(rooms::foreign));
}

#[test]
fn the_deciding_rooms_are_pure() {
    none(TREE.rust().flat_map(rooms::pure));
}

#[test]
fn every_file_begins_with_its_header() {
    none(TREE.rust().flat_map(style::header));
}

#[test]
fn files_functions_and_lines_are_short_enough() {
    none(TREE.files.iter().flat_map(style::columns));
    none(TREE.rust().flat_map(style::function_lines));
    none(TREE.rust().flat_map(style::file_lines));
}

#[test]
fn nothing_is_left_unfinished_or_switched_off() {
    none(TREE.rust().flat_map(style::unfinished));
    none(TREE.files.iter().flat_map(style::marks));
}

#[test]
fn no_file_names_a_machine_or_a_registry() {
    none(TREE.files.iter().flat_map(style::places));
}

#[test]
fn the_documents_name_what_is_there() {
    none(TREE.markdown().flat_map(|file| docs::links(&TREE, file)));
    none(TREE.markdown().flat_map(|file| docs::commands(&TREE, file)));
    none(docs::switches(&TREE));
    none(docs::map(&TREE));
    none(docs::codes(&TREE));
    none(tables::cases(&TREE));
    none(tables::kreconciler(&TREE));
}

#[test]
fn everything_fetched_is_pinned() {
    none(TREE.files.iter().flat_map(|file| docs::pins(&TREE, file)));
}
