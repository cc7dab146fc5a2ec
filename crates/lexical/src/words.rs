//! Word lists for English product text: units, stop words and plurals. Takes folded lower-case words, returns their
//! index form. Never merges two words with different meanings for a shopper.

/// Canonical spelling of a unit after a number. `is_spaced`: a space separates them, so that a single letter is rarely
/// a unit.
pub fn unit(word: &str, is_spaced: bool) -> Option<&'static str> {
    Some(match word {
        "in" | "inch" | "inches" | "ins" => "in",
        "ft" | "foot" | "feet" | "fts" => "ft",
        "yd" | "yds" | "yard" | "yards" => "yd",
        "mm" | "millimeter" | "millimeters" | "millimetre" | "millimetres" => "mm",
        "cm" | "centimeter" | "centimeters" | "centimetre" | "centimetres" => "cm",
        "lb" | "lbs" | "pound" | "pounds" => "lb",
        "oz" | "ounce" | "ounces" => "oz",
        "kg" | "kgs" | "kilogram" | "kilograms" | "kilo" | "kilos" => "kg",
        "gal" | "gals" | "gallon" | "gallons" => "gal",
        "qt" | "qts" | "quart" | "quarts" => "qt",
        "ml" | "milliliter" | "milliliters" | "millilitre" | "millilitres" => "ml",
        "liter" | "liters" | "litre" | "litres" | "ltr" => "l",
        "v" | "volt" | "volts" => "v",
        "w" | "watt" | "watts" => "w",
        "amp" | "amps" | "ampere" | "amperes" => "amp",
        "mah" => "mah",
        "hp" | "horsepower" => "hp",
        "btu" | "btus" => "btu",
        "gb" | "gigabyte" | "gigabytes" => "gb",
        "tb" | "terabyte" | "terabytes" => "tb",
        "mb" | "megabyte" | "megabytes" => "mb",
        "ghz" => "ghz",
        "hz" | "hertz" => "hz",
        "pk" | "pack" | "packs" => "pack",
        "pc" | "pcs" | "piece" | "pieces" => "piece",
        "ct" | "count" => "count",
        "ga" | "gauge" => "gauge",
        "sq" | "square" => "sq",
        "deg" | "degree" | "degrees" => "degree",
        "m" | "meter" | "meters" | "metre" | "metres" if !is_spaced || word.len() > 1 => "m",
        "g" | "gram" | "grams" if !is_spaced || word.len() > 1 => "g",
        "l" if !is_spaced => "l",
        "a" if !is_spaced => "amp",
        _ => return None,
    })
}

const STOP_WORDS: [&str; 29] = [
    "a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "from", "if", "in", "into", "is", "it", "of", "on",
    "or", "that", "the", "their", "then", "there", "these", "this", "to", "was", "with",
];

/// Returns whether a word is a stop word. `no` and `not` are not, because they change the meaning.
pub fn is_stop_word(word: &str) -> bool {
    // most words need no search
    word.len() <= 5 && word.starts_with(['a', 'b', 'f', 'i', 'o', 't', 'w']) && STOP_WORDS.binary_search(&word).is_ok()
}

/// Everyday English of four or more letters, in the singular.
const EVERYDAY: &str = "
    about above after again against alternative always another anybody anyone anything because before being
    below best better between both bring cannot cheap cheaper could doing done down during each else enough even
    ever every everything expensive find give good great have having help here instead just keep less like look
    looking make many maybe more most much must need needed never nice only other ours over please same send
    should similar some somebody someone something such take than thank them they thing things those through
    under until upon very want wanted were what when where which while whole will within without work would your
";

/// Returns whether a word is everyday English: no typo, although no item may have it.
pub fn is_everyday_word(word: &str) -> bool {
    EVERYDAY.split_ascii_whitespace().any(|everyday| everyday == word)
}

