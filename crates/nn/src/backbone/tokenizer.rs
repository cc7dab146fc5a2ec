//! Text to token ids through `tokenizer.json`, and byte-level BPE trained on a catalogue for models from scratch.
//! Padding and truncation stored in the file are overridden: batches are packed, and the length is the model's.

mod pair;

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use tokenizers::models::bpe::{BPE, BpeTrainerBuilder};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::processors::template::TemplateProcessing;
use tokenizers::{
    AddedToken, DecoderWrapper, Encoding, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper, TokenizerImpl,
    TruncationParams,
};

pub use self::pair::{Pair, Part};
use souk_io::error::{Error, Result};

const FILE: &str = "tokenizer.json";
/// The files of a tokenizer in a model folder. Souk reads the first; other programs want the rest, where there are any.
pub const FILES: [&str; 9] = [
    FILE,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    // how the model is spoken to, and what ends its answer
    "chat_template.jinja",
    "generation_config.json",
];
/// What a tokenizer trained here puts around a text, with its padding and mask; ids are their places in this list.
const SPECIAL: [&str; 4] = ["<pad>", "<s>", "</s>", "<mask>"];

type Untrained = TokenizerImpl<BPE, NormalizerWrapper, PreTokenizerWrapper, PostProcessorWrapper, DecoderWrapper>;

pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    path: PathBuf,
    lowercase: bool,
    special: HashSet<u32>,
}

impl Tokenizer {
    pub fn open(dir: &Path) -> Result<Self> {
        let path = dir.join(FILE);
        if !path.exists() && (dir.join("vocab.txt").exists() || dir.join("tokenizer_config.json").exists()) {
            let hint =
                "is missing; write it with transformers, AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)";
            return Err(Error::weights(&path, hint));
        }
        let bytes = std::fs::read(&path).map_err(Error::store(&path, "open the tokenizer"))?;
        let inner = tokenizers::Tokenizer::from_bytes(bytes)
            .map_err(|e| Error::weights(&path, "not a tokenizer that Souk can read").because(e))?;
        Ok(Self::of(inner, path))
    }

    fn of(mut inner: tokenizers::Tokenizer, path: PathBuf) -> Self {
        inner.with_padding(None);
        // what it remembers of words would stay with every thread that used it, for as long as that lives
        let mut model = inner.get_model().clone();
        model.resize_cache(0);
        inner.with_model(model);
        let added = inner.get_added_tokens_decoder();
        let special = added.iter().filter(|(_, token)| token.special).map(|(id, _)| *id).collect();
        Self { inner, path, lowercase: false, special }
    }

    /// Learns a byte-level BPE of `vocab` tokens from a catalogue's texts.
    pub fn train(texts: impl Iterator<Item = String> + Send, vocab: usize) -> Result<Self> {
        let failed = |e: tokenizers::Error| Error::input("cannot train a tokenizer on these texts").because(e);
        let special: Vec<AddedToken> = SPECIAL.iter().map(|token| AddedToken::from(*token, true)).collect();
        let smallest = ByteLevel::alphabet().len() + SPECIAL.len();
        if vocab < smallest {
            return Err(Error::config("tokenizer.vocab", format!("is {vocab}: bytes alone need {smallest}")));
        }
        let mut trainer = BpeTrainerBuilder::new()
            .vocab_size(vocab)
            .min_frequency(2)
            .special_tokens(special)
            .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
            .show_progress(false)
            .build();
        let mut inner = Untrained::new(BPE::default());
        inner.with_pre_tokenizer(Some(ByteLevel::new(true, true, true)));
        inner.with_decoder(Some(ByteLevel::default()));
        inner.train(&mut trainer, texts).map_err(failed)?;
        let around = TemplateProcessing::builder()
            .try_single("<s> $A </s>")
            .and_then(|b| b.try_pair("<s> $A </s> $B:1 </s>:1"))
            .and_then(|b| b.special_tokens(vec![("<s>", 1), ("</s>", 2)]).build().map_err(|e| e.to_string()))
            .map_err(|e| failed(e.into()))?;
        inner.with_post_processor(Some(around));
        let json = serde_json::to_vec(&inner).map_err(|e| failed(e.into()))?;
        let inner = tokenizers::Tokenizer::from_bytes(json).map_err(failed)?;
        Ok(Self::of(inner, FILE.into()))
    }

    pub fn save(&self, dir: &Path) -> Result<()> {
        let path = dir.join(FILE);
        let mut plain = self.inner.clone();
        plain.with_truncation(None).map_err(|e| Error::weights(&path, "cannot write it").because(e))?;
        plain.save(&path, true).map_err(|e| Error::weights(&path, "cannot write it").because(e))
    }

    /// Cuts nothing, whatever the file says.
    pub fn uncut(&mut self) -> Result<()> {
        let failed = |e: tokenizers::Error| Error::weights(&self.path, "cannot cut texts").because(e);
        self.inner.with_truncation(None).map_err(failed).map(drop)
    }

    /// Cuts texts to `max_tokens`, special tokens included, and lowers their case where the model wants it.
    pub fn shape(&mut self, max_tokens: usize, lowercase: bool) -> Result<()> {
        self.uncut()?;
        let framing = self.encode("")?.len();
        if max_tokens <= framing {
            let problem = format!("is {max_tokens}, and {framing} special tokens stand around every text");
            return Err(Error::config("max_tokens", problem));
        }
        let truncation = TruncationParams { max_length: max_tokens, ..Default::default() };
        let failed = |e: tokenizers::Error| Error::weights(&self.path, "cannot cut texts").because(e);
        self.inner.with_truncation(Some(truncation)).map_err(failed)?;
        self.lowercase = lowercase;
        Ok(())
    }

