//! What is known of English shop words: the units beside a number, the words that say nothing, and plurals. Takes folded
//! lower-case words, gives the form that is searched. It never joins two words that a shopper would tell apart.

/// The one spelling of a unit that stands behind a number. `spaced` when a space stands between them, where a single
/// letter is more often something else.
pub fn unit(word: &str, spaced: bool) -> Option<&'static str> {
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
        "m" | "meter" | "meters" | "metre" | "metres" if !spaced || word.len() > 1 => "m",
        "g" | "gram" | "grams" if !spaced || word.len() > 1 => "g",
        "l" if !spaced => "l",
        "a" if !spaced => "amp",
        _ => return None,
    })
}

/// Words that stand in every text and say nothing about an item. `no` and `not` do.
pub fn says_nothing(word: &str) -> bool {
    const WORDS: [&str; 29] = [
        "a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "from", "if", "in", "into", "is", "it", "of",
        "on", "or", "that", "the", "their", "then", "there", "these", "this", "to", "was", "with",
    ];
    word.len() <= 5 && WORDS.binary_search(&word).is_ok()
}

/// Plurals that no rule gets right, and words that end like plurals and are none.
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

/// The singular of a lower-case word: the part to keep and what to put behind it.
pub fn singular(word: &str) -> (&str, &'static str) {
    if word.len() <= 3 || !word.is_ascii() {
        return match word {
            "men" => ("", "man"),
            _ => (word, ""),
        };
    }
    if let Ok(at) = IRREGULAR.binary_search_by(|(plural, _)| (*plural).cmp(word)) {
        return ("", IRREGULAR[at].1);
    }
    let ends = |ending: &str| word.ends_with(ending);
    let without = |bytes: usize| &word[..word.len() - bytes];
    match () {
        // movie and movies, battery and batteries: both become y
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
    fn lists_are_in_order_for_their_search() {
        assert!(IRREGULAR.is_sorted());
        assert!(["a", "but", "their", "with"].into_iter().all(says_nothing));
        assert!(!["no", "not", "desk"].into_iter().any(says_nothing));
    }

    #[test]
    fn a_plural_and_its_singular_agree() {
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
            let written = |word| [singular(word).0, singular(word).1].concat();
            assert_eq!(written(plural), written(single));
        }
    }

    #[test]
    fn words_that_only_look_like_plurals_stay() {
        for word in ["brass", "lens", "gas", "bus", "stainless", "canvas", "chassis", "cactus", "christmas", "series"] {
            assert_eq!([singular(word).0, singular(word).1].concat(), word);
        }
    }
}
