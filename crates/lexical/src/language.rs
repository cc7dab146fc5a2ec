//! Languages of product text: stop words, articles before an apostrophe, and one form for singular and plural. Takes folded lower-case
//! words (no accents).
//!
//! The rules undo plurals and little else, because a rule that undoes more joins products: Lucene's light stemmers give `puerto` (port) and
//! `puerta` (door) one form, and give `lampe` and `lampes` two, because they leave short words alone. In Italian, singular and plural
//! differ in their last vowel, so that it is left out.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::words;

/// Language of the texts of items and queries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Language {
    /// Stop words and plurals of English.
    #[default]
    English,
    /// German.
    German,
    /// French.
    French,
    /// Spanish.
    Spanish,
    /// Italian.
    Italian,
    /// No stop words and no plurals: for other languages, and for catalogues in several.
    None,
}

/// Words that articles and prepositions become before an apostrophe.
const ELISIONS: [&str; 18] = [
    "all", "c", "d", "dall", "dell", "j", "jusqu", "l", "lorsqu", "m", "n", "nell", "qu", "quell", "s", "sull", "t",
    "un",
];

impl Language {
    pub fn is_stop_word(self, word: &str) -> bool {
        let list = match self {
            Self::English => return words::is_stop_word(word),
            Self::None => return false,
            Self::German => {
                "aus bei das dem den der des die ein eine einem einen einer eines fur im in ist mit oder und vom von zu zum zur"
            }
            Self::French => "a au aux avec ce ces de des du en et la le les ou par pour sur un une",
            Self::Spanish => "a al con de del e el en la las lo los o para por su sus un una unas unos y",
            Self::Italian => {
                "a ai al alla alle con da dal dei del della delle di e gli i il in la le lo nel o per su un una uno"
            }
        };
        word.len() <= 5 && list.split(' ').any(|stop| stop == word)
    }

    /// The word without an article before its apostrophe.
    pub fn without_article(self, word: &str) -> &str {
        match word.split_once('\'') {
            Some((article, rest))
                if matches!(self, Self::French | Self::Italian) && ELISIONS.binary_search(&article).is_ok() =>
            {
                rest
            }
            _ => word,
        }
    }

    /// Common form of singular and plural, as the prefix to keep and the ending to append.
    pub fn stem(self, word: &str) -> (&str, &'static str) {
        let is_latin = word.is_ascii();
        match self {
            Self::English => words::singular(word),
            Self::German if is_latin => (german(word), ""),
            Self::French if is_latin => french(word),
            Self::Spanish if is_latin => spanish(word),
            Self::Italian if is_latin => (italian(word), ""),
            _ => (word, ""),
        }
    }

    /// Whether a word is everyday language: no typo, although no item may have it. Known of English only.
    pub fn is_everyday_word(self, word: &str) -> bool {
        self == Self::English && words::is_everyday_word(word)
    }
}

/// Nouns with a plural in -er; other words in -er have none, such as `bohrer`.
const PLURAL_IN_ER: [&str; 30] = [
    "bad", "band", "bild", "blatt", "brett", "buch", "dach", "fach", "fass", "fell", "feld", "glas", "haus", "holz",
    "huhn", "kind", "kleid", "korn", "lamm", "land", "licht", "mann", "nest", "rad", "rind", "schild", "schloss",
    "schwert", "tal", "tuch",
];
/// Shortest form that is left of a word.
const MIN_LETTERS: usize = 3;

fn german(word: &str) -> &str {
    let cut = |bytes: usize| Some(&word[..word.len().checked_sub(bytes).filter(|left| *left >= MIN_LETTERS)?]);
    let ends = |ending: &str| word.ends_with(ending);
    let in_er = |ending: &str| {
        let stem = word.strip_suffix(ending)?;
        PLURAL_IN_ER.iter().any(|noun| stem.ends_with(noun)).then_some(stem)
    };
    let found = match () {
        () if ends("ern") => in_er("ern").or(cut(1)),
        () if ends("er") => in_er("er"),
        () if ends("innen") => cut(3),
        () if ends("en") || ends("es") => cut(2),
        () if ends("e") || ends("eln") => cut(1),
        () if ["ss", "us", "is"].iter().any(|end| ends(end)) || word.len() < 5 => None,
        () if ends("s") => cut(1),
        () => None,
    };
    found.unwrap_or(word)
}

fn french(word: &str) -> (&str, &'static str) {
    let cut = |bytes: usize| &word[..word.len() - bytes];
    let ends = |ending: &str| word.ends_with(ending);
    match () {
        () if word.len() <= MIN_LETTERS || ends("ss") || ends("us") => (word, ""),
        // châteaux and tuyaux, but chevaux
        () if ends("eaux") || ends("yaux") => (cut(1), ""),
        () if ends("aux") && word.len() > 4 => (cut(2), "l"),
        () if ends("s") || ends("eux") || ends("oux") => (cut(1), ""),
        () => (word, ""),
    }
}

