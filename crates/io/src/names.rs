//! Names of fields and columns in errors: lists that stay short, and the nearest name to a misspelt one.

const MAX_SHOWN_NAMES: usize = 20;
const MAX_SHOWN_CHARS: usize = 40;
/// Upper bounds of the names that are compared, and of their letters.
const MAX_COMPARED_NAMES: usize = 10_000;
const MAX_COMPARED_CHARS: usize = 64;

/// Names in a row, shortened if they are many or long.
pub struct NameList {
    pub text: String,
    pub is_cut: bool,
}

impl NameList {
    pub fn of<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> Self {
        let (count, mut is_cut) = (names.len(), names.len() > MAX_SHOWN_NAMES);
        let mut short = |name: &'a str| match name.char_indices().nth(MAX_SHOWN_CHARS) {
            Some((end, _)) => {
                is_cut = true;
                format!("{}...", &name[..end])
            }
            None => name.to_owned(),
        };
        let mut text = names.take(MAX_SHOWN_NAMES).map(&mut short).collect::<Vec<_>>().join(", ");
        if count > MAX_SHOWN_NAMES {
            text += &format!(" and {} more", count - MAX_SHOWN_NAMES);
        }
        Self { text, is_cut }
    }
}

/// ` (did you mean …?)` with the name that is nearest to `wanted` by edit distance, if that is less than half its length; else empty.
pub fn did_you_mean<'a>(wanted: &str, names: impl Iterator<Item = &'a str>) -> String {
    // a request can name a field of any length
    if wanted.chars().nth(MAX_COMPARED_CHARS).is_some() {
        return String::new();
    }
    let near =
        names.take(MAX_COMPARED_NAMES).map(|name| (distance(wanted, name), name)).min_by_key(|(distance, _)| *distance);
    match near {
        Some((distance, name)) if 2 * distance < wanted.chars().count() => format!(" (did you mean `{name}`?)"),
        _ => String::new(),
    }
}

/// Edit distance in lower case.
fn distance(wanted: &str, name: &str) -> usize {
    let name: Vec<char> = name.to_lowercase().chars().take(MAX_COMPARED_CHARS).collect();
    let mut row: Vec<usize> = (0..=name.len()).collect();
    for (i, letter) in wanted.to_lowercase().chars().enumerate() {
        let mut corner = std::mem::replace(&mut row[0], i + 1);
        for (j, other) in name.iter().enumerate() {
            let changed = corner + usize::from(letter != *other);
            corner = row[j + 1];
            row[j + 1] = changed.min(corner + 1).min(row[j] + 1);
        }
    }
    row[name.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_names_are_shortened() {
        let list = |names: &[&str]| {
            let NameList { text, is_cut } = NameList::of(names.iter().copied());
            (text, is_cut)
        };
        assert_eq!(list(&["a", "b"]), ("a, b".into(), false));
        assert_eq!(list(&[]), (String::new(), false));
        assert_eq!(list(&["é".repeat(41).as_str()]), (format!("{}...", "é".repeat(40)), true));
        let twenty = ["x"; 20].join(", ");
        assert_eq!(list(&["x"; 20]), (twenty.clone(), false));
        assert_eq!(list(&["x"; 23]), (format!("{twenty} and 3 more"), true));
    }

    #[test]
    fn the_nearest_name_is_suggested_unless_it_is_far() {
        let names = ["title", "Brand", "brand_name", "attributes.product_type"];
        for (wanted, expected) in [
            ("brnad", " (did you mean `Brand`?)"),
            ("attributes.prodct_type", " (did you mean `attributes.product_type`?)"),
            ("titel", " (did you mean `title`?)"),
            ("colour", ""),
        ] {
            assert_eq!(did_you_mean(wanted, names.into_iter()), expected, "{wanted}");
        }
        assert_eq!(did_you_mean("brand", std::iter::empty()), "");
        let long = "b".repeat(MAX_COMPARED_CHARS);
        assert!(did_you_mean(&long, [long.as_str()].into_iter()).contains(&long));
        assert_eq!(did_you_mean(&format!("{long}b"), [long.as_str()].into_iter()), "");
    }

    #[test]
    fn distances_count_changes() {
        for (a, b, expected) in [("kitten", "sitting", 3), ("", "abc", 3), ("abc", "", 3), ("Same", "sAME", 0)] {
            assert_eq!(distance(a, b), expected, "{a} {b}");
        }
    }
}
