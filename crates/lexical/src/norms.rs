//! Counts of terms and lengths of items, as scores see them. A term that an item has n times in its text and m times in its
//! details counts `n / B + details · m / D` in BM25F, where B and D are `1 − b + b · length / mean` of text and details. The score
//! is the same if it counts `n + m · details · B / D` in a text without details: `Norms` stores that factor for each item.

use super::LexicalOptions;

/// How often a term counts at most in the details of an item. Postings store both counts in one number.
pub const MAX_IN_DETAILS: u32 = 3;
const DETAILS_BITS: u32 = 2;
/// Smallest B and D, for items without text if b is 1.
const SHORTEST: f32 = 1e-6;

/// How often a term occurs in an item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub text: u32,
    pub details: u32,
}

impl Counts {
    /// Postings store both counts as the number of tokens: so many for each time that the text has a term, one for the details.
    pub fn tokens_of_text(has_details: bool) -> usize {
        if has_details { 1 << DETAILS_BITS } else { 1 }
    }

    pub fn unpacked(num_tokens: u32, has_details: bool) -> Self {
        if has_details {
            Self { text: num_tokens >> DETAILS_BITS, details: num_tokens & MAX_IN_DETAILS }
        } else {
            Self { text: num_tokens, details: 0 }
        }
    }
}

pub struct Norms {
    options: LexicalOptions,
    /// Mean lengths.
    mean_text: f64,
    mean_details: f64,
    /// `k1 · B` by row.
    norms: Vec<f32>,
    /// `details · B / D` by row; empty without details.
    factors: Vec<f32>,
}

/// Norms of a range of rows.
#[derive(Clone, Copy)]
pub struct NormsFrom<'a> {
    norms: &'a [f32],
    factors: &'a [f32],
}

impl Norms {
    /// From the lengths of all items: the sums of their terms' counts.
    pub fn new(options: LexicalOptions, lengths: &[Counts]) -> Self {
        let mean = |of: fn(&Counts) -> u32| {
            lengths.iter().map(|length| f64::from(of(length))).sum::<f64>() / lengths.len().max(1) as f64
        };
        let (mean_text, mean_details) = (mean(|length| length.text), mean(|length| length.details));
        let mut all = Self { options, mean_text, mean_details, norms: Vec::new(), factors: Vec::new() };
        all.norms = lengths.iter().map(|length| all.norm(*length)).collect();
        if options.has_details() {
            all.factors = lengths.iter().map(|length| all.factor(*length)).collect();
        }
        all
    }

    pub fn num_items(&self) -> usize {
        self.norms.len()
    }

    /// Number of terms of all texts.
    pub fn num_terms(&self) -> f64 {
        self.mean_text * self.num_items() as f64
    }

    /// Norms of the rows from `row` on.
    pub fn starting_at(&self, row: usize) -> NormsFrom<'_> {
        NormsFrom { norms: &self.norms[row..], factors: self.factors.get(row..).unwrap_or_default() }
    }

    /// Score of a term of weight 1 in an item outside the index.
    pub fn score(&self, counts: Counts, lengths: Counts) -> f32 {
        let mut count = counts.text as f32;
        if self.options.has_details() {
            count += counts.details.min(MAX_IN_DETAILS) as f32 * self.factor(lengths);
        }
        count / (count + self.norm(lengths))
    }

    fn norm(&self, lengths: Counts) -> f32 {
        self.options.k1 * self.relative(lengths.text, self.mean_text)
    }

    fn factor(&self, lengths: Counts) -> f32 {
        let relative = self.relative(lengths.text, self.mean_text) / self.relative(lengths.details, self.mean_details);
        self.options.details * relative
    }

    /// `1 − b + b · length / mean`. Before any item has a term, the mean is 1.
    fn relative(&self, length: u32, mean: f64) -> f32 {
        let (b, mean) = (self.options.b, if mean > 0.0 { mean } else { 1.0 });
        (1.0 - b + b * (f64::from(length) / mean) as f32).max(SHORTEST)
    }
}

impl NormsFrom<'_> {
    /// Score of a term of weight 1 in the item `at`, from what its postings store.
    #[inline]
    pub fn score(&self, at: usize, num_tokens: u32) -> f32 {
        let count = match self.factors.get(at) {
            Some(factor) => (num_tokens >> DETAILS_BITS) as f32 + (num_tokens & MAX_IN_DETAILS) as f32 * factor,
            None => num_tokens as f32,
        };
        count / (count + self.norms[at])
    }
}
