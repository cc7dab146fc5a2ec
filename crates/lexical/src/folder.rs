//! Building, saving and loading an index. Takes passages; gives one tantivy segment whose documents are the rows in
//! order, in memory or in a folder with a manifest. A damaged folder or another format is an error that names the file.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tantivy::directory::MmapDirectory;
use tantivy::index::{InvertedIndexReader, SegmentReader};
use tantivy::indexer::NoMergePolicy;
use tantivy::schema::{FAST, Field, IndexRecordOption, Schema, TextFieldIndexing, TextOptions};
use tantivy::tokenizer::{Token, TokenStream, Tokenizer};
use tantivy::{Directory, Index, IndexSettings, IndexWriter, TantivyDocument};

use super::analyser::Terms;
use super::norms::{Counts, MAX_IN_DETAILS};
use super::{LexicalOptions, Passage, unreadable};
use souk_io::atomic_dir::AtomicDir;
use souk_io::error::{Error, Result};

const MANIFEST: &str = "lexical.json";
/// Version of the files and of the analyser; an index must be searched with the analyser it was built with.
const FORMAT: u32 = 2;
/// Indexes of this version have no details.
const FORMAT_WITHOUT_DETAILS: u32 = 1;
const WRITER_BYTES: usize = 128 << 20;
const ANALYSER: &str = "souk";
/// Stands between the details of an item and its text.
const SEPARATOR: char = '\0';

#[derive(Serialize, Deserialize)]
struct Manifest {
    format: u32,
    num_items: u32,
    options: LexicalOptions,
}

/// Indexes the passages in a directory.
pub fn fill<P: Into<Passage>>(
    directory: impl Directory,
    options: LexicalOptions,
    passages: impl Iterator<Item = Result<P>>,
) -> Result<Index> {
    let (schema, text, row) = schema();
    let index = Index::create(directory, schema, IndexSettings::default()).map_err(unreadable)?;
    index.tokenizers().register(ANALYSER, Analyser::new(options));
    // one thread, so that the rows of each segment are consecutive
    let mut writer: IndexWriter = index.writer_with_num_threads(1, WRITER_BYTES).map_err(unreadable)?;
    writer.set_merge_policy(Box::new(NoMergePolicy));
    for (number, passage) in passages.enumerate() {
        if number >= u32::MAX as usize / 2 {
            return Err(Error::input("a lexical index holds at most 2,147,483,647 items"));
        }
        let mut document = TantivyDocument::new();
        document.add_text(text, joined(passage?.into(), options));
        document.add_u64(row, number as u64);
        writer.add_document(document).map_err(unreadable)?;
    }
    writer.commit().map_err(unreadable)?;
    merge_segments(&index, &mut writer).map_err(unreadable)?;
    writer.wait_merging_threads().map_err(unreadable)?;
    Ok(index)
}

/// Merges all segments into one, in row order.
fn merge_segments(index: &Index, writer: &mut IndexWriter) -> tantivy::Result<()> {
    let mut segments = Vec::new();
    for segment in index.searchable_segments()? {
        let first = SegmentReader::open(&segment)?.fast_fields().u64("row")?.first(0);
        segments.push((first, segment.id()));
    }
    segments.sort_unstable();
    let ids: Vec<_> = segments.into_iter().map(|(_, id)| id).collect();
    if ids.len() > 1 {
        writer.merge(&ids).wait()?;
        writer.garbage_collect_files().wait()?;
    }
    Ok(())
}

/// Text and details in the form that `Analyser` reads.
fn joined(passage: Passage, options: LexicalOptions) -> String {
    if options.has_details() {
        format!("{}{SEPARATOR}{}", passage.details.replace(SEPARATOR, " "), passage.text)
    } else {
        passage.text
    }
}

/// Postings, and the lengths of each item in terms.
pub fn read(index: &Index, has_details: bool) -> tantivy::Result<(Arc<InvertedIndexReader>, Vec<Counts>)> {
    let Some(segment) = index.searchable_segments()?.pop() else {
        return Ok((Arc::new(InvertedIndexReader::empty(IndexRecordOption::WithFreqs)), Vec::new()));
    };
    let reader = SegmentReader::open(&segment)?;
    let postings = reader.inverted_index(schema().1)?;
    let mut lengths = vec![Counts::default(); reader.max_doc() as usize];
    let mut dictionary = postings.terms().stream()?;
    while dictionary.advance() {
        let info = dictionary.value();
        let mut blocks = postings.read_block_postings_from_terminfo(info, IndexRecordOption::WithFreqs)?;
        while blocks.block_len() > 0 {
            for (row, num_tokens) in blocks.docs().iter().zip(blocks.freqs()) {
                let (length, counts) = (&mut lengths[*row as usize], Counts::unpacked(*num_tokens, has_details));
                length.text += counts.text;
                length.details += counts.details;
            }
            blocks.advance();
        }
    }
    drop(dictionary);
    Ok((postings, lengths))
}

