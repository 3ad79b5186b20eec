//! Documents say what is there: links lead to files, commands and switches exist, the map has every room; and whatever
//! is fetched is named with its version.
//!
//! Must never need the network. Tested below with planted faults.

use std::collections::BTreeSet;

use super::{Fault, File, Tree};

/// A line of Markdown, cut into prose and code.
fn code_of(file: &File) -> Vec<(usize, String)> {
    let mut fenced = false;
    let mut found = Vec::new();
    for (number, line) in file.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if fenced {
            found.push((number, line.to_owned()));
        } else {
            found.extend(line.split('`').skip(1).step_by(2).map(|code| (number, code.to_owned())));
        }
    }
    found
}

fn prose_of(file: &File) -> Vec<(usize, String)> {
    let mut fenced = false;
    let mut found = Vec::new();
    for (number, line) in file.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            found.push((number, line.split('`').step_by(2).collect()));
        }
    }
    found
}

/// Links inside the repository lead to a file or folder, and to a heading of it where they name one.
pub(super) fn links(tree: &Tree, file: &File) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (number, line) in prose_of(file) {
        for link in line.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link) {
            if !link.contains("://") && !link.starts_with("mailto:") && !leads_somewhere(tree, &file.path, link) {
                faults.push(file.fault(number, format!("the link `{link}` leads nowhere")));
            }
        }
    }
    faults
}

fn leads_somewhere(tree: &Tree, from: &str, link: &str) -> bool {
    let (path, heading) = link.split_once('#').map_or((link, None), |(path, heading)| (path, Some(heading)));
    let path = if path.is_empty() { from.to_owned() } else { joined(from, path) };
    match (tree.get(&path), heading) {
        (Some(_), None) => true,
        (Some(file), Some(heading)) => headings(file).contains(heading),
        (None, _) => tree.files.iter().any(|file| file.path.starts_with(&format!("{path}/"))),
    }
}

/// Where a relative link leads, from the file it stands in.
fn joined(from: &str, link: &str) -> String {
    let mut names: Vec<_> = from.split('/').collect();
    names.pop();
    for name in link.trim_end_matches('/').split('/') {
        match name {
            "." => {}
            ".." => drop(names.pop()),
            _ => names.push(name),
        }
    }
    names.join("/")
}

/// The headings of a document in the form in which links name them.
fn headings(file: &File) -> BTreeSet<String> {
    let titles = file.text.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim());
    titles
        .map(|title| {
            let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
            kept.collect::<String>().to_lowercase().replace(' ', "-")
        })
        .collect()
}

/// `make` in a document is followed by a target that the Makefile has.
pub(super) fn commands(tree: &Tree, file: &File) -> Vec<Fault> {
    let targets = targets(tree);
    let mut faults = Vec::new();
    for (number, code) in code_of(file) {
        for target in made(&code) {
            if !targets.contains(target) {
                faults.push(file.fault(number, format!("the Makefile has no target `{target}`")));
            }
        }
    }
    faults
}

/// The targets that a line of shell asks `make` for.
fn made(code: &str) -> Vec<&str> {
    let commands = code.split(['&', '|', ';', '(', ')']).map(|command| command.trim_start_matches(['$', ' ']));
    let targets = commands.filter_map(|command| command.strip_prefix("make ")?.split_whitespace().next());
    targets.filter(|target| target.starts_with(|c: char| c.is_ascii_lowercase())).collect()
}

fn targets(tree: &Tree) -> BTreeSet<&str> {
    let lines = tree.get("Makefile").map_or("", |file| file.text.as_str()).lines();
    lines.filter_map(|line| line.split_once(": ## ")).map(|(target, _)| target).collect()
}

/// Every switch of the build and the tests is explained in CONTRIBUTING.md, and none is explained that does nothing.
pub(super) fn switches(tree: &Tree) -> Vec<Fault> {
    let Some(guide) = tree.get("CONTRIBUTING.md") else { return Vec::new() };
    let told: BTreeSet<_> =
        guide.lines().flat_map(|(number, line)| names(line).map(move |name| (name, number))).collect();
    let mut faults = Vec::new();
    let mut used = BTreeSet::new();
    for file in tree.files.iter().filter(|file| !file.path.ends_with(".md") && !file.path.starts_with("tests/it/tidy/"))
    {
        let script = [".ci/", "tests/services/", "Makefile"].iter().any(|path| file.path.starts_with(path));
        for (number, line) in file.lines() {
            for name in names(line).filter(|name| script || is_for_tests(name)) {
                used.insert(name);
                if !told.iter().any(|(told, _)| *told == name) {
                    faults.push(file.fault(number, format!("CONTRIBUTING.md does not explain {name}")));
                }
            }
        }
    }
    let idle = told.into_iter().filter(|(name, _)| is_for_tests(name) && !used.contains(name));
    faults.extend(idle.map(|(name, number)| guide.fault(number, format!("nothing reads {name}"))));
    faults
}

fn is_for_tests(name: &str) -> bool {
    name.starts_with("EVENKEEL_TEST_") || name.starts_with("EVENKEEL_BENCH_")
}

