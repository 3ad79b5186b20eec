//! Runs the scripts of `tests/scenarios`: commands, `----`, and exactly what the scheduler does then.
//!
//! A script is for people who have not seen the code. With `EVENKEEL_TEST_UPDATE=1` the test writes down what
//! happens now; read the difference before keeping it. The commands stand in `world`, the words of the answers in
//! `text`.

mod text;
mod world;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use world::World;

/// A script: text that is kept as it is, and blocks of commands with what they should bring about.
enum Part {
    Text(String),
    Block { line: usize, commands: Vec<String>, expected: Vec<String> },
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios")
}

fn scripts() -> Vec<(String, String)> {
    let mut scripts: Vec<_> = std::fs::read_dir(folder())
        .expect("the folder of scripts is there")
        .map(|entry| entry.expect("the folder can be read").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "txt"))
        .map(|path| {
            let name = path.file_name().expect("a file has a name").to_string_lossy().into_owned();
            (name, std::fs::read_to_string(&path).expect("a script can be read"))
        })
        .collect();
    scripts.sort();
    scripts
}

/// Cuts a script into parts. Answers end at an empty line.
fn parse(script: &str) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut lines = (1..).zip(script.lines()).peekable();
    while let Some((line, text)) = lines.next() {
        if text.is_empty() || text.starts_with('#') {
            parts.push(Part::Text(text.to_owned()));
            continue;
        }
        let mut commands = vec![text.to_owned()];
        commands.extend(
            std::iter::from_fn(|| lines.next_if(|(_, text)| *text != "----" && !text.is_empty()))
                .map(|(_, text)| text.to_owned()),
        );
        let mut expected = Vec::new();
        if lines.next_if(|(_, text)| *text == "----").is_some() {
            expected.extend(
                std::iter::from_fn(|| lines.next_if(|(_, text)| !text.is_empty())).map(|(_, text)| text.to_owned()),
            );
        }
        parts.push(Part::Block { line, commands, expected });
    }
    parts
}

/// Runs a script; gives it back with what really happened, and the differences.
fn run(name: &str, script: &str) -> (String, Vec<String>) {
    let (mut world, mut written, mut differences) = (World::default(), String::new(), Vec::new());
    for part in parse(script) {
        match part {
            Part::Text(text) => writeln!(written, "{text}").unwrap(),
            Part::Block { line, commands, expected } => {
                let mut happened = Vec::new();
                for command in &commands {
                    world
                        .obey(command, &mut happened)
                        .unwrap_or_else(|fault| panic!("{name}:{line}: {command}: {fault}"));
                }
                if happened != expected {
                    let (expected, happened) = (expected.join("\n  "), happened.join("\n  "));
                    differences.push(format!("{name}:{line}: expected\n  {expected}\nbut\n  {happened}"));
                }
                writeln!(written, "{}\n----", commands.join("\n")).unwrap();
                happened.iter().for_each(|line| writeln!(written, "{line}").unwrap());
            }
        }
    }
    (written, differences)
}

#[test]
fn scenarios_happen_as_written() {
    let update = std::env::var_os("EVENKEEL_TEST_UPDATE").is_some();
    let mut differences = Vec::new();
    for (name, script) in scripts() {
        let (written, differs) = run(&name, &script);
        if update && written != script {
            std::fs::write(folder().join(&name), written).expect("a script can be written");
        } else {
            differences.extend(differs);
        }
    }
    let all = differences.join("\n\n");
    assert!(differences.is_empty(), "{all}\n\nEVENKEEL_TEST_UPDATE=1 writes down what happens now");
}

#[test]
fn x4_scenarios_show_every_answer_to_why() {
    let all: String = scripts().into_iter().map(|(_, script)| script).collect();
    for reason in text::REASONS {
        assert!(all.contains(&format!("why: {reason}")), "no script shows {reason:?}");
    }
}

#[test]
fn a_script_that_is_wrong_is_noticed() {
    let (written, differences) = run("planted", "# Note.\nevent a orders@1\n----\nrefused\n\nstart\n----\nstart a\n");
    assert_eq!(differences.len(), 2, "{differences:?}");
    assert!(
        written.starts_with("# Note.\nevent a orders@1\n----\nadmitted\n\nstart\n----\nstart a, run 1"),
        "{written}"
    );
    assert!(run("planted", &written).1.is_empty(), "what was written down is what happens");
}
