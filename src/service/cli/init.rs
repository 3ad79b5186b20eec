//! `init`: a small project to start from. Its files are those of `examples/init/`, where they can be tried as they are.
//!
//! Must never overwrite a file. Tested in `tests/it/cli.rs`: what it writes passes `check` and runs.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;

use super::exit::UsageError;
use super::tree::{InitArgs, ReconcilerKind};

/// A file of a project.
struct Template {
    path: &'static str,
    text: &'static str,
    executable: bool,
}

/// Writes a folder's worth of templates: the path in the project, the file in `examples/init/`, and whether it is run.
macro_rules! templates {
    ($($path:literal = $file:literal, $executable:literal;)*) => {
        &[$(Template {
            path: $path,
            text: include_str!(concat!("../../../examples/init/", $file)),
            executable: $executable,
        }),*]
    };
}

const EXEC: &[Template] = templates! {
    "evenkeel.yaml" = "exec/evenkeel.yaml", false;
    "reconcile.sh" = "exec/reconcile.sh", true;
    "list.sh" = "exec/list.sh", true;
    "wanted/greeting" = "exec/wanted/greeting", false;
};

const WEBHOOK: &[Template] = templates! {
    "evenkeel.yaml" = "webhook/evenkeel.yaml", false;
    "app.py" = "webhook/app.py", true;
};

const RUST: &[Template] = templates! {
    "Cargo.toml" = "rust/manifest.toml", false;
    "src/main.rs" = "rust/main.rs", false;
    "wanted/greeting" = "exec/wanted/greeting", false;
};

const EXEC_NEXT: &str = "  evenkeel run\n\nThen, in another terminal, delete actual/greeting: it comes back.";
const WEBHOOK_NEXT: &str =
    "  python3 app.py &\n  evenkeel run\n\nThen, in another terminal:\n  evenkeel trigger cust-42";
const RUST_NEXT: &str = "  cargo run\n\nThen, in another terminal, delete actual/greeting: it comes back.";

/// Where the project's name stands in the templates.
const NAMES: [&str; 3] = ["name: hello", "name = \"hello\"", "builder(\"hello\")"];

/// Makes the project and says what to do next.
pub(super) fn init(args: &InitArgs) -> anyhow::Result<ExitCode> {
    let (templates, next) = match args.reconciler {
        ReconcilerKind::Exec => (EXEC, EXEC_NEXT),
        ReconcilerKind::Webhook => (WEBHOOK, WEBHOOK_NEXT),
        ReconcilerKind::Rust => (RUST, RUST_NEXT),
    };
    let taken = templates.iter().filter(|t| args.dir.join(t.path).symlink_metadata().is_ok()).collect::<Vec<_>>();
    if !taken.is_empty() {
        let names = taken.iter().map(|t| args.dir.join(t.path).display().to_string()).collect::<Vec<_>>().join(", ");
        return Err(
            UsageError(format!("{names} is there already, and nothing is overwritten; name another folder")).into()
        );
    }
    let name = project_name(&args.dir);
    let mut out = anstream::stdout();
    for template in templates {
        let path = args.dir.join(template.path);
        write(&path, &named(template.text, &name), template.executable)
            .with_context(|| format!("cannot write {}", path.display()))?;
        writeln!(out, "wrote {}", path.display())?;
    }
    writeln!(out, "\nNext:\n  cd {}\n{next}", shell_word(&args.dir.display().to_string()))?;
    Ok(ExitCode::SUCCESS)
}

fn write(path: &Path, text: &str, executable: bool) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let mode = if executable { 0o755 } else { 0o644 };
    OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?.write_all(text.as_bytes())
}

fn named(text: &str, name: &str) -> String {
    NAMES.iter().fold(text.to_owned(), |text, place| text.replace(place, &place.replace("hello", name)))
}

/// The folder's name, as far as it can be the name of a controller and of a cargo package.
fn project_name(dir: &Path) -> String {
    const CHARS_MAX: usize = 63;
    let folder = std::path::absolute(dir).ok().and_then(|dir| Some(dir.file_name()?.to_string_lossy().into_owned()));
    let name = folder
        .unwrap_or_default()
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || c == '_' { c.to_ascii_lowercase() } else { '-' })
        .take(CHARS_MAX)
        .collect::<String>();
    let name = name.trim_matches(['-', '_']);
    if name.starts_with(|c: char| c.is_ascii_alphabetic()) { name.to_owned() } else { "hello".to_owned() }
}

/// A word that can be pasted into a shell.
fn shell_word(text: &str) -> String {
    // A leading dash would be an option.
    let dash = text.strip_prefix('-').map(|_| format!("./{text}"));
    let text = dash.as_deref().unwrap_or(text);
    let is_plain = |c: char| c.is_alphanumeric() || matches!(c, '/' | '.' | '_' | '-' | '+' | ':' | '@');
    let is_safe = !text.is_empty() && text.chars().all(is_plain);
    if is_safe { text.to_owned() } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_project_is_named_after_its_folder() {
        for (dir, name) in
            [("hello", "hello"), ("a/My App", "my-app"), ("/x/42", "hello"), ("/", "hello"), ("é_b", "b"), ("-x-", "x")]
        {
            assert_eq!(project_name(Path::new(dir)), name, "{dir}");
        }
        for templates in [EXEC, WEBHOOK, RUST] {
            let named = templates.iter().map(|t| named(t.text, "other")).collect::<String>();
            assert!(named.contains("name: other") || named.contains("name = \"other\""), "{named}");
            assert!(NAMES.iter().all(|place| !named.contains(place)));
        }
    }

    #[test]
    fn the_next_command_can_be_pasted() {
        for (text, word) in [("a/b", "a/b"), ("my app", "'my app'"), ("it's", r"'it'\''s'"), ("-x", "./-x"), ("", "''")]
        {
            assert_eq!(shell_word(text), word);
        }
    }
}