/// The project's environment variables that a line names.
fn names(line: &str) -> impl Iterator<Item = &str> {
    let words = line.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words.filter(|word| word.strip_prefix("EVENKEEL_").is_some_and(|rest| rest.len() > 1 && !rest.starts_with('_')))
}

/// ARCHITECTURE.md has every room of the code, and no other.
pub(super) fn map(tree: &Tree) -> Vec<Fault> {
    let Some(map) = tree.get("ARCHITECTURE.md") else { return Vec::new() };
    let rooms: BTreeSet<_> =
        tree.rust().filter_map(|file| file.path.strip_prefix("src/")?.split_once('/')).map(|(room, _)| room).collect();
    let mut faults = Vec::new();
    for room in rooms.iter().filter(|room| !map.text.contains(&format!("src/{room}/"))) {
        faults.push(map.fault(1, format!("src/{room}/ is not on the map")));
    }
    for (number, line) in map.lines() {
        for room in line.split("src/").skip(1).filter_map(|rest| rest.split_once('/')).map(|(room, _)| room) {
            if !rooms.contains(room) {
                faults.push(map.fault(number, format!("there is no src/{room}/")));
            }
        }
    }
    faults
}

/// A rule or case that the code names is explained: Q4 in docs/rules.md, B04 in docs/cases.md.
pub(super) fn codes(tree: &Tree) -> Vec<Fault> {
    let text = |path: &str| tree.get(path).map_or("", |file| file.text.as_str());
    let (rules, cases) = (text("docs/rules.md"), text("docs/cases.md"));
    let mut faults = Vec::new();
    for file in tree.rust().filter(|file| !file.path.starts_with("tests/it/tidy/")) {
        for (number, line) in file.lines() {
            for code in named_codes(line) {
                let (page, entry) = match code.as_bytes()[0] {
                    b'B' => ("docs/cases.md", cases.contains(&format!("| {code} |"))),
                    _ => ("docs/rules.md", rules.contains(&format!("**{code}**"))),
                };
                if !entry {
                    faults.push(file.fault(number, format!("{page} does not explain {code}")));
                }
            }
        }
    }
    faults
}

/// The codes in a comment, and those that a function's name begins with.
fn named_codes(line: &str) -> Vec<String> {
    let comment = line.split_once("//").map_or("", |(_, comment)| comment);
    let words = comment.split(|c: char| !(c.is_alphanumeric() || c == '_'));
    let mut codes: Vec<_> = words.filter(|word| is_code(word)).map(str::to_owned).collect();
    if let Some((_, name)) = line.split_once("fn ") {
        codes.extend(name.split('_').map(str::to_uppercase).take_while(|part| is_code(part)));
    }
    codes
}

/// A group's letter and one or two digits; cases (B) have two.
fn is_code(word: &str) -> bool {
    let (group, number) = word.split_at(word.chars().next().map_or(0, char::len_utf8));
    let digits = if group == "B" { 2..=2 } else { 1..=2 };
    group.len() == 1
        && "QDGCRLKXTIB".contains(group)
        && digits.contains(&number.len())
        && number.bytes().all(|b| b.is_ascii_digit())
}

/// What is fetched is fetched in one version, written down.
pub(super) fn pins(tree: &Tree, file: &File) -> Vec<Fault> {
    let name = file.path.rsplit('/').next().unwrap_or_default();
    if name.ends_with(".md") || name == "Cargo.lock" || file.path.starts_with("tests/it/tidy/") {
        return Vec::new();
    }
    let mut faults = Vec::new();
    for (number, line) in file.lines() {
        let unpinned = [":latest", "@latest", "LATEST", "-SNAPSHOT"].iter().find(|word| line.contains(**word));
        faults.extend(unpinned.map(|word| file.fault(number, format!("`{word}` is another thing every day"))));
        let comment = line.trim_start().starts_with('#');
        if !comment && line.contains("cargo install") && !(line.contains("--locked") && line.contains("--version")) {
            faults.push(file.fault(number, "`cargo install` needs --locked and --version"));
        }
        if !comment && name.starts_with("requirements") && !line.contains("==") {
            faults.push(file.fault(number, "a requirement needs `==` and a version"));
        }
    }
    match name {
        "pom.xml" => faults.extend(pom_pins(file)),
        "go.mod" if tree.get(&file.path.replace("go.mod", "go.sum")).is_none() => {
            faults.push(file.fault(1, "a go.mod without its go.sum pins nothing"));
        }
        _ => {}
    }
    faults
}

fn pom_pins(file: &File) -> Vec<Fault> {
    let mut faults = Vec::new();
    for tag in ["dependency", "plugin", "parent", "artifactItem"] {
        for block in elements(&file.text, tag) {
            let version = elements(block, "version").next().unwrap_or_default().trim();
            let property = version.strip_prefix("${").and_then(|rest| rest.strip_suffix('}'));
            let version = property.map_or(version, |name| elements(&file.text, name).next().unwrap_or_default().trim());
            let exact = version.starts_with(|c: char| c.is_ascii_digit())
                && version.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'));
            if !exact {
                let line = file.text[..offset(&file.text, block)].matches('\n').count() + 1;
                faults.push(file.fault(line, format!("a {tag} needs an exact version, not `{version}`")));
            }
        }
    }
    faults
}