fn spanish(word: &str) -> (&str, &'static str) {
    let cut = |bytes: usize| &word[..word.len() - bytes];
    let ends = |ending: &str| word.ends_with(ending);
    match () {
        () if word.len() <= MIN_LETTERS => (word, ""),
        () if ends("ces") && word.len() > 4 => (cut(3), "z"),
        // redes and red, but llaves and llave: the last e is left out of both
        () if ends("es") && word.len() > 4 => (cut(2), ""),
        () if ends("e") && word.len() > 4 => (cut(1), ""),
        () if ends("as") || ends("os") => (cut(1), ""),
        () => (word, ""),
    }
}

fn italian(word: &str) -> &str {
    let cut = |bytes: usize| Some(&word[..word.len().checked_sub(bytes).filter(|left| *left >= MIN_LETTERS)?]);
    let found = match word.as_bytes() {
        [.., b'i' | b'h', b'e' | b'i'] | [.., b'i', b'a' | b'o'] => cut(2).or(cut(1)),
        [.., b'e' | b'i' | b'a' | b'o'] => cut(1),
        _ => None,
    };
    found.unwrap_or(word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LexicalOptions, terms_in};

    const PLURALS: [(Language, &str); 4] = [
        (
            Language::German,
            "Lampe Lampen, Schuh Schuhe Schuhen, Stuhl Stühle, Kabel Kabeln, Bohrer Bohrern, Haus Häuser Häusern Hauses, Handtuch Handtücher, \
             Pfanne Pfannen, Gardine Gardinen, Uhr Uhren, Hose Hosen, Auto Autos, T-Shirt T-Shirts, Glas Gläser, Läuferin Läuferinnen, \
             große großes großen, Bluse Blusen, Bett Betten, Messer Messern, Rucksack Rucksäcke",
        ),
        (
            Language::French,
            "lampe lampes, sac sacs, château châteaux, tuyau tuyaux, cheval chevaux, journal journaux, bijou bijoux, jeu jeux, tasse tasses, \
             noire noires, outil outils, verre verres, rideau rideaux",
        ),
        (
            Language::Spanish,
            "mesa mesas, zapato zapatos, luz luces, lápiz lápices, llave llaves, red redes, camión camiones, grande grandes, árbol árboles, \
             reloj relojes, cable cables, sartén sartenes",
        ),
        (
            Language::Italian,
            "lampada lampade, tavolo tavoli, sedia sedie, orologio orologi, luce luci, giacca giacche, arancia arance, libro libri, \
             coltello coltelli, bottiglia bottiglie, lago laghi",
        ),
    ];
    /// Words that must not meet.
    const DISTINCT: [(Language, &str); 4] = [
        (Language::German, "Leder LED, Poster Post, Boxer Box, Toner Ton, Mixer Mix, Reis Rei, Kaktus Kaktu"),
        (Language::French, "port porte, pot pote, cours course, bus bu, prix pri"),
        (Language::Spanish, "puerto puerta, caso casa, mesa mes, rojo roja"),
        (Language::Italian, "sale sole, caffè caffettiera"),
    ];

    #[test]
    fn plural_and_singular_have_one_form() {
        for (language, groups) in PLURALS {
            for group in groups.split(',') {
                let forms: Vec<_> = group.split_whitespace().map(|word| terms_in(language, word)).collect();
                assert!(forms.iter().all(|form| *form == forms[0]), "{language:?}: {group}: {forms:?}");
            }
        }
    }

    #[test]
    fn other_words_stay_apart() {
        for (language, groups) in DISTINCT {
            for group in groups.split(',') {
                let mut forms: Vec<_> = group.split_whitespace().map(|word| terms_in(language, word)).collect();
                let num = forms.len();
                forms.sort_unstable();
                forms.dedup();
                assert_eq!(forms.len(), num, "{language:?}: {group}");
            }
        }
    }

    #[test]
    fn function_words_and_articles_are_left_out() {
        assert_eq!(terms_in(Language::French, "Tasses à café pour l'eau"), ["tasse", "cafe", "eau"]);
        assert_eq!(terms_in(Language::Italian, "bottiglie dell'acqua"), ["bottigl", "acqu"]);
        assert_eq!(terms_in(Language::German, "Lampen für die Küche"), ["lamp", "kuch"]);
        assert_eq!(terms_in(Language::Spanish, "zapatos de niño"), ["zapato", "nino"]);
        assert_eq!(terms_in(Language::None, "tables for the kitchen"), ["tables", "for", "the", "kitchen"]);
        assert_eq!(terms_in(Language::English, "rock'n'roll"), ["rocknroll"]);
        assert!(ELISIONS.is_sorted());
    }

    #[test]
    fn settings_name_the_language() {
        let options: LexicalOptions = serde_json::from_str(r#"{"language": "german"}"#).unwrap();
        assert_eq!(options.language, Language::German);
        assert_eq!(LexicalOptions::default().language, Language::English);
    }
}
