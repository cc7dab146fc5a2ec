//! The data folder of a round: the shop's, with the catalogue as the stream had it when the round began. New items are learned
//! and measured, deleted ones are left out, and a resumed round finds the same items again.

use std::collections::HashSet;
use std::fs;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::os::unix::fs::symlink;
use std::path::Path;

use souk::atomic_dir::AtomicDir;
use souk::beir::DataFolder;
use souk::catalogue_stream::CatalogueStream;
use souk::changed_catalogue::ChangedCatalogue;
use souk::{Error, Result};
use tokio::runtime::Handle;

/// Data folder in a round's folder.
const FOLDER: &str = "shop";
const CORPUS: &str = "corpus.jsonl";
const QRELS: &str = "qrels";

/// Where rounds find the shop's items.
pub struct RoundCatalogue<'a> {
    pub data: &'a DataFolder,
    pub stream: &'a dyn CatalogueStream,
    pub runtime: &'a Handle,
}

impl RoundCatalogue<'_> {
    /// The data folder of the round in this folder; written when the round begins.
    pub fn open(&self, round: &Path) -> Result<DataFolder> {
        let out = round.join(FOLDER);
        // a killed process leaves an empty folder
        if !out.join(CORPUS).exists() {
            let changed = self.runtime.block_on(ChangedCatalogue::read(self.stream))?;
            let folder = AtomicDir::new(&out)?;
            self.write(&changed, &folder.staging)?;
            folder.finish()?;
        }
        DataFolder::open(&out)
    }

    fn write(&self, changed: &ChangedCatalogue, folder: &Path) -> Result<()> {
        let has_changes = changed.position > 0;
        for entry in fs::read_dir(self.data.path()).map_err(Error::store(self.data.path(), "list it"))? {
            let path = entry.map_err(Error::store(self.data.path(), "list it"))?.path();
            let name = path.file_name().unwrap_or_default();
            if !has_changes || (name != CORPUS && name != QRELS) {
                let (path, link) = (path.canonicalize().map_err(Error::store(&path, "find it"))?, folder.join(name));
                symlink(&path, &link).map_err(Error::store(&link, "link to the shop's data"))?;
            }
        }
        if !has_changes {
            return Ok(());
        }
        let ids = self.write_items(changed, &folder.join(CORPUS))?;
        tracing::info!(catalogue = changed.position, items = ids.len(), "read the catalogue for a round");
        self.write_judgements(&ids, &folder.join(QRELS))
    }

    /// Writes the items; returns their ids.
    fn write_items(&self, changed: &ChangedCatalogue, path: &Path) -> Result<HashSet<String>> {
        let mut file = BufWriter::new(fs::File::create(path).map_err(Error::store(path, "create it"))?);
        let mut ids = HashSet::new();
        for item in changed.over(self.data.items()?.map(|item| item.map(|(_, item)| item))) {
            let item = item?;
            let line = serde_json::to_string(&item).expect("an item has a JSON form");
            writeln!(file, "{line}").map_err(Error::store(path, "write it"))?;
            ids.insert(item.id);
        }
        file.flush().map_err(Error::store(path, "write it"))?;
        Ok(ids)
    }

    /// Copies the judgements of items that are still there.
    fn write_judgements(&self, ids: &HashSet<String>, folder: &Path) -> Result<()> {
        let from = self.data.path().join(QRELS);
        if !from.exists() {
            return Ok(());
        }
        fs::create_dir(folder).map_err(Error::store(folder, "create the folder"))?;
        for entry in fs::read_dir(&from).map_err(Error::store(&from, "list it"))? {
            let path = entry.map_err(Error::store(&from, "list it"))?.path();
            let to = folder.join(path.file_name().unwrap_or_default());
            let input = BufReader::new(fs::File::open(&path).map_err(Error::store(&path, "read it"))?);
            let mut output = BufWriter::new(fs::File::create(&to).map_err(Error::store(&to, "create it"))?);
            for (at, line) in input.lines().enumerate() {
                let line = line.map_err(Error::store(&path, "read it"))?;
                let is_known = line.split('\t').nth(1).is_none_or(|item| ids.contains(item));
                let names_columns = at == 0 && line.starts_with("query-id");
                if names_columns || is_known {
                    writeln!(output, "{line}").map_err(Error::store(&to, "write it"))?;
                }
            }
            output.flush().map_err(Error::store(&to, "write it"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use souk::catalogue_stream::{Mutation, StreamPage};
    use souk::error::Answer;

    use super::*;

    /// A stream of fixed mutations.
    struct Fixed(Vec<Mutation>);

    impl CatalogueStream for Fixed {
        fn id(&self) -> Answer<'_, String> {
            Box::pin(async { Ok("fixed".into()) })
        }

        fn append<'a>(&'a self, _: &'a [Mutation]) -> Answer<'a, u64> {
            unreachable!("the trainer writes no items")
        }

        fn read(&self, after: u64, _: usize, _: Duration) -> Answer<'_, StreamPage> {
            let end = self.0.len() as u64;
            let mutations = (1..).zip(self.0.iter().cloned()).skip(after as usize).collect();
            Box::pin(async move { Ok(StreamPage { mutations, reached: end, end }) })
        }
    }

    #[test]
    fn a_round_keeps_the_items_and_judgements_it_began_with() {
        let home = tempfile::tempdir().unwrap();
        let (shop, runtime) = (home.path().join("data"), tokio::runtime::Runtime::new().unwrap());
        fs::create_dir_all(shop.join("qrels")).unwrap();
        fs::write(shop.join("corpus.jsonl"), "{\"_id\":\"a\"}\n{\"_id\":\"b\"}\n").unwrap();
        fs::write(shop.join("queries.jsonl"), "{\"_id\":\"q\",\"text\":\"x\"}\n").unwrap();
        fs::write(shop.join("qrels/test.tsv"), "query-id\tcorpus-id\tscore\nq\ta\t4\nq\tb\t1\n").unwrap();
        let data = DataFolder::open(&shop).unwrap();
        let put = |line: &str| Mutation::parse(line.as_bytes(), "stream".as_ref(), 1).unwrap();
        let open = |mutations: &[Mutation], round: &str| {
            let stream = Fixed(mutations.to_vec());
            let catalogue = RoundCatalogue { data: &data, stream: &stream, runtime: runtime.handle() };
            let folder = catalogue.open(&home.path().join(round)).unwrap();
            let ids: Vec<String> = folder.items().unwrap().map(|item| item.unwrap().1.id).collect();
            let judged: Vec<String> = folder.judgements("test").unwrap().map(|judged| judged.unwrap().item).collect();
            assert_eq!(folder.queries().unwrap().count(), 1);
            (ids.join(" "), judged.join(" "))
        };
        for round in ["1", "2"] {
            // as a process leaves it that was killed while it wrote the folder
            fs::create_dir_all(home.path().join(round).join(FOLDER)).unwrap();
        }
        assert_eq!(open(&[], "1"), ("a b".into(), "a b".into()));
        let changes = [put("{\"_id\":\"c\"}"), Mutation::Delete("a".into())];
        assert_eq!(open(&changes, "2"), ("b c".into(), "b".into()));
        assert_eq!(open(&changes, "1"), ("a b".into(), "a b".into()), "a round that began earlier");
    }
}
