//! Analyser of product text. Takes any text, gives its index terms: lower case, no accents, one spelling for sizes,
//! units and model numbers, singular. Never fails; a term is never longer than `MAX_TERM_BYTES`.
//!
//! | written | terms |
//! |---|---|
//! | `3/8 in.` `3/8"` `3/8-inch` | `3/8` `in` |
//! | `2 ft. x 4 ft.` `2'x4'` | `2` `ft` `4` `ft` |
//! | `2x4` `2 x 4` | `2` `4` |
//! | `WD-40` `wd40` | `wd` `wd40` `40` |
//! | `Women's glasses` | `woman` `glass` |
//! | `洗濯機 白色` | `洗濯` `濯機` `白色` |
//!
//! Stop words and plurals are those of a language (`language`). Chinese, Japanese and Korean text, which has no spaces between words,
//! becomes its pairs of neighbouring letters.

use super::language::Language;
use super::words;

/// Longest term; longer ones are truncated, because nobody searches for them.
const MAX_TERM_BYTES: usize = 64;

/// Terms of a text, in buffers that are reused for the next one.
#[derive(Clone)]
pub struct Terms {
    language: Language,
    folded: String,
    pieces: Vec<Piece>,
    /// Concatenated terms.
    text: String,
    /// End of each term in `text`.
    ends: Vec<usize>,
}

/// Run of letters or digits, or a sign for a unit.
#[derive(Clone, Copy)]
struct Piece {
    kind: Kind,
    gap: Gap,
    start: usize,
    end: usize,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Word,
    /// Letters of a script without spaces.
    Ideographs,
    Number,
    /// `"` after a number.
    Inches,
    /// `'` after a number.
    Feet,
}

/// Separator before a piece.
#[derive(Clone, Copy, PartialEq)]
enum Gap {
    Nothing,
    Hyphen,
    Other,
}

impl Terms {
    pub fn new(language: Language) -> Self {
        let (folded, pieces, text, ends) = (String::new(), Vec::new(), String::new(), Vec::new());
        Self { language, folded, pieces, text, ends }
    }

    /// Replaces the terms by those of `text`.
    pub fn read(&mut self, text: &str) {
        self.folded.clear();
        self.pieces.clear();
        self.text.clear();
        self.ends.clear();
        fold(text, &mut self.folded);
        self.split();
        let mut at = 0;
        while at < self.pieces.len() {
            at = self.take(at);
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &str> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| &self.text[start..*end])
    }

    /// The text in lower case, without accents.
    pub fn folded(&self) -> &str {
        &self.folded
    }

    pub fn len(&self) -> usize {
        self.ends.len()
    }

    pub fn get(&self, at: usize) -> &str {
        let start = if at == 0 { 0 } else { self.ends[at - 1] };
        &self.text[start..self.ends[at]]
    }

    /// Splits the folded text into pieces.
    fn split(&mut self) {
        let mut gap = Gap::Other;
        let mut at = 0;
        while let Some(letter) = self.folded[at..].chars().next() {
            let rest = &self.folded[at..];
            let after_number = gap == Gap::Nothing && self.pieces.last().is_some_and(|last| last.kind == Kind::Number);
            let (kind, length) = match letter {
                '0'..='9' => (Kind::Number, number_length(rest)),
                '.' if gap == Gap::Other && starts_with_digit(&rest[1..]) => {
                    (Kind::Number, 1 + number_length(&rest[1..]))
                }
                '\'' if after_number && rest[1..].starts_with('\'') => (Kind::Inches, 2),
                '\'' if after_number => (Kind::Feet, 1),
                '"' if after_number => (Kind::Inches, 1),
                letter if is_ideograph(letter) => {
                    let end = rest.find(|letter| !is_ideograph(letter)).unwrap_or(rest.len());
                    (Kind::Ideographs, end)
                }
                letter if letter.is_alphanumeric() => (Kind::Word, word_length(rest)),
                letter => {
                    gap = if letter == '-' && gap == Gap::Nothing { Gap::Hyphen } else { Gap::Other };
                    at += letter.len_utf8();
                    continue;
                }
            };
            self.pieces.push(Piece { kind, gap, start: at, end: at + length });
            gap = Gap::Nothing;
            at += length;
        }
    }

