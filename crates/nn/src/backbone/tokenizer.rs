//! Text to token ids with a `tokenizer.json`, and training of a byte-level BPE on a catalogue for models from scratch.
//! Overrides padding and truncation of the file: batches are packed, and the model sets the maximum length.

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

pub use self::pair::{Pair, PairSegment};
use souk_io::error::{Error, Result};

const FILE: &str = "tokenizer.json";
/// Tokenizer files of a model folder. Souk reads the first; exports copy the others, if present, for other programs.
pub const FILES: [&str; 9] = [
    FILE,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    // chat template, and end-of-answer tokens
    "chat_template.jinja",
    "generation_config.json",
];
/// Special tokens of a tokenizer trained here; their ids are their indices in this list.
const SPECIAL: [&str; 4] = ["<pad>", "<s>", "</s>", "<mask>"];

type Untrained = TokenizerImpl<BPE, NormalizerWrapper, PreTokenizerWrapper, PostProcessorWrapper, DecoderWrapper>;

pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    path: PathBuf,
    lowercase: bool,
    special: HashSet<u32>,
    /// One more than the largest id.
    num_ids: usize,
    /// Number of ids that the model has embeddings for, where the tokenizer has more.
    limit: Option<usize>,
}

/// Text before and after every text, such as a rendered chat template.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    pub before: &'a str,
    pub after: &'a str,
    /// Whether `before` and `after` contain all special tokens, so that none are added.
    pub complete: bool,
}

impl Tokenizer {
    pub fn open(dir: &Path) -> Result<Self> {
        let path = dir.join(FILE);
        if !path.exists() && (dir.join("vocab.txt").exists() || dir.join("tokenizer_config.json").exists()) {
            let hint =
                "is missing; create it with transformers, AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)";
            return Err(Error::weights(&path, hint));
        }
        let bytes = std::fs::read(&path).map_err(Error::store(&path, "open the tokenizer"))?;
        let inner = tokenizers::Tokenizer::from_bytes(bytes)
            .map_err(|e| Error::weights(&path, "not a tokenizer that Souk supports").because(e))?;
        Ok(Self::of(inner, path))
    }

    fn of(mut inner: tokenizers::Tokenizer, path: PathBuf) -> Self {
        inner.with_padding(None);
        // no word cache: it would be kept for each thread until the thread ends
        let mut model = inner.get_model().clone();
        model.resize_cache(0);
        inner.with_model(model);
        let added = inner.get_added_tokens_decoder();
        let special = added.iter().filter(|(_, token)| token.special).map(|(id, _)| *id).collect();
        let num_ids = inner.get_vocab(true).into_values().max().map_or(0, |id| id as usize + 1);
        Self { inner, path, lowercase: false, special, num_ids, limit: None }
    }

