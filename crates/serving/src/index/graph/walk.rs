//! One walk through a layer: from a node to the best of the neighbours that were not looked at yet, until none of the best
//! so many is left whose neighbours are unknown.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::View;

/// What distances a walk goes by.
pub trait Space: Sync {
    type Query: ?Sized;

    /// How near each of `nodes` is to the query: the larger, the nearer.
    fn scores(&self, query: &Self::Query, nodes: &[u32], out: &mut [f32]);
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Found {
    pub score: f32,
    pub node: u32,
}

/// What a walk needs and the next one uses again.
#[derive(Default)]
pub struct Walker {
    /// The number of the last walk that saw a node.
    seen: Vec<u8>,
    walk: u8,
    /// Best first.
    beam: Vec<Found>,
    fresh: Vec<u32>,
    scores: Vec<f32>,
}

/// Walkers that no search has now.
#[derive(Default)]
pub struct Walkers {
    idle: Mutex<Vec<Walker>>,
}

impl Walkers {
    pub fn lend<T>(&self, work: impl FnOnce(&mut Walker) -> T) -> T {
        let mut walker = self.idle().pop().unwrap_or_default();
        let done = work(&mut walker);
        self.idle().push(walker);
        done
    }

    /// A walk begins with nothing of the last one, so a panic in between spoils nothing.
    fn idle(&self) -> MutexGuard<'_, Vec<Walker>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Marks a node of the beam whose neighbours were looked at.
const DONE: u32 = 1 << 31;
/// More nodes than this have no mark.
pub const MAX_NODES: usize = DONE as usize;

impl Walker {
    /// The best that a walk from `entry` comes to, `reach` of them.
    pub(super) fn walk<S: Space>(
        &mut self,
        layer: View,
        space: &S,
        query: &S::Query,
        (entry, reach): (u32, usize),
    ) -> &[Found] {
        self.begin(layer.num_nodes());
        self.look(space, query, &[entry], reach);
        let mut at = 0;
        while let Some(found) = self.beam.get_mut(at) {
            if found.node & DONE != 0 {
                at += 1;
                continue;
            }
            let node = found.node;
            found.node |= DONE;
            let best = self.look(space, query, layer.of(node), reach);
            at = best.map_or(at + 1, |best| best.min(at + 1));
        }
        for found in &mut self.beam {
            found.node &= !DONE;
        }
        &self.beam
    }

    fn begin(&mut self, num_nodes: usize) {
        if self.seen.len() < num_nodes {
            self.seen.resize(num_nodes, 0);
        }
        if self.walk == u8::MAX {
            self.seen.fill(0);
            self.walk = 0;
        }
        self.walk += 1;
        self.beam.clear();
    }

    /// Takes those of `nodes` into the beam that were not seen and are good enough; gives the best place that was taken.
    fn look<S: Space>(&mut self, space: &S, query: &S::Query, nodes: &[u32], reach: usize) -> Option<usize> {
        self.fresh.clear();
        for &node in nodes {
            let seen = &mut self.seen[node as usize];
            if *seen != self.walk {
                *seen = self.walk;
                self.fresh.push(node);
            }
        }
        let num = self.fresh.len();
        if self.scores.len() < num {
            self.scores.resize(num, 0.0);
        }
        space.scores(query, &self.fresh, &mut self.scores[..num]);
        let mut best = None;
        for i in 0..num {
            let found = Found { score: self.scores[i], node: self.fresh[i] };
            best = best.into_iter().chain(self.offer(found, reach)).min();
        }
        best
    }

    fn offer(&mut self, found: Found, reach: usize) -> Option<usize> {
        if self.beam.len() >= reach {
            if self.beam.last().is_none_or(|last| last.score >= found.score) {
                return None;
            }
            self.beam.pop();
        }
        let at = self.beam.partition_point(|other| other.score >= found.score);
        self.beam.insert(at, found);
        Some(at)
    }
}