    /// Appends the terms of the piece at `at` and of the pieces that belong to it. Returns the index of the next piece.
    fn take(&mut self, at: usize) -> usize {
        let piece = self.pieces[at];
        match piece.kind {
            Kind::Number => {
                self.push_number(piece);
                let next = at + 1;
                if let Some(unit) = self.unit(next) {
                    self.push(unit);
                    return self.skip_times(next + 1);
                }
                if self.skip_times(next) > next {
                    return next + 1;
                }
                self.push_code(at);
                next
            }
            Kind::Word => {
                self.push_word(piece);
                self.push_code(at);
                at + 1
            }
            Kind::Ideographs => {
                self.push_pairs(piece);
                at + 1
            }
            Kind::Inches | Kind::Feet => at + 1,
        }
    }

    /// Unit at `at`, after a number.
    fn unit(&self, at: usize) -> Option<&'static str> {
        let piece = self.pieces.get(at)?;
        match piece.kind {
            Kind::Inches => Some("in"),
            Kind::Feet => Some("ft"),
            Kind::Number | Kind::Ideographs => None,
            Kind::Word => words::unit(self.text_of(*piece), piece.gap == Gap::Other),
        }
    }

    /// Skips the `x` between two sizes.
    fn skip_times(&self, at: usize) -> usize {
        let times = |piece: &Piece| piece.kind == Kind::Word && self.text_of(*piece) == "x";
        let number = |piece: &Piece| piece.kind == Kind::Number;
        let between = self.pieces.get(at).is_some_and(times) && self.pieces.get(at + 1).is_some_and(number);
        at + usize::from(between)
    }

    /// Appends a model number as one term, in addition to its parts: letters and digits with at most a hyphen between
    /// them.
    fn push_code(&mut self, at: usize) {
        let is_start = at == 0 || self.pieces[at].gap == Gap::Other;
        let (mut end, mut num_words, mut num_numbers) = (at, 0, 0);
        while let Some(piece) = self.pieces.get(end).filter(|piece| end == at || piece.gap != Gap::Other) {
            match piece.kind {
                Kind::Word => num_words += 1,
                Kind::Number => num_numbers += 1,
                Kind::Inches | Kind::Feet | Kind::Ideographs => break,
            }
            end += 1;
        }
        if !is_start || num_words == 0 || num_numbers == 0 {
            return;
        }
        for piece in at..end {
            let Piece { start, end, .. } = self.pieces[piece];
            self.text.push_str(&self.folded[start..end]);
        }
        self.finish();
    }

    fn text_of(&self, piece: Piece) -> &str {
        &self.folded[piece.start..piece.end]
    }

    fn push(&mut self, term: &str) {
        self.text.push_str(term);
        self.finish();
    }

    fn push_word(&mut self, piece: Piece) {
        let mut word = &self.folded[piece.start..piece.end];
        if self.language == Language::English {
            word = word.strip_suffix("'s").unwrap_or(word);
        }
        word = self.language.without_article(word);
        if self.language.is_stop_word(word) {
            return;
        }
        if word.contains('\'') {
            self.text.extend(word.chars().filter(|letter| *letter != '\''));
        } else {
            let (stem, ending) = self.language.stem(word);
            self.text.push_str(stem);
            self.text.push_str(ending);
        }
        self.finish();
    }

    /// Appends each two neighbouring letters, or the letter if there is only one.
    fn push_pairs(&mut self, piece: Piece) {
        let letters: Vec<char> = self.folded[piece.start..piece.end].chars().collect();
        for pair in letters.windows(letters.len().min(2)) {
            self.text.extend(pair);
            self.finish();
        }
    }

    fn push_number(&mut self, piece: Piece) {
        let mut number = &self.folded[piece.start..piece.end];
        if number.contains('.') && !number.contains('/') {
            number = number.trim_end_matches('0').trim_end_matches('.');
        }
        if number.starts_with('.') {
            self.text.push('0');
        }
        self.text.extend(number.chars().filter(|letter| *letter != ','));
        self.finish();
    }

    /// Ends the term at the end of `text`, truncated to `MAX_TERM_BYTES`.
    fn finish(&mut self) {
        let start = self.ends.last().copied().unwrap_or(0);
        if self.text.len() > start + MAX_TERM_BYTES {
            let cut = (start..=start + MAX_TERM_BYTES).rev().find(|at| self.text.is_char_boundary(*at));
            self.text.truncate(cut.unwrap_or(start));
        }
        if self.text.len() > start {
            self.ends.push(self.text.len());
        }
    }
}

