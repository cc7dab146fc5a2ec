//! Suggests a name in the place of a misspelt one.

/// Upper bounds of the names that are compared, and of their letters.
const MAX_NAMES: usize = 10_000;
const MAX_CHARS: usize = 64;

/// ` (did you mean …?)` with the name that is nearest to `wanted` by edit distance, if that is less than half its length; else empty.
pub fn did_you_mean<'a>(wanted: &str, names: impl Iterator<Item = &'a str>) -> String {
    // a request can name a field of any length
    if wanted.chars().nth(MAX_CHARS).is_some() {
        return String::new();
    }
    let near = names.take(MAX_NAMES).map(|name| (distance(wanted, name), name)).min_by_key(|(distance, _)| *distance);
    match near {
        Some((distance, name)) if 2 * distance < wanted.chars().count() => format!(" (did you mean `{name}`?)"),
        _ => String::new(),
    }
}

/// Edit distance in lower case.
fn distance(wanted: &str, name: &str) -> usize {
    let name: Vec<char> = name.to_lowercase().chars().take(MAX_CHARS).collect();
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
        let long = "b".repeat(MAX_CHARS);
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
