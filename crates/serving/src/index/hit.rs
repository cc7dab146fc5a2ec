//! Hits of a search. An item of a snapshot is read when it is needed: hybrid search fuses long lists, of which a page shows few.

use std::sync::Arc;

use super::snapshot::Snapshot;
use souk_io::domain::Item;
use souk_io::error::Result;

/// An item that was found, with its similarity.
#[derive(Clone, Debug)]
pub struct IndexHit {
    pub score: f32,
    pub item: HitItem,
}

/// Item of a hit.
#[derive(Clone)]
pub enum HitItem {
    /// Still on disk.
    Stored { snapshot: Arc<Snapshot>, row: u32 },
    Loaded {
        item: Arc<Item>,
        /// The snapshot's row with the same id, if any.
        row: Option<u32>,
    },
}

/// Equal for hits of one index that have the same item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HitKey<'a> {
    Row(u32),
    Id(&'a str),
}

impl HitItem {
    /// An item of an index that reads them at once.
    pub fn of(item: Item) -> Self {
        Self::Loaded { item: Arc::new(item), row: None }
    }

    pub fn load(&self) -> Result<Arc<Item>> {
        match self {
            Self::Stored { snapshot, row } => snapshot.item(*row as usize).map(Arc::new),
            Self::Loaded { item, .. } => Ok(item.clone()),
        }
    }

    /// Reads the item now.
    pub fn fetch(&mut self) -> Result<()> {
        if let Self::Stored { row, .. } = *self {
            *self = Self::Loaded { item: self.load()?, row: Some(row) };
        }
        Ok(())
    }

    pub fn key(&self) -> HitKey<'_> {
        match self {
            Self::Stored { row, .. } | Self::Loaded { row: Some(row), .. } => HitKey::Row(*row),
            Self::Loaded { item, row: None } => HitKey::Id(&item.id),
        }
    }
}

impl std::fmt::Debug for HitItem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("HitItem").field(&self.key()).finish()
    }
}