fn starts_with_digit(text: &str) -> bool {
    text.starts_with(|letter: char| letter.is_ascii_digit())
}

/// Whether a letter is Chinese, Japanese or Korean.
fn is_ideograph(letter: char) -> bool {
    matches!(letter, '\u{3040}'..='\u{30ff}' | '\u{3400}'..='\u{9fff}' | '\u{ac00}'..='\u{d7af}' | '\u{f900}'..='\u{faff}')
}

/// Length of a number such as `3`, `1/2`, `0.5` or `1,000`.
fn number_length(text: &str) -> usize {
    let bytes = text.as_bytes();
    let digits = |from: usize| bytes[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let mut length = digits(0);
    loop {
        let more = match bytes.get(length) {
            Some(b'.' | b'/') => digits(length + 1),
            Some(b',') => Some(digits(length + 1)).filter(|count| *count == 3).unwrap_or(0),
            _ => 0,
        };
        if more == 0 {
            return length;
        }
        length += 1 + more;
    }
}

/// Length of a word: letters, and apostrophes between them.
fn word_length(text: &str) -> usize {
    let mut letters = text.char_indices().peekable();
    while let Some((at, letter)) = letters.next() {
        let joins = letter == '\'' && letters.peek().is_some_and(|(_, next)| next.is_alphabetic());
        if letter.is_ascii_digit() || is_ideograph(letter) || !(letter.is_alphanumeric() || joins) {
            return at;
        }
    }
    text.len()
}

/// ASCII letter of each of U+00C0 to U+017F; a capital stands for two letters (see `latin`).
const LATIN: &[u8; 192] = b"\
    aaaaaaAceeeeiiiidnoooooxouuuuyTSaaaaaaAceeeeiiiidnooooo ouuuuyTyaaaaaaccccccccddddeeeeeeeeeegggg\
    gggghhhhiiiiiiiiiiIIjjkkkllllllllllnnnnnnnnnooooooOOrrrrrrssssssssttttttuuuuuuuuuuuuwwyyyzzzzzzs";

/// ASCII spelling of a letter in U+00C0 to U+017F.
fn latin(letter: char) -> &'static str {
    let at = letter as usize - 0xc0;
    match LATIN[at] {
        b'A' => "ae",
        b'I' => "ij",
        b'O' => "oe",
        b'S' => "ss",
        b'T' => "th",
        _ => std::str::from_utf8(&LATIN[at..=at]).unwrap_or(" "),
    }
}