/// Irregular plurals, and singular words that end like a plural.
const IRREGULAR: [(&str, &str); 44] = [
    ("always", "always"),
    ("atlas", "atlas"),
    ("axes", "axe"),
    ("bias", "bias"),
    ("buses", "bus"),
    ("calves", "calf"),
    ("canvas", "canvas"),
    ("canvases", "canvas"),
    ("children", "child"),
    ("christmas", "christmas"),
    ("elves", "elf"),
    ("feet", "foot"),
    ("gases", "gas"),
    ("geese", "goose"),
    ("halves", "half"),
    ("heroes", "hero"),
    ("hooves", "hoof"),
    ("irises", "iris"),
    ("knives", "knife"),
    ("leaves", "leaf"),
    ("lens", "lens"),
    ("lenses", "lens"),
    ("loaves", "loaf"),
    ("men", "man"),
    ("mens", "man"),
    ("mice", "mouse"),
    ("mosquitoes", "mosquito"),
    ("news", "news"),
    ("people", "people"),
    ("plus", "plus"),
    ("potatoes", "potato"),
    ("scarves", "scarf"),
    ("series", "series"),
    ("shelves", "shelf"),
    ("species", "species"),
    ("teeth", "tooth"),
    ("thermos", "thermos"),
    ("thermoses", "thermos"),
    ("thieves", "thief"),
    ("tomatoes", "tomato"),
    ("wives", "wife"),
    ("wolves", "wolf"),
    ("women", "woman"),
    ("womens", "woman"),
];

/// Last letters of the words in `IRREGULAR`: most words need no search.
fn may_be_irregular(word: &str) -> bool {
    ["s", "en", "eet", "eeth", "ice", "eese", "ople"].iter().any(|end| word.ends_with(end))
}

/// Singular of a lower-case word, as the prefix to keep and the ending to append.
pub fn singular(word: &str) -> (&str, &'static str) {
    if word.len() <= 3 || !word.is_ascii() {
        return match word {
            "men" => ("", "man"),
            _ => (word, ""),
        };
    }
    if may_be_irregular(word)
        && let Ok(at) = IRREGULAR.binary_search_by(|(plural, _)| (*plural).cmp(word))
    {
        return ("", IRREGULAR[at].1);
    }
    let ends = |ending: &str| word.ends_with(ending);
    let without = |bytes: usize| &word[..word.len() - bytes];
    match () {
        // movie and movies, battery and batteries: all end in y
        () if ends("ies") && word.len() > 4 => (without(3), "y"),
        () if ends("ie") && word.len() > 4 => (without(2), "y"),
        () if ["ss", "us", "is"].iter().any(|end| ends(end)) => (word, ""),
        () if ["sses", "ches", "shes", "xes", "zzes"].iter().any(|end| ends(end)) => (without(2), ""),
        () if ends("s") => (without(1), ""),
        () => (word, ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_sorted_for_binary_search() {
        assert!(IRREGULAR.is_sorted() && STOP_WORDS.is_sorted());
        assert!(IRREGULAR.iter().all(|(plural, _)| may_be_irregular(plural)));
        assert!(STOP_WORDS.into_iter().all(is_stop_word));
        assert!(!["no", "not", "desk"].into_iter().any(is_stop_word));
        assert!(["about", "need", "which", "your"].into_iter().all(is_everyday_word));
    }

    #[test]
    fn plural_and_singular_have_one_form() {
        for (plural, single) in [
            ("batteries", "battery"),
            ("boxes", "box"),
            ("brushes", "brush"),
            ("cases", "case"),
            ("cookies", "cookie"),
            ("dresses", "dress"),
            ("glasses", "glass"),
            ("hoses", "hose"),
            ("lenses", "lens"),
            ("mattresses", "mattress"),
            ("movies", "movie"),
            ("shelves", "shelf"),
            ("shoes", "shoe"),
            ("sizes", "size"),
            ("sleeves", "sleeve"),
            ("watches", "watch"),
        ] {
            let stem = |word| [singular(word).0, singular(word).1].concat();
            assert_eq!(stem(plural), stem(single));
        }
    }

    #[test]
    fn singular_words_in_s_are_kept() {
        for word in ["brass", "lens", "gas", "bus", "stainless", "canvas", "chassis", "cactus", "christmas", "series"] {
            assert_eq!([singular(word).0, singular(word).1].concat(), word);
        }
    }
}
