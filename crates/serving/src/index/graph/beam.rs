//! Beam search in one graph layer: starts at an entry node and expands the best unexpanded node until all of the `ef`
//! best are expanded.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::LayerView;
use crate::index::space::Space;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GraphNeighbor {
    pub score: f32,
    pub node: u32,
}

/// Entry node of a search, and its beam width (`ef`).
#[derive(Clone, Copy)]
pub(super) struct Beam {
    pub entry: u32,
    pub ef: usize,
}

/// Reusable buffers of a search.
#[derive(Default)]
pub struct BeamSearch {
    /// Epoch of the last search that visited each node.
    visited: Vec<u8>,
    epoch: u8,
    /// Best first.
    beam: Vec<GraphNeighbor>,
    fresh: Vec<u32>,
    scores: Vec<f32>,
}

/// Pool of idle search buffers.
#[derive(Default)]
pub struct BeamSearchPool {
    idle: Mutex<Vec<BeamSearch>>,
}

impl BeamSearchPool {
    pub fn with<T>(&self, work: impl FnOnce(&mut BeamSearch) -> T) -> T {
        let mut beam_search = self.idle().pop().unwrap_or_default();
        let done = work(&mut beam_search);
        self.idle().push(beam_search);
        done
    }

    /// a poisoned lock is safe to use: each search resets its buffers
    fn idle(&self) -> MutexGuard<'_, Vec<BeamSearch>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Marks a node of the beam as expanded.
const DONE: u32 = 1 << 31;
/// Upper bound of a graph's nodes: the mark takes one bit.
pub const MAX_NODES: usize = DONE as usize;

impl BeamSearch {
    /// The `ef` best nodes reachable from the entry.
    pub(super) fn search<S: Space>(
        &mut self,
        layer: LayerView,
        space: &S,
        query: &S::Query,
        beam: Beam,
    ) -> &[GraphNeighbor] {
        self.reset(layer.num_nodes());
        self.visit(space, query, &[beam.entry], beam.ef);
        let mut at = 0;
        while let Some(found) = self.beam.get_mut(at) {
            if found.node & DONE != 0 {
                at += 1;
                continue;
            }
            let node = found.node;
            found.node |= DONE;
            let best = self.visit(space, query, layer.neighbors(node), beam.ef);
            at = best.map_or(at + 1, |best| best.min(at + 1));
        }
        for found in &mut self.beam {
            found.node &= !DONE;
        }
        &self.beam
    }

    fn reset(&mut self, num_nodes: usize) {
        if self.visited.len() < num_nodes {
            self.visited.resize(num_nodes, 0);
        }
        if self.epoch == u8::MAX {
            self.visited.fill(0);
            self.epoch = 0;
        }
        self.epoch += 1;
        self.beam.clear();
    }

    /// Adds the unvisited nodes that are good enough to the beam; returns the best position that was filled.
    fn visit<S: Space>(&mut self, space: &S, query: &S::Query, nodes: &[u32], ef: usize) -> Option<usize> {
        self.fresh.clear();
        for &node in nodes {
            let visited = &mut self.visited[node as usize];
            if *visited != self.epoch {
                *visited = self.epoch;
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
            let found = GraphNeighbor { score: self.scores[i], node: self.fresh[i] };
            best = best.into_iter().chain(self.offer(found, ef)).min();
        }
        best
    }

    fn offer(&mut self, found: GraphNeighbor, ef: usize) -> Option<usize> {
        if self.beam.len() >= ef {
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
