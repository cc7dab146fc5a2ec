//! Text pairs as one sequence, by the tokenizer's pair template: `[CLS] A [SEP] B [SEP]` for BERT, `<s> A </s></s> B </s>` for
//! RoBERTa. Each text is tokenized once for all its pairs; the longer text is truncated first, as in transformers.

use tokenizers::Encoding;
use tokenizers::processors::template::TemplateProcessing;

use super::{Tokenizer, encode_error};
use souk_io::error::{Error, Result};

/// One text of a pair: its tokens without special tokens.
#[derive(Clone)]
pub struct PairSegment {
    encoding: Encoding,
    cut: bool,
}

/// Encoded text pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    pub ids: Vec<u32>,
    /// Token types: 0 for the first text, 1 for the second, by the template.
    pub types: Vec<u32>,
    /// Number of tokens before the second text.
    pub num_first: usize,
    /// Whether a text was truncated.
    pub cut: bool,
}

impl Tokenizer {
    pub fn segment(&self, text: &str) -> Result<PairSegment> {
        let encoded = if self.lowercase {
            self.inner.encode_fast(text.to_lowercase(), false)
        } else {
            self.inner.encode_fast(text, false)
        };
        let mut encoding = encoded.map_err(encode_error)?;
        // drops the overflowing pieces: they would be joined, too, one by one
        let cut = !encoding.take_overflowing().is_empty();
        Ok(PairSegment { encoding, cut })
    }

    pub fn join(&self, first: &PairSegment, second: &PairSegment) -> Result<Pair> {
        let mut later = second.encoding.clone();
        later.set_type_ids(vec![1; later.len()]);
        let joined = self.inner.post_process(first.encoding.clone(), Some(later), true);
        let joined = joined.map_err(|e| Error::input("the tokenizer cannot join two texts").because(e))?;
        let cut = first.cut || second.cut || !joined.get_overflowing().is_empty();
        let num_first = num_first(&joined);
        let (ids, types) = (self.within_limit(joined.get_ids().to_vec())?, joined.get_type_ids().to_vec());
        Ok(Pair { ids, types, num_first, cut })
    }

    /// Number of special tokens in a pair.
    pub fn num_pair_specials(&self) -> Result<usize> {
        let empty = self.segment("")?;
        Ok(self.join(&empty, &empty)?.ids.len())
    }

    /// Adds a pair template to a tokenizer that has one for single texts only, with the same special tokens. Call it before
    /// `set_truncation`; it is saved with the folder.
    pub fn add_pair_template(&mut self) -> Result<()> {
        let failed = |e: tokenizers::Error| Error::weights(&self.path, "cannot add a pair template").because(e);
        let alone = self.inner.encode_fast("a", true).map_err(failed)?;
        let special = alone.get_special_tokens_mask();
        let head = special.iter().take_while(|mask| **mask == 1).count();
        let tail = special.iter().rev().take_while(|mask| **mask == 1).count();
        if head + tail == 0 || head + tail > alone.len() || self.num_pair_specials()? >= head + tail {
            return Ok(());
        }
        let named = |at: usize| (alone.get_tokens()[at].clone(), alone.get_ids()[at]);
        let before: Vec<(String, u32)> = (0..head).map(named).collect();
        let after: Vec<(String, u32)> = (alone.len() - tail..alone.len()).map(named).collect();
        let pieces = |tokens: &[(String, u32)], text: &str| -> Vec<String> {
            tokens.iter().map(|(token, _)| format!("{token}{text}")).collect()
        };
        let single = [pieces(&before, ""), vec!["$A".into()], pieces(&after, "")].concat();
        let pair = [single.clone(), vec!["$B:1".into()], pieces(&after, ":1")].concat();
        let mut tokens = [before, after].concat();
        tokens.sort();
        tokens.dedup();
        let template = TemplateProcessing::builder()
            .try_single(single)
            .and_then(|b| b.try_pair(pair))
            .and_then(|b| b.special_tokens(tokens).build().map_err(|e| e.to_string()))
            .map_err(|e| failed(e.into()))?;
        self.inner.with_post_processor(Some(template));
        Ok(())
    }
}