    /// Refuses a tokenizer that was made for another model.
    pub fn check_fits(&self, vocab: usize) -> Result<()> {
        let largest = self.inner.get_vocab(true).into_values().max().map_or(0, |id| id as usize);
        if largest < vocab {
            return Ok(());
        }
        let problem =
            format!("has token ids up to {largest}, the model knows {vocab}: this is another model's tokenizer");
        Err(Error::weights(&self.path, problem))
    }

    pub fn vocab(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// Ids with the special tokens around them.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        Ok(self.encoding(text)?.get_ids().to_vec())
    }

    /// Whether a text has more tokens than fit.
    pub fn cuts(&self, text: &str) -> Result<bool> {
        Ok(!self.encoding(text)?.get_overflowing().is_empty())
    }

    fn encoding(&self, text: &str) -> Result<Encoding> {
        let encoding = match self.lowercase {
            true => self.inner.encode_fast(text.to_lowercase(), true),
            false => self.inner.encode_fast(text, true),
        };
        encoding.map_err(no_tokens)
    }

    /// A text with what stands before and after it, open at its end, and how many tokens stand before it. `complete`: nothing is
    /// put around them. More than `most` tokens are cut from the text's end.
    pub fn between(
        &self,
        (before, after): (&str, &str),
        text: &str,
        (complete, most): (bool, usize),
    ) -> Result<(Vec<u32>, usize)> {
        let lower = if self.lowercase { text.to_lowercase() } else { text.into() };
        let encoding = self.inner.encode(format!("{before}{lower}{after}"), !complete).map_err(no_tokens)?;
        let (mut ids, offsets) = (encoding.get_ids().to_vec(), encoding.get_offsets());
        let closed = ids.last().is_some_and(|id| !complete && self.special.contains(id));
        ids.truncate(ids.len() - usize::from(closed));
        let end = before.len() + lower.len();
        let head = offsets.iter().take(ids.len()).take_while(|(_, to)| *to <= before.len()).count();
        let tail = offsets[..ids.len()].iter().rev().take_while(|(from, _)| *from >= end).count();
        if ids.len() > most {
            let behind = ids.split_off(ids.len() - tail);
            if most <= head + tail {
                let problem = format!("is {most}, and the prompt around every text has {} tokens", head + tail);
                return Err(Error::config("max_tokens", problem));
            }
            ids.truncate(most - tail);
            ids.extend(behind);
        }
        Ok((ids, head))
    }

    /// In words, without special tokens.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        self.inner.decode(ids, true).map_err(|e| Error::weights(&self.path, "cannot put tokens into words").because(e))
    }

    /// A token by its name.
    pub fn id_of(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// Tokens that a prompt takes up at the head of a text, by sentence-transformers' rule: the prompt alone is
    /// tokenized, and a special token at its end is not counted.
    pub fn prompt_length(&self, prompt: &str) -> Result<usize> {
        let ids = self.encode(prompt)?;
        let closed = ids.last().is_some_and(|id| self.special.contains(id));
        Ok(ids.len() - usize::from(closed))
    }
}

fn no_tokens(error: tokenizers::Error) -> Error {
    Error::input("a text cannot be tokenized: its tokenizer lacks what it needs").because(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trained() -> Tokenizer {
        let titles = ["oak desk 120 cm", "oak chair", "pine desk 80 cm", "desk lamp", "oak shelf"];
        let texts = titles.iter().cycle().take(50).map(ToString::to_string);
        Tokenizer::train(texts, 300).unwrap()
    }

    #[test]
    fn a_trained_tokenizer_frames_any_text_and_survives_a_save() {
        let dir = tempfile::tempdir().unwrap();
        trained().save(dir.path()).unwrap();
        let again = Tokenizer::open(dir.path()).unwrap();
        for text in ["oak desk", "", "naïve \0 日本 desk"] {
            let ids = again.encode(text).unwrap();
            assert_eq!(ids, trained().encode(text).unwrap());
            assert_eq!((ids.first(), ids.last()), (Some(&1), Some(&2)), "{text:?}");
        }
        assert!(again.encode("oak desk").unwrap().len() <= 5, "merges were learned");
    }

    #[test]
    fn truncation_keeps_the_closing_token() {
        let mut tokenizer = trained();
        tokenizer.shape(6, false).unwrap();
        let ids = tokenizer.encode(&"oak desk ".repeat(1000)).unwrap();
        assert_eq!((ids.len(), ids[5]), (6, 2));
        assert!(tokenizer.shape(1, false).is_err());
    }

    #[test]
    fn a_prompt_is_measured_without_its_closing_token() {
        let tokenizer = trained();
        assert_eq!(tokenizer.prompt_length("oak").unwrap(), tokenizer.encode("oak").unwrap().len() - 1);
    }

    #[test]
    fn a_tokenizer_of_another_model_is_refused() {
        let error = trained().check_fits(100).unwrap_err().to_string();
        assert!(error.contains("another model's tokenizer"), "{error}");
    }
}
