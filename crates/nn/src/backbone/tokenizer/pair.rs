//! Two texts as one sequence, by the tokenizer's own template for pairs: `[CLS] A [SEP] B [SEP]` for BERT. Each text is
//! tokenized once, however many others it is paired with; the longer one is cut first, as transformers does it.

use tokenizers::Encoding;
use tokenizers::processors::template::TemplateProcessing;

use super::Tokenizer;
use souk_io::error::{Error, Result};

/// One text of pairs to come: its tokens without special ones.
#[derive(Clone)]
pub struct Part {
    encoding: Encoding,
    cut: bool,
}

/// Two texts as a model reads them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    pub ids: Vec<u32>,
    /// 0 for the first text's tokens, 1 for the second's, as the template says.
    pub types: Vec<u32>,
    /// Whether something did not fit.
    pub cut: bool,
}

impl Tokenizer {
    pub fn part(&self, text: &str) -> Result<Part> {
        let failed = |e: tokenizers::Error| {
            Error::input("a text cannot be tokenized: its tokenizer lacks what it needs").because(e)
        };
        let encoded = match self.lowercase {
            true => self.inner.encode_fast(text.to_lowercase(), false),
            false => self.inner.encode_fast(text, false),
        };
        let mut encoding = encoded.map_err(failed)?;
        // what was cut off would be framed and joined, too, piece by piece
        let cut = !encoding.take_overflowing().is_empty();
        Ok(Part { encoding, cut })
    }

    pub fn join(&self, first: &Part, second: &Part) -> Result<Pair> {
        let mut later = second.encoding.clone();
        later.set_type_ids(vec![1; later.len()]);
        let joined = self.inner.post_process(first.encoding.clone(), Some(later), true);
        let joined = joined.map_err(|e| Error::input("two texts cannot be joined by this tokenizer").because(e))?;
        let cut = first.cut || second.cut || !joined.get_overflowing().is_empty();
        Ok(Pair { ids: joined.get_ids().to_vec(), types: joined.get_type_ids().to_vec(), cut })
    }

    /// Special tokens around a pair.
    pub fn pair_framing(&self) -> Result<usize> {
        let empty = self.part("")?;
        Ok(self.join(&empty, &empty)?.ids.len())
    }

    /// Gives a tokenizer that frames single texts only a template for pairs, made of what stands around a single one.
    /// Before `shape`, and saved with the folder.
    pub fn frame_pairs(&mut self) -> Result<()> {
        let failed = |e: tokenizers::Error| Error::weights(&self.path, "cannot be given a template").because(e);
        let alone = self.inner.encode_fast("a", true).map_err(failed)?;
        let special = alone.get_special_tokens_mask();
        let head = special.iter().take_while(|mask| **mask == 1).count();
        let tail = special.iter().rev().take_while(|mask| **mask == 1).count();
        if head + tail == 0 || head + tail > alone.len() || self.pair_framing()? >= head + tail {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn trained() -> Tokenizer {
        let titles = ["oak desk 120 cm", "oak chair", "pine desk 80 cm", "desk lamp", "oak shelf"];
        Tokenizer::train(titles.iter().cycle().take(50).map(ToString::to_string), 300).unwrap()
    }

    fn join(tokenizer: &Tokenizer, first: &str, second: &str) -> Pair {
        tokenizer.join(&tokenizer.part(first).unwrap(), &tokenizer.part(second).unwrap()).unwrap()
    }

    #[test]
    fn a_pair_is_framed_as_one_and_its_texts_are_told_apart() {
        let tokenizer = trained();
        let pair = join(&tokenizer, "oak", "desk \0 lamp");
        let single = |text: &str| tokenizer.encode(text).unwrap();
        assert_eq!(pair.ids, [single("oak"), single("desk \0 lamp")[1..].to_vec()].concat());
        let firsts = single("oak").len();
        let expected: Vec<u32> = (0..pair.ids.len()).map(|at| u32::from(at >= firsts)).collect();
        assert_eq!((pair.types, pair.cut), (expected, false));
        assert_eq!(tokenizer.pair_framing().unwrap(), 3);
    }

    #[test]
    fn the_longer_text_is_cut_first() {
        let mut tokenizer = trained();
        tokenizer.shape(12, false).unwrap();
        let long = "oak desk ".repeat(2000);
        let pair = join(&tokenizer, "lamp", &long);
        assert_eq!((pair.ids.len(), pair.cut), (12, true));
        let firsts = pair.types.iter().filter(|kind| **kind == 0).count();
        assert_eq!(firsts, tokenizer.encode("lamp").unwrap().len(), "the short one is whole");
        let both = join(&tokenizer, &long, &long);
        assert_eq!((both.ids.len(), both.types.iter().filter(|kind| **kind == 0).count()), (12, 2 + 4));
    }

    #[test]
    fn a_tokenizer_without_a_template_for_pairs_is_given_one() {
        let mut tokenizer = trained();
        let wanted = join(&tokenizer, "oak", "desk");
        let single = TemplateProcessing::builder()
            .try_single("<s> $A </s>")
            .unwrap()
            .special_tokens(vec![("<s>", 1), ("</s>", 2)])
            .build()
            .unwrap();
        tokenizer.inner.with_post_processor(Some(single));
        assert_eq!(tokenizer.pair_framing().unwrap(), 0);
        tokenizer.frame_pairs().unwrap();
        assert_eq!(join(&tokenizer, "oak", "desk"), wanted);
        assert_eq!(tokenizer.encode("oak").unwrap(), trained().encode("oak").unwrap());
    }
}
