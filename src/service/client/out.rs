//! What is printed: tables and lines for people, JSON and YAML for programs.
//!
//! Must never print a control character that came from elsewhere, and never fail on a narrow terminal. Tested below and
//! in `tests/it/client.rs`.

use std::io::{self, BufRead, IsTerminal, Write};

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use jiff::{Timestamp, ZonedDateTime};
use serde::Serialize;
use serde_json::Value;

use crate::service::cli::Output;
use crate::service::telemetry::text::{printable, seconds};

/// Where a verb reads and prints, and in which form.
pub struct Terminal {
    /// Standard input.
    pub input: Box<dyn BufRead + Send>,
    /// Standard output.
    pub out: Box<dyn Write>,
    /// Standard error.
    pub err: Box<dyn Write>,
    /// How wide tables may be; `None` where nobody looks at a screen.
    pub width: Option<u16>,
    /// Somebody watches standard error, so that a line there may change.
    pub is_watched: bool,
    /// Lines are coloured.
    pub colour: bool,
    pub(super) form: Output,
}

impl Terminal {
    /// The process's own.
    #[must_use]
    pub fn of_process() -> Self {
        let stdout = io::stdout();
        let width = stdout.is_terminal().then(terminal_size::terminal_size).flatten();
        Self {
            input: Box::new(io::BufReader::new(io::stdin())),
            width: width.map(|(width, _)| width.0),
            is_watched: io::stderr().is_terminal(),
            colour: anstream::AutoStream::choice(&stdout) != anstream::ColorChoice::Never,
            out: Box::new(io::BufWriter::new(stdout)),
            err: Box::new(io::stderr()),
            form: Output::default(),
        }
    }

    /// Ends that are no terminal, for tests.
    #[must_use]
    pub fn new(input: impl BufRead + Send + 'static, out: impl Write + 'static, err: impl Write + 'static) -> Self {
        Self {
            input: Box::new(input),
            out: Box::new(out),
            err: Box::new(err),
            width: None,
            is_watched: false,
            colour: false,
            form: Output::default(),
        }
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    /// Whether people read it.
    pub(super) fn is_for_people(&self) -> bool {
        self.form == Output::Table
    }

    /// Prints a whole answer for programs.
    pub(super) fn document(&mut self, answer: &Value) -> anyhow::Result<()> {
        match self.form {
            Output::Yaml => self.out.write_all(yaml(answer)?.as_bytes())?,
            Output::Json | Output::Table => {
                serde_json::to_writer_pretty(&mut self.out, answer)?;
                self.out.write_all(b"\n")?;
            }
        }
        Ok(())
    }

    /// Prints one of many for programs: a JSON object a line, or an item of a YAML list.
    pub(super) fn item(&mut self, item: &impl Serialize) -> anyhow::Result<()> {
        match self.form {
            Output::Yaml => self.out.write_all(yaml(&[item])?.as_bytes())?,
            Output::Json | Output::Table => {
                serde_json::to_writer(&mut self.out, item)?;
                self.out.write_all(b"\n")?;
            }
        }
        Ok(())
    }

    /// Prints a line for people.
    pub(super) fn line(&mut self, line: impl AsRef<str>) -> io::Result<()> {
        writeln!(self.out, "{}", line.as_ref())
    }

    /// Prints a line beside the answer.
    pub(super) fn note(&mut self, line: impl AsRef<str>) {
        // Nobody is left to read it if standard error is closed.
        let _ = writeln!(self.err, "{}", line.as_ref());
    }

    /// Prints a table for people.
    pub(super) fn table(&mut self, columns: &[Column], rows: &[Vec<String>]) -> io::Result<()> {
        let text = table(columns, rows, self.width);
        let (header, rest) = text.split_once('\n').unwrap_or((&text, ""));
        let bold = if self.colour { anstyle::Style::new().bold() } else { anstyle::Style::new() };
        writeln!(self.out, "{bold}{header}{bold:#}\n{rest}")
    }
}

/// A column of a table.
#[derive(Debug, Clone, Copy)]
pub(super) enum Column {
    /// Text.
    Left(&'static str),
    /// Numbers.
    Right(&'static str),
}

fn table(columns: &[Column], rows: &[Vec<String>], width: Option<u16>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    if let Some(width) = width {
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
    }
    table.set_header(columns.iter().map(|column| match column {
        Column::Left(name) | Column::Right(name) => *name,
    }));
    for row in rows {
        table.add_row(row.iter().map(|cell| printable(cell).into_owned()));
    }
    let last = columns.len().saturating_sub(1);
    for (index, (column, head)) in table.column_iter_mut().zip(columns).enumerate() {
        column.set_padding((0, if index == last { 0 } else { 2 }));
        if matches!(head, Column::Right(_)) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt()
}

fn yaml(value: &impl Serialize) -> anyhow::Result<String> {
    serde_saphyr::to_string(value).map_err(|error| anyhow::anyhow!("cannot write YAML: {error}"))
}

/// How long ago, in words.
pub(super) fn ago(now: Timestamp, then: Timestamp) -> String {
    seconds(now.duration_since(then).as_secs_f64())
}

/// In how long, in words.
pub(super) fn until(now: Timestamp, then: Timestamp) -> String {
    if then <= now { "now".into() } else { format!("in {}", seconds(then.duration_since(now).as_secs_f64())) }
}

/// The time of day here, with the date unless it is today.
pub(super) fn clock(time: Timestamp) -> String {
    let now = ZonedDateTime::now();
    let time = time.to_zoned_datetime(now.time_zone().clone());
    let format = if time.date() == now.date() { "%H:%M:%S" } else { "%Y-%m-%d %H:%M:%S" };
    time.strftime(format).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 3] = [Column::Left("ID"), Column::Right("RUNS"), Column::Left("ERROR")];

    fn rows() -> Vec<Vec<String>> {
        vec![
            vec!["prod/x".into(), "7".into(), "no route\u{1b}[2J to host".into()],
            vec!["日本".into(), "12345".into(), String::new()],
        ]
    }

    #[test]
    fn tables_align_and_obey_nothing() {
        let text = table(&COLUMNS, &rows(), None);
        assert_eq!(text, "ID       RUNS  ERROR\nprod/x      7  no route\\u{1b}[2J to host\n日本    12345");
    }

    #[test]
    fn no_width_is_too_narrow() {
        for width in 0..60 {
            let text = table(&COLUMNS, &rows(), Some(width));
            let squeezed: String = text.chars().filter(|c| !c.is_whitespace()).collect();
            assert!(squeezed.contains('日') && text.lines().count() >= 3, "{width}: {text}");
        }
        assert!(table(&COLUMNS, &[], Some(1)).lines().count() >= 1, "no rows");
    }
}