    /// Trains a byte-level BPE of `vocab` tokens on a catalogue's texts.
    pub fn train(texts: impl Iterator<Item = String> + Send, vocab: usize) -> Result<Self> {
        let failed = |e: tokenizers::Error| Error::input("cannot train a tokenizer on these texts").because(e);
        let special: Vec<AddedToken> = SPECIAL.iter().map(|token| AddedToken::from(*token, true)).collect();
        let min_vocab = ByteLevel::alphabet().len() + SPECIAL.len();
        if vocab < min_vocab {
            return Err(Error::config("tokenizer.vocab", format!("is {vocab}: set it to {min_vocab} or more")));
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

    /// Disables truncation, including the file's setting.
    pub fn disable_truncation(&mut self) -> Result<()> {
        let failed = |e: tokenizers::Error| Error::weights(&self.path, "cannot set truncation").because(e);
        self.inner.with_truncation(None).map_err(failed).map(drop)
    }

    /// Truncates texts to `max_tokens`, special tokens included, and lowercases them if `lowercase` is set.
    pub fn set_truncation(&mut self, max_tokens: usize, lowercase: bool) -> Result<()> {
        self.disable_truncation()?;
        let num_special = self.encode("")?.len();
        if max_tokens <= num_special {
            let problem = format!("is {max_tokens}, but every text has {num_special} special tokens: set it higher");
            return Err(Error::config("max_tokens", problem));
        }
        let truncation = TruncationParams { max_length: max_tokens, ..Default::default() };
        let failed = |e: tokenizers::Error| Error::weights(&self.path, "cannot set truncation").because(e);
        self.inner.with_truncation(Some(truncation)).map_err(failed)?;
        self.lowercase = lowercase;
        Ok(())
    }

    /// Limits ids to the rows of the model's embedding: a text that needs another id is an error. The folder itself is fine:
    /// sentence-transformers, too, writes tokenizers with more tokens than rows. Every text's special tokens must have a row.
    pub fn limit_ids(&mut self, num_rows: usize) -> Result<()> {
        if self.num_ids <= num_rows {
            return Ok(());
        }
        self.limit = Some(num_rows);
        let problem = "is another model's tokenizer: no text can be encoded";
        self.encode("").map_err(|e| Error::weights(&self.path, problem).because(e))?;
        let path = self.path.display();
        let largest = self.num_ids - 1;
        tracing::warn!("{path}: token ids up to {largest}, the model has {num_rows}: texts with the others are errors");
        Ok(())
    }

    fn within_limit(&self, ids: Vec<u32>) -> Result<Vec<u32>> {
        let Some(limit) = self.limit else { return Ok(ids) };
        match ids.iter().find(|id| **id as usize >= limit) {
            None => Ok(ids),
            Some(id) => {
                let token = self.inner.id_to_token(*id).unwrap_or_default();
                Err(Error::input(format!(
                    "the text needs the token `{token}` with id {id}, but the model has embeddings for {limit} ids only: \
                     remove it from the text, or check that the folder has this model's tokenizer"
                )))
            }
        }
    }

    pub fn vocab(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// Token ids of a text with special tokens.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        self.within_limit(self.encoding(text)?.get_ids().to_vec())
    }

    /// Whether a text is longer than the maximum number of tokens.
    pub fn truncates(&self, text: &str) -> Result<bool> {
        Ok(!self.encoding(text)?.get_overflowing().is_empty())
    }

    /// Maximum number of tokens of a text; none without truncation.
    pub fn max_tokens(&self) -> Option<usize> {
        self.inner.get_truncation().map(|truncation| truncation.max_length)
    }

    fn encoding(&self, text: &str) -> Result<Encoding> {
        let encoding = if self.lowercase {
            self.inner.encode_fast(text.to_lowercase(), true)
        } else {
            self.inner.encode_fast(text, true)
        };
        encoding.map_err(encode_error)
    }

    /// Encodes a text in its frame, without the special token at the end, so that generation can continue it. Returns the ids
    /// and the number of tokens before the text. Above `max_tokens`, the text is truncated at its end, never the frame.
    pub fn encode_framed(&self, frame: Frame, text: &str, max_tokens: usize) -> Result<(Vec<u32>, usize)> {
        let Frame { before, after, complete } = frame;
        let lower = if self.lowercase { text.to_lowercase() } else { text.into() };
        let encoding = self.inner.encode(format!("{before}{lower}{after}"), !complete).map_err(encode_error)?;
        let (mut ids, offsets) = (encoding.get_ids().to_vec(), encoding.get_offsets());
        let closed = ids.last().is_some_and(|id| !complete && self.special.contains(id));
        ids.truncate(ids.len() - usize::from(closed));
        let end = before.len() + lower.len();
        let head = offsets.iter().take(ids.len()).take_while(|(_, to)| *to <= before.len()).count();
        let tail = offsets[..ids.len()].iter().rev().take_while(|(from, _)| *from >= end).count();
        if ids.len() > max_tokens {
            let suffix = ids.split_off(ids.len() - tail);
            let framing = head + tail;
            if max_tokens <= framing {
                let problem =
                    format!("is {max_tokens}, but the prompt around every text has {framing} tokens: set it higher");
                return Err(Error::config("max_tokens", problem));
            }
            ids.truncate(max_tokens - tail);
            ids.extend(suffix);
        }
        Ok((self.within_limit(ids)?, head))
    }

    /// Decodes token ids to text, without special tokens.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        self.inner.decode(ids, true).map_err(|e| Error::weights(&self.path, "cannot decode tokens").because(e))
    }

    /// One more than the largest id that a text may have.
    pub fn num_ids(&self) -> usize {
        self.limit.unwrap_or(self.num_ids)
    }

    /// Id of a token.
    pub fn id_of(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// Number of tokens of a prompt before a text, by sentence-transformers' rule: the prompt is tokenized alone, and a
    /// special token at its end is not counted.
    pub fn prompt_length(&self, prompt: &str) -> Result<usize> {
        let ids = self.encode(prompt)?;
        let closed = ids.last().is_some_and(|id| self.special.contains(id));
        Ok(ids.len() - usize::from(closed))
    }
}

fn encode_error(error: tokenizers::Error) -> Error {
    Error::input("the tokenizer cannot encode the text").because(error)
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
    fn a_trained_tokenizer_adds_special_tokens_and_survives_a_save() {
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
        tokenizer.set_truncation(6, false).unwrap();
        let ids = tokenizer.encode(&"oak desk ".repeat(1000)).unwrap();
        assert_eq!((ids.len(), ids[5]), (6, 2));
        assert!(tokenizer.set_truncation(1, false).is_err());
    }

    #[test]
    fn prompt_length_excludes_the_closing_token() {
        let tokenizer = trained();
        assert_eq!(tokenizer.prompt_length("oak").unwrap(), tokenizer.encode("oak").unwrap().len() - 1);
    }

    #[test]
    fn only_texts_with_ids_beyond_the_limit_are_errors() {
        let (mut tokenizer, free) = (trained(), trained());
        let num_rows = tokenizer.id_of("Ġdesk").unwrap() as usize;
        tokenizer.limit_ids(num_rows).unwrap();
        assert_eq!(tokenizer.encode("o k").unwrap(), free.encode("o k").unwrap());
        let frame = Frame { before: "a ", after: "", complete: false };
        for error in [tokenizer.encode("a desk").unwrap_err(), tokenizer.encode_framed(frame, "desk", 9).unwrap_err()] {
            let expected = format!("`Ġdesk` with id {num_rows}, but the model has embeddings for {num_rows} ids only");
            assert!(matches!(error, Error::Input { .. }) && error.to_string().contains(&expected), "{error}");
        }
        let error = trained().limit_ids(2).unwrap_err().with_causes();
        assert!(error.contains("another model's tokenizer") && error.contains("`</s>` with id 2"), "{error}");
    }
}