pub fn save<P>(dir: &Path, options: LexicalOptions, passages: impl Iterator<Item = Result<P>>) -> Result<()>
where
    P: Into<Passage>,
{
    let atomic_dir = AtomicDir::new(dir)?;
    let directory = MmapDirectory::open(&atomic_dir.staging).map_err(unreadable)?;
    let index = fill(directory, options, passages)?;
    let num_items = index.searchable_segment_metas().map_err(unreadable)?.iter().map(|segment| segment.max_doc()).sum();
    let manifest = Manifest { format: FORMAT, num_items, options };
    let json = serde_json::to_vec_pretty(&manifest).expect("a manifest has string keys");
    let path = atomic_dir.staging.join(MANIFEST);
    fs::write(&path, json).map_err(Error::store(&path, "write it"))?;
    drop(index);
    atomic_dir.finish()
}

pub fn load(dir: &Path) -> Result<(Index, LexicalOptions)> {
    let path = dir.join(MANIFEST);
    let json = fs::read(&path).map_err(Error::store(&path, "open the lexical index"))?;
    let manifest: Manifest = serde_json::from_slice(&json)
        .map_err(|e| Error::data(&path, None, "not a manifest: build the index again").because(e))?;
    let Manifest { format, num_items, mut options } = manifest;
    match format {
        FORMAT => {}
        FORMAT_WITHOUT_DETAILS => options.details = 0.0,
        format => {
            let problem = format!(
                "has format {format}, this version reads {FORMAT_WITHOUT_DETAILS} and {FORMAT}: build the index again"
            );
            return Err(Error::data(&path, None, problem));
        }
    }
    options.check()?;
    let damaged = |e: tantivy::TantivyError| Error::data(dir, None, "is damaged: build the index again").because(e);
    let index = Index::open_in_dir(dir).map_err(damaged)?;
    let segments = index.searchable_segments().map_err(damaged)?;
    let num_rows: u32 = segments.iter().map(|segment| segment.meta().max_doc()).sum();
    if index.schema() != schema().0 || segments.len() > 1 || num_rows != num_items {
        return Err(Error::data(dir, None, "does not match its manifest: build the index again"));
    }
    let damaged_files: Vec<PathBuf> = index.validate_checksum().map_err(damaged)?.into_iter().collect();
    match damaged_files.iter().min() {
        Some(file) => Err(Error::data(&dir.join(file), None, "is damaged: build the index again")),
        None => Ok((index, options)),
    }
}

fn schema() -> (Schema, Field, Field) {
    let indexing = TextFieldIndexing::default()
        .set_tokenizer(ANALYSER)
        .set_fieldnorms(false)
        .set_index_option(IndexRecordOption::WithFreqs);
    let mut schema = Schema::builder();
    let text = schema.add_text_field("text", TextOptions::default().set_indexing_options(indexing));
    let row = schema.add_u64_field("row", FAST);
    (schema.build(), text, row)
}

/// Adapter of the analyser to tantivy, which counts tokens. The counts of an item's terms are packed by writing a term of its text
/// several times (`norms`).
#[derive(Clone)]
struct Analyser {
    options: LexicalOptions,
    text: Terms,
    details: Terms,
    /// Terms of the details that count.
    kept: Vec<usize>,
    token: Token,
}

impl Analyser {
    fn new(options: LexicalOptions) -> Self {
        let terms = Terms::new(options.language);
        Self { options, text: terms.clone(), details: terms, kept: Vec::new(), token: Token::default() }
    }
}

impl Tokenizer for Analyser {
    type TokenStream<'a> = Stream<'a>;