/// Number of tokens before the second text. RoBERTa's templates give both texts one type, so the text that a token comes from
/// decides there; of an empty second text, only the token at the end is left.
fn num_first(joined: &Encoding) -> usize {
    let by_type = joined.get_type_ids().iter().position(|kind| *kind == 1);
    let by_text = || joined.get_sequence_ids().iter().position(|text| *text == Some(1));
    by_type.or_else(by_text).unwrap_or(joined.len().saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use tokenizers::processors::roberta::RobertaProcessing;

    use super::*;

    fn trained() -> Tokenizer {
        let titles = ["oak desk 120 cm", "oak chair", "pine desk 80 cm", "desk lamp", "oak shelf"];
        Tokenizer::train(titles.iter().cycle().take(50).map(ToString::to_string), 300).unwrap()
    }

    fn join(tokenizer: &Tokenizer, first: &str, second: &str) -> Pair {
        tokenizer.join(&tokenizer.segment(first).unwrap(), &tokenizer.segment(second).unwrap()).unwrap()
    }

    #[test]
    fn joins_a_pair_with_special_tokens_and_types() {
        let tokenizer = trained();
        let pair = join(&tokenizer, "oak", "desk \0 lamp");
        let single = |text: &str| tokenizer.encode(text).unwrap();
        assert_eq!(pair.ids, [single("oak"), single("desk \0 lamp")[1..].to_vec()].concat());
        let firsts = single("oak").len();
        let expected: Vec<u32> = (0..pair.ids.len()).map(|at| u32::from(at >= firsts)).collect();
        assert_eq!((pair.types, pair.num_first, pair.cut), (expected, firsts, false));
        assert_eq!(tokenizer.num_pair_specials().unwrap(), 3);
    }

    #[test]
    fn a_template_of_one_type_tells_the_texts_apart() {
        let mut tokenizer = trained();
        let roberta = RobertaProcessing::new(("</s>".into(), 2), ("<s>".into(), 1));
        tokenizer.inner.with_post_processor(Some(roberta));
        let single = |text: &str| tokenizer.encode(text).unwrap();
        let pair = join(&tokenizer, "oak", "desk lamp");
        assert_eq!(pair.ids, [single("oak"), vec![2], single("desk lamp")[1..].to_vec()].concat());
        assert!(pair.types.iter().all(|kind| *kind == 0));
        assert_eq!(pair.num_first, single("oak").len() + 1);
        assert_eq!(tokenizer.num_pair_specials().unwrap(), 4);
        let empty = join(&tokenizer, "oak", "");
        assert_eq!((empty.ids.len(), empty.num_first), (single("oak").len() + 2, single("oak").len() + 1));
    }

    #[test]
    fn a_pair_with_an_id_beyond_the_limit_is_an_error() {
        let mut tokenizer = trained();
        tokenizer.limit_ids(tokenizer.id_of("Ġdesk").unwrap() as usize).unwrap();
        assert_eq!(join(&tokenizer, "o", "k"), join(&trained(), "o", "k"));
        let joined = tokenizer.join(&tokenizer.segment("o").unwrap(), &tokenizer.segment("a desk").unwrap());
        assert!(joined.unwrap_err().to_string().contains("`Ġdesk`"));
    }

    #[test]
    fn truncates_the_longer_text_first() {
        let mut tokenizer = trained();
        tokenizer.set_truncation(12, false).unwrap();
        let long = "oak desk ".repeat(2000);
        let pair = join(&tokenizer, "lamp", &long);
        assert_eq!((pair.ids.len(), pair.cut), (12, true));
        let firsts = pair.types.iter().filter(|kind| **kind == 0).count();
        assert_eq!(firsts, tokenizer.encode("lamp").unwrap().len(), "the short text is not truncated");
        let both = join(&tokenizer, &long, &long);
        assert_eq!((both.ids.len(), both.types.iter().filter(|kind| **kind == 0).count()), (12, 2 + 4));
    }

    #[test]
    fn adds_a_missing_pair_template() {
        let mut tokenizer = trained();
        let expected = join(&tokenizer, "oak", "desk");
        let single = TemplateProcessing::builder()
            .try_single("<s> $A </s>")
            .unwrap()
            .special_tokens(vec![("<s>", 1), ("</s>", 2)])
            .build()
            .unwrap();
        tokenizer.inner.with_post_processor(Some(single));
        assert_eq!(tokenizer.num_pair_specials().unwrap(), 0);
        tokenizer.add_pair_template().unwrap();
        assert_eq!(join(&tokenizer, "oak", "desk"), expected);
        assert_eq!(tokenizer.encode("oak").unwrap(), trained().encode("oak").unwrap());
    }
}