/// The contents of all elements of this name.
fn elements<'a>(text: &'a str, tag: &str) -> impl Iterator<Item = &'a str> {
    let (open, close) = (format!("<{tag}>"), format!("</{tag}>"));
    let starts: Vec<_> = text.match_indices(&open).map(|(at, _)| at + open.len()).collect();
    starts.into_iter().filter_map(move |at| text[at..].split_once(&close)).map(|(content, _)| content)
}

fn offset(text: &str, part: &str) -> usize {
    part.as_ptr().addr() - text.as_ptr().addr()
}

#[cfg(test)]
mod tests {
    use super::super::catches;
    use super::*;

    fn tree(files: &[(&str, &str)]) -> Tree {
        let file = |(path, text): &(&str, &str)| File { path: (*path).to_owned(), text: (*text).to_owned() };
        Tree { files: files.iter().map(file).collect() }
    }

    fn lines(faults: &[Fault]) -> Vec<(&str, usize)> {
        faults.iter().map(|fault| (fault.path.as_str(), fault.line)).collect()
    }

    #[test]
    fn a_broken_link_is_caught() {
        let tree = tree(&[("docs/a.md", "# The promise, kept\n"), ("src/lib.rs", "")]);
        let rule = |file: &File| links(&tree, file);
        catches(rule, "docs/b.md", "[a](a.md) [b](a.md#the-promise-kept) [c](../src) [d](https://x.y/z)", &[]);
        catches(
            rule,
            "docs/b.md",
            "[a](b.txt)\n[b](a.md#the-promise)\n[c](../srcs)\n`[d](e)`\n```\n[f](g)\n```",
            &[1, 2, 3],
        );
    }

    #[test]
    fn a_command_that_is_not_there_is_caught() {
        let tree = tree(&[("Makefile", "run: ## Run\nhidden:\n")]);
        let rule = |file: &File| commands(&tree, file);
        catches(
            rule,
            "README.md",
            "make sure\n`make run` or `make walk`\n```sh\nmake run && make fly\n```\nmake hay",
            &[2, 4],
        );
    }

    #[test]
    fn a_switch_that_is_not_explained_or_does_nothing_is_caught() {
        let tree = tree(&[
            (".ci/test", "\n$EVENKEEL_TEST_A $EVENKEEL_OTHER"),
            ("tests/live/main.rs", "\"EVENKEEL_TEST_B EVENKEEL_ID EVENKEEL__KAFKA\""),
            ("CONTRIBUTING.md", "`EVENKEEL_TEST_A=1`\n`EVENKEEL_TEST_C=1`"),
        ]);
        let expected = [(".ci/test", 2), ("tests/live/main.rs", 1), ("CONTRIBUTING.md", 2)];
        assert_eq!(lines(&switches(&tree)), expected);
    }

    #[test]
    fn a_rule_or_case_that_nobody_explains_is_caught() {
        let tree = tree(&[
            ("docs/rules.md", "- **K4** At least once."),
            ("docs/cases.md", "| B04 | a commit past open work |"),
            (
                "src/id/mod.rs",
                "// rule K4, case B04\nfn k4_b04_commits() {}\n// K5\nfn b05_k4_gaps(t1: u8) {}\nlet q4 = Q4;",
            ),
        ]);
        assert_eq!(lines(&codes(&tree)), [("src/id/mod.rs", 3), ("src/id/mod.rs", 4)]);
    }

    #[test]
    fn a_room_that_is_not_on_the_map_is_caught() {
        let tree = tree(&[
            ("src/id/mod.rs", ""),
            ("src/attic/mod.rs", ""),
            ("ARCHITECTURE.md", "- `src/id/`: ids\n- `src/cellar/`: wine"),
        ]);
        assert_eq!(lines(&map(&tree)), [("ARCHITECTURE.md", 1), ("ARCHITECTURE.md", 2)]);
    }

    #[test]
    fn what_is_not_pinned_is_caught() {
        let tree = tree(&[("tests/services/b/go.sum", "")]);
        let rule = |file: &File| pins(&tree, file);
        let pom = "<k>4.4.0</k>
            <dependency><version>${k}</version></dependency>
            <dependency><version>[4,5)</version></dependency>
            <plugin></plugin>
            <parent><version>${none}</version></parent>";
        catches(rule, "tests/services/kafka/pom.xml", pom, &[3, 4, 5]);
        catches(rule, "tests/services/a/go.mod", "module a", &[1]);
        catches(rule, "tests/services/b/go.mod", "module b", &[]);
        catches(
            rule,
            ".ci/check",
            "cargo install --locked --version =1 x\ncargo install x\ngo install y@latest",
            &[2, 3],
        );
        catches(rule, "tests/services/requirements.txt", "a==1\nb\n", &[2]);
    }
}