    fn token_stream<'a>(&'a mut self, joined: &'a str) -> Stream<'a> {
        let has_details = self.options.has_details();
        let (details, text) = joined.split_once(SEPARATOR).filter(|_| has_details).unwrap_or(("", joined));
        let Self { text: of_text, details: of_details, kept, token, .. } = self;
        of_text.read(text);
        of_details.read(details);
        kept.clear();
        kept.extend(0..of_details.len());
        kept.sort_unstable_by_key(|at| of_details.get(*at));
        let mut repeated = 0;
        let mut last = None;
        kept.retain(|at| {
            let term = Some(of_details.get(*at));
            repeated = if term == last { repeated + 1 } else { 0 };
            last = term;
            repeated < MAX_IN_DETAILS
        });
        // positions are not indexed, but tantivy counts on from them
        token.position = 0;
        let num_copies = Counts::tokens_of_text(has_details);
        Stream { text: of_text, num_copies, details: of_details, kept, token, next: 0 }
    }
}

struct Stream<'a> {
    text: &'a Terms,
    /// Tokens of each term of the text.
    num_copies: usize,
    details: &'a Terms,
    kept: &'a [usize],
    token: &'a mut Token,
    next: usize,
}

impl TokenStream for Stream<'_> {
    fn advance(&mut self) -> bool {
        let num_of_text = self.text.len() * self.num_copies;
        let term = match self.next.checked_sub(num_of_text).map(|at| self.kept.get(at)) {
            None => self.text.get(self.next / self.num_copies),
            Some(Some(at)) => self.details.get(*at),
            Some(None) => return false,
        };
        self.token.text.clear();
        self.token.text.push_str(term);
        self.next += 1;
        true
    }

    fn token(&self) -> &Token {
        self.token
    }

    fn token_mut(&mut self) -> &mut Token {
        self.token
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Lexical;

    #[test]
    fn an_index_of_the_first_format_has_no_details() {
        let home = tempfile::tempdir().unwrap();
        let (dir, options) =
            (home.path().join("lexical"), LexicalOptions { details: 0.0, ..LexicalOptions::default() });
        let texts = ["oak oak oak oak oak desk", "pine desk"].map(|text| Ok(text.to_owned()));
        let hits = |shop: &Lexical| ["oak", "desk"].map(|query| shop.search(query, 9).unwrap());
        let expected = hits(&Lexical::build_in(&dir, options, texts.into_iter()).unwrap());
        let path = dir.join(MANIFEST);
        let mut manifest: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        manifest["format"] = 1.into();
        manifest["options"].as_object_mut().unwrap().remove("details").unwrap();
        fs::write(&path, manifest.to_string()).unwrap();
        let first = Lexical::load(&dir).unwrap();
        assert!(!first.options().has_details() && hits(&first) == expected && expected[0].len() == 1, "{expected:?}");
        manifest["format"] = 3.into();
        fs::write(&path, manifest.to_string()).unwrap();
        let error = Lexical::load(&dir).err().unwrap().to_string();
        assert!(error.contains("has format 3, this version reads 1 and 2: build the index again"), "{error}");
    }

    fn built(home: &Path) -> PathBuf {
        let dir = home.join("lexical");
        let texts = ["oak desk", "pine desk", "oak chair"].map(|text| Ok(text.to_owned()));
        let options = LexicalOptions { k1: 1.5, ..LexicalOptions::default() };
        Lexical::build_in(&dir, options, texts.into_iter()).unwrap();
        dir
    }

    #[test]
    fn loaded_index_equals_index_in_memory() {
        let home = tempfile::tempdir().unwrap();
        let from_folder = Lexical::load(&built(home.path())).unwrap();
        let texts = ["oak desk", "pine desk", "oak chair"].map(|text| Ok(text.to_owned()));
        let options = LexicalOptions { k1: 1.5, ..LexicalOptions::default() };
        let in_memory = Lexical::build_with(options, texts.into_iter()).unwrap();
        assert_eq!(from_folder.search("oak desk", 3).unwrap(), in_memory.search("oak desk", 3).unwrap());
    }

    #[test]
    fn rejects_every_damaged_file() {
        let home = tempfile::tempdir().unwrap();
        let dir = built(home.path());
        let mut num_files = 0;
        for entry in fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            let intact = fs::read(&path).unwrap();
            if intact.is_empty() || path.file_name().unwrap().to_string_lossy().starts_with('.') {
                continue;
            }
            let mut flipped = intact.clone();
            flipped[intact.len() / 3] ^= 0x55;
            for bytes in [&flipped[..], &intact[..intact.len() / 2], b""] {
                fs::write(&path, bytes).unwrap();
                let error = Lexical::load(&dir).err().expect("damage is detected").to_string();
                assert!(error.contains(&*dir.to_string_lossy()), "{error}");
            }
            fs::write(&path, &intact).unwrap();
            num_files += 1;
        }
        assert!(num_files > 4, "{num_files} files");
        Lexical::load(&dir).unwrap();
    }
}
