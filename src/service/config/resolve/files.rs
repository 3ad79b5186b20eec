//! The files that a config names: secrets, certificates, programs, the data folder.
//!
//! Must never quote a file. Tested by `tests/it/config.rs`.

use std::ffi::OsStr;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use super::super::block::Block;
use super::super::bounds::top as keys;
use super::super::context::{Context, Read};
use super::super::form::{FilePath, Hidden};
use super::super::key::Key;
use super::super::secret::{Secret, SecretFile, io_reason};
use super::super::tree::{Origin, Value};

/// The largest file of certificates: a bundle of all public authorities has a quarter of it.
const PEM_BYTES_MAX: u64 = 1024 * 1024;

/// A secret from the environment or a file, if either is written.
pub(super) fn secret(block: &Block<'_>, inline: &Key<Hidden>, file: &Key<FilePath>) -> Read<Option<Secret>> {
    let (written, path) = (block.maybe(inline), block.maybe(file));
    let (written, path) = (written?, path?);
    match (written, path) {
        (None, None) => Ok(None),
        (Some(_), Some(_)) => Err(block.fault(inline, format!("stands beside {}; keep one of them", file.name))),
        (Some(secret), None) => {
            if let Some(Value::Text(scalar)) = block.node(inline)?.map(|node| &node.value)
                && scalar.origin == Origin::Written
            {
                let message = format!("a secret is written in the file itself; use {} or ${{NAME}}", file.name);
                block.cx.warn(&block.path_of(inline.name), message);
            }
            Ok(Some(secret))
        }
        (None, Some(path)) => {
            let read = read_secret(block, file, &path)?;
            let shown = block.cx.shown(&path);
            read.single().map(Some).map_err(|why| block.fault(file, format!("{} {why}", shown.display())))
        }
    }
}

/// The path of a secret that is read again while the process runs; that it can be read now is checked.
pub(super) fn secret_file(block: &Block<'_>, key: &Key<FilePath>) -> Read<Option<PathBuf>> {
    let Some(path) = block.maybe(key)? else { return Ok(None) };
    read_secret(block, key, &path)?;
    Ok(Some(block.cx.absolute(&path)))
}

fn read_secret(block: &Block<'_>, key: &Key<FilePath>, path: &Path) -> Read<SecretFile> {
    let read = SecretFile::read(&block.cx.shown(path)).map_err(|message| block.fault(key, message))?;
    if let Some(warning) = &read.warning {
        block.cx.warn(&block.path_of(key.name), warning);
    }
    Ok(read)
}

/// The path of a PEM file that holds what its `marker` says.
pub(super) fn pem(block: &Block<'_>, key: &Key<FilePath>, marker: &str) -> Read<Option<PathBuf>> {
    let Some(path) = block.maybe(key)? else { return Ok(None) };
    let shown = block.cx.shown(&path);
    let text = read_pem(&shown).map_err(|message| block.fault(key, message))?;
    if !text.contains(marker) {
        return Err(block.fault(key, format!("{} holds no {marker} in PEM form", shown.display())));
    }
    Ok(Some(block.cx.absolute(&path)))
}

fn read_pem(path: &Path) -> Result<String, String> {
    let cannot = |e: std::io::Error| format!("cannot read {}: {}", path.display(), io_reason(&e));
    let file = std::fs::File::open(path).map_err(cannot)?;
    let mut bytes = Vec::new();
    file.take(PEM_BYTES_MAX).read_to_end(&mut bytes).map_err(cannot)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The folder of the file store; it need not exist yet.
pub(super) fn data_dir(block: &Block<'_>) -> Read<Option<PathBuf>> {
    let Some(path) = block.get(&keys::DATA_DIR)? else { return Ok(None) };
    let shown = block.cx.shown(&path);
    if shown.exists() && !shown.is_dir() {
        return Err(block.fault(&keys::DATA_DIR, format!("{} is no folder", shown.display())));
    }
    Ok(Some(block.cx.absolute(&path)))
}

/// Checks that a program is there: relative to the config's folder with a slash, else in PATH.
pub(super) fn find_program(cx: &Context<'_>, program: &str, path: &str) -> Read<()> {
    if program.is_empty() {
        return Err(
            cx.fault(path, "the program is empty; allowed: a program, or a list of a program and its arguments")
        );
    }
    if program.contains('/') {
        let shown = cx.shown(Path::new(program));
        return is_executable(&shown).map_err(|why| cx.fault(path, format!("cannot run {}: {why}", shown.display())));
    }
    let folders = cx.variables.get("PATH").unwrap_or(OsStr::new(""));
    if std::env::split_paths(folders).any(|dir| is_executable(&dir.join(program)).is_ok()) {
        return Ok(());
    }
    let hint = if cx.dir.join(program).is_file() { format!("; did you mean ./{program}?") } else { String::new() };
    Err(cx.fault(path, format!("found no program {program} in PATH{hint}")))
}

fn is_executable(path: &Path) -> Result<(), String> {
    let metadata = std::fs::metadata(path).map_err(|e| io_reason(&e))?;
    match metadata.is_file() {
        false => Err("it is no file".to_owned()),
        true if metadata.permissions().mode() & 0o111 == 0 => {
            Err(format!("it is not executable; `chmod +x {}`", path.display()))
        }
        true => Ok(()),
    }
}
