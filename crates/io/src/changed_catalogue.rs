//! The catalogue as it is now: the items of a data folder with the changes of the stream on top.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use crate::catalogue_stream::{CatalogueStream, Mutation};
use crate::domain::Item;
use crate::error::{Error, Result};

/// Mutations read at once.
const PAGE: usize = 4096;
/// Time that one read waits, and that all wait without any change.
const PATIENCE: Duration = Duration::from_millis(500);
const MAX_SILENCE: Duration = Duration::from_secs(30);

/// The changes of a stream up to a position, by item.
#[derive(Default)]
pub struct ChangedCatalogue {
    changes: HashMap<String, Vec<Mutation>>,
    /// Ids in the order of their first mutation that is still in the stream.
    ids: Vec<String>,
    pub position: u64,
}

impl ChangedCatalogue {
    /// Reads the stream to its present end.
    pub async fn read(stream: &dyn CatalogueStream) -> Result<Self> {
        let mut read = Self::default();
        read.position = read_to_end(stream, &mut |mutation| {
            read.add(mutation);
            Ok(())
        })
        .await?;
        Ok(read)
    }

    fn add(&mut self, mutation: Mutation) {
        match self.changes.get_mut(mutation.id()) {
            Some(changes) => {
                if !matches!(mutation, Mutation::Update(..)) {
                    changes.clear();
                }
                changes.push(mutation);
            }
            None => {
                self.ids.push(mutation.id().to_owned());
                self.changes.insert(mutation.id().to_owned(), vec![mutation]);
            }
        }
    }

    /// Items of the catalogue: those of the data folder in its order, then the new ones.
    pub fn over<'a>(
        &'a self,
        items: impl Iterator<Item = Result<Item>> + 'a,
    ) -> impl Iterator<Item = Result<Item>> + 'a {
        let mut in_folder = HashSet::new();
        let mut items = items.fuse();
        let mut new = self.ids.iter();
        std::iter::from_fn(move || {
            for item in items.by_ref() {
                let item = match item {
                    Ok(item) => item,
                    Err(error) => return Some(Err(error)),
                };
                let Some((id, changes)) = self.changes.get_key_value(&item.id) else { return Some(Ok(item)) };
                in_folder.insert(id.as_str());
                if let Some(item) = result(changes, Some(item)) {
                    return Some(Ok(item));
                }
            }
            new.by_ref()
                .filter(|id| !in_folder.contains(id.as_str()))
                .find_map(|id| result(&self.changes[id], None))
                .map(Ok)
        })
    }
}

fn result(changes: &[Mutation], before: Option<Item>) -> Option<Item> {
    changes.iter().fold(before, |item, mutation| mutation.apply(item))
}

/// Reads a stream to its present end, whose position it returns.
pub async fn read_to_end(
    stream: &dyn CatalogueStream,
    visit: &mut (dyn FnMut(Mutation) -> Result<()> + Send),
) -> Result<u64> {
    let (mut position, mut progress) = (0, Instant::now());
    loop {
        let page = stream.read(position, PAGE, PATIENCE).await?;
        if page.reached > position {
            progress = Instant::now();
        }
        page.mutations.into_iter().try_for_each(|(_, mutation)| visit(mutation))?;
        position = page.reached.max(position);
        if position >= page.end {
            return Ok(position);
        }
        if progress.elapsed() > MAX_SILENCE {
            let problem = format!("did not deliver the changes from {} to {}", position + 1, page.end);
            let service = "the catalogue stream".into();
            return Err(Error::Upstream { service, problem, retryable: true, source: None });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn parse(line: &str) -> Mutation {
        Mutation::parse(line.as_bytes(), Path::new("stream"), 1).unwrap()
    }

    fn item(line: &str) -> Item {
        serde_json::from_str(line).unwrap()
    }

    #[test]
    fn changes_apply_in_order_over_the_folder() {
        let mut changed = ChangedCatalogue::default();
        for line in [
            r#"{"_id":"new","title":"1"}"#,
            r#"{"_id":"b","_update":{"price":2}}"#,
            r#"{"_id":"gone","_deleted":true}"#,
            r#"{"_id":"c","_update":{"price":9}}"#,
            r#"{"_id":"c","title":"put"}"#,
            r#"{"_id":"none","_update":{"price":1}}"#,
            r#"{"_id":"new","_update":{"title":"2"}}"#,
        ] {
            changed.add(parse(line));
        }
        let folder = ["a", "b", "gone", "c"].map(|id| Ok(item(&format!(r#"{{"_id":"{id}","title":"t","price":1}}"#))));
        let found: Vec<Item> = changed.over(folder.into_iter()).map(|item| item.unwrap()).collect();
        let expected = [
            r#"{"_id":"a","title":"t","price":1}"#,
            r#"{"_id":"b","title":"t","price":2}"#,
            r#"{"_id":"c","title":"put"}"#,
            r#"{"_id":"new","title":"2"}"#,
        ];
        assert_eq!(found, expected.map(item));
    }
}