/// Appends `text` in lower case, without accents, and with one sign for each of quotes, dashes, fractions and
/// multiplication.
fn fold(text: &str, folded: &mut String) {
    if text.is_ascii() {
        let start = folded.len();
        folded.push_str(text);
        folded[start..].make_ascii_lowercase();
        return;
    }
    for letter in text.chars() {
        match letter {
            '\0'..='\x7f' => folded.push(letter.to_ascii_lowercase()),
            '\u{c0}'..='\u{17f}' => folded.push_str(latin(letter)),
            '\u{300}'..='\u{36f}' => {}
            '½' => folded.push_str(" 1/2"),
            '¼' => folded.push_str(" 1/4"),
            '¾' => folded.push_str(" 3/4"),
            '⅓' => folded.push_str(" 1/3"),
            '⅔' => folded.push_str(" 2/3"),
            '⅛' => folded.push_str(" 1/8"),
            '⅜' => folded.push_str(" 3/8"),
            '⅝' => folded.push_str(" 5/8"),
            '⅞' => folded.push_str(" 7/8"),
            '²' => folded.push('2'),
            '³' => folded.push('3'),
            '‘' | '’' | '′' | '´' => folded.push('\''),
            '“' | '”' | '″' => folded.push('"'),
            '‐' | '‑' | '‒' | '–' | '—' | '−' => folded.push('-'),
            '\u{ff01}'..='\u{ff5e}' => {
                let narrow = char::from_u32(letter as u32 - 0xfee0).unwrap_or(' ');
                folded.push(narrow.to_ascii_lowercase());
            }
            letter => folded.extend(letter.to_lowercase()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::terms;

    #[test]
    fn spellings_of_a_size_have_one_form() {
        let same = |texts: &[&str], expected: &[&str]| {
            for text in texts {
                assert_eq!(terms(text), expected, "{text}");
            }
        };
        same(&["3/8 in.", "3/8\"", "3/8-inch", "3/8in", "⅜ inches", "3/8''", "3/8”"], &["3/8", "in"]);
        same(&["10 ft", "10-foot", "10'", "10 feet", "10ft.", "10.0 ft"], &["10", "ft"]);
        same(&["5lb", "5 lbs", "5-Pounds"], &["5", "lb"]);
        same(&["10x12", "10 x 12", "10 X 12", "10×12"], &["10", "12"]);
        same(&["2 ft. x 4 ft.", "2'x4'", "2 foot x 4-foot"], &["2", "ft", "4", "ft"]);
        same(&["1-3/8 in.", "1 3/8\"", "1⅜ in"], &["1", "3/8", "in"]);
        same(&["1,000 sq. ft.", "1000 sq ft"], &["1000", "sq", "ft"]);
        same(&["0.50", ".5", "0.5"], &["0.5"]);
        same(&["", "the", " - ' \" / . ,", "\u{301}"], &[]);
    }

    #[test]
    fn model_numbers_are_indexed_whole_and_in_parts() {
        for text in ["WD-40", "wd40", "Wd‑40"] {
            assert_eq!(terms(text), ["wd", "wd40", "40"], "{text}");
        }
        assert_eq!(terms("wd 40"), ["wd", "40"]);
        assert_eq!(terms("SC-141 faucet"), ["sc", "sc141", "141", "faucet"]);
    }

    #[test]
    fn words_are_folded() {
        assert_eq!(terms("Crème BRÛLÉE für Große"), ["creme", "brulee", "fur", "grosse"]);
        assert_eq!(terms("Women's & men’s shoes"), ["woman", "man", "shoe"]);
        assert_eq!(terms("gray in stainless-steel"), ["gray", "stainless", "steel"]);
        assert_eq!(terms("Ｗｉｄｅ Чайник"), ["wide", "чайник"]);
        assert_eq!(terms("洗濯機 白色7kg"), ["洗濯", "濯機", "白色", "7", "kg"]);
        assert_eq!(terms("茶 USBケーブル"), ["茶", "usb", "ケー", "ーブ", "ブル"]);
    }

    #[test]
    fn long_terms_are_truncated() {
        let long = terms(&"é".repeat(1000));
        assert_eq!(long, ["e".repeat(64)]);
        assert!(terms(&"1a".repeat(1000)).iter().all(|term| term.len() <= 64));
    }

    proptest! {
        #[test]
        fn terms_are_non_empty_and_bounded(text in any::<String>()) {
            let found = terms(&text);
            prop_assert!(found.iter().all(|term| !term.is_empty() && term.len() <= super::MAX_TERM_BYTES));
        }

        #[test]
        fn case_is_ignored(text in "[a-z0-9 .,'\"/-]{0,40}") {
            prop_assert_eq!(terms(&text), terms(&text.to_uppercase()));
        }
    }
}
