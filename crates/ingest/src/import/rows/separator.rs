//! Delimiter of a table, from its first lines: the one that divides each line into the same number of cells. Titles and
//! descriptions have commas too, but not the same number in each line.

use std::path::Path;

use super::super::lines::Lines;
use super::super::table::SEPARATORS;
use souk_io::error::Result;

/// Lines looked at.
const MAX_LINES: usize = 50;

/// Delimiter of a table; `None` if none divides all lines alike.
pub fn steady_separator(file: &Path) -> Result<Option<u8>> {
    let mut lines = Lines::open(file)?;
    let mut first: Vec<Vec<u8>> = Vec::new();
    while first.len() < MAX_LINES {
        let Some(line) = lines.next()? else { break };
        if !line.bytes.trim_ascii().is_empty() {
            first.push(line.bytes);
        }
    }
    let count = |separator: u8| {
        let counts: Vec<usize> = first.iter().map(|line| count_outside_quotes(line, separator)).collect();
        counts.first().copied().filter(|count| *count > 0 && counts.iter().all(|other| other == count))
    };
    let steady = SEPARATORS.into_iter().filter_map(|separator| Some((separator, count(separator)?)));
    // of several, the most frequent; a line alone says little
    let found = steady.max_by_key(|(_, count)| *count).map(|(separator, _)| separator);
    Ok(found.filter(|_| first.len() > 1))
}

fn count_outside_quotes(line: &[u8], separator: u8) -> usize {
    let mut inside = false;
    let outside = |byte: &&u8| {
        inside ^= **byte == b'"';
        !inside && **byte == separator
    };
    line.iter().filter(outside).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_delimiter_divides_all_lines_alike() {
        let home = tempfile::tempdir().unwrap();
        let of = |text: &str| {
            let file = home.path().join("a.txt");
            std::fs::write(&file, text).unwrap();
            steady_separator(&file).unwrap()
        };
        assert_eq!(of("7\tDesk, oak, brown, 120 cm\n8\tLamp\n"), Some(b'\t'));
        assert_eq!(of("id;name;price\n7;\"Desk; oak\";1,50\n8;Lamp;2,50\n"), Some(b';'));
        assert_eq!(of("id,name\n7,Desk\n"), Some(b','));
        assert_eq!(of("id,name\n7,\"Desk\noak\"\n"), None, "a cell of two lines");
        assert_eq!((of("7,Desk\n"), of("")), (None, None));
    }
}
