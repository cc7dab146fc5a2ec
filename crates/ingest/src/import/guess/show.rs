//! Text of a guess: a small table of fields, columns and examples.

use std::fmt;

use super::{FieldGuess, Guess, Guesses};

/// Characters shown of an example.
const MAX_SHOWN_CHARS: usize = 40;
/// Names shown of other columns.
const MAX_SHOWN_NAMES: usize = 20;

impl fmt::Display for Guesses {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        let Some(first) = self.files.first() else { return Ok(()) };
        write!(out, "{first}")?;
        if !first.fields.is_empty() {
            write!(out, "\n  as an option: {} {}", self.columns_option, quoted(&first.columns()))?;
        }
        for other in self.files.iter().filter(|other| other.columns() != first.columns()) {
            write!(out, "\n{other}")?;
        }
        if self.files.len() > 1 {
            write!(out, "\n{} files", self.files.len())?;
        }
        self.unread
            .iter()
            .try_for_each(|unread| write!(out, "\nnot read: {} ({})", unread.file.display(), unread.reason))
    }
}

/// A word of a shell's command line.
pub fn quoted(text: &str) -> String {
    let is_plain = text.chars().all(|letter| letter.is_alphanumeric() || "=,_-.:/".contains(letter));
    if is_plain { text.to_owned() } else { format!("'{}'", text.replace('\'', "'\\''")) }
}

impl fmt::Display for Guess {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        write!(out, "{} ({})", self.file.display(), self.layout)?;
        let rows: Vec<[String; 4]> = self.fields.iter().map(table_row).collect();
        let head = ["field", "column", "certainty", "examples"].map(str::to_owned);
        let width = |at: usize| rows.iter().chain([&head]).map(|row| row[at].chars().count()).max().unwrap_or(0);
        let widths = [width(0), width(1), width(2)];
        for row in [&head].into_iter().chain(&rows).filter(|_| !rows.is_empty()) {
            let [field, column, certainty, examples] = row;
            let line =
                format!("  {field:0$}  {column:1$}  {certainty:2$}  {examples}", widths[0], widths[1], widths[2]);
            write!(out, "\n{}", line.trim_end())?;
        }
        if !self.other_columns.is_empty() {
            write!(out, "\n  other columns: {}", shown_names(&self.other_columns))?;
        }
        self.notes.iter().try_for_each(|note| write!(out, "\n  note: {note}"))
    }
}

fn table_row(guess: &FieldGuess) -> [String; 4] {
    let FieldGuess { field, column, certainty, examples, .. } = guess;
    [field.clone(), shown(column), certainty.name().into(), shown_examples(examples)]
}

fn shown_names(names: &[String]) -> String {
    let shown: Vec<String> = names.iter().take(MAX_SHOWN_NAMES).map(|name| shown(name)).collect();
    match names.len().saturating_sub(MAX_SHOWN_NAMES) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

pub fn shown_examples(examples: &[String]) -> String {
    examples.iter().map(|example| shown(example)).collect::<Vec<_>>().join(" | ")
}

/// One line of limited length.
pub fn shown(text: &str) -> String {
    let line: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(MAX_SHOWN_CHARS) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line,
    }
}
