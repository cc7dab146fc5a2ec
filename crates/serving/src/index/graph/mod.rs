//! HNSW graph: vectors linked to near vectors, in layers of which each has fewer nodes than the one below (Malkov and
//! Yashunin, 2018). A search from the first node finds the nearest vectors and scores few of the others.
//!
//! Nodes are numbered in insertion order, those of the highest layer first, so a layer is a prefix of the nodes.

mod beam;
mod build;

use souk_native::Numbers;

use super::space::Space;

use beam::Beam;
pub use beam::{BeamSearch, BeamSearchPool, GraphNeighbor, MAX_NODES};
pub use build::{GrowingGraph, HnswParams, build, plan_layers};

#[derive(Debug)]
pub struct HnswGraph {
    /// Full layer first.
    layers: Vec<Layer>,
}

/// Up to `width` neighbors of each node.
#[derive(Debug)]
pub struct Layer {
    width: usize,
    /// `[n, 1 + width]`: count, then neighbors; the rest of a row is unused.
    links: Numbers<u32>,
}

/// A layer for searching.
#[derive(Clone, Copy)]
struct LayerView<'a> {
    width: usize,
    links: &'a [u32],
}

impl Layer {
    fn view(&self) -> LayerView<'_> {
        LayerView { width: self.width, links: &self.links }
    }
}

impl<'a> LayerView<'a> {
    fn num_nodes(self) -> usize {
        self.links.len() / (1 + self.width)
    }

    fn neighbors(self, node: u32) -> &'a [u32] {
        let row = &self.links[node as usize * (1 + self.width)..][..1 + self.width];
        &row[1..][..row[0] as usize]
    }
}

impl HnswGraph {
    /// Graph from stored layers (width and links), or what is wrong with them.
    pub fn from_layers(layers: Vec<(usize, Numbers<u32>)>) -> Result<Self, &'static str> {
        let layers: Vec<Layer> = layers.into_iter().map(|(width, links)| Layer { width, links }).collect();
        let mut max_nodes = usize::MAX;
        for layer in &layers {
            let num = layer.view().num_nodes();
            if num == 0 || num > max_nodes || layer.links.len() != num * (1 + layer.width) {
                return Err("a layer has more nodes than the one below it, or an incomplete row");
            }
            let is_valid = |row: &[u32]| {
                let count = row[0] as usize;
                count <= layer.width && row[1..=count].iter().all(|to| (*to as usize) < num)
            };
            if !layer.links.chunks_exact(1 + layer.width).all(is_valid) {
                return Err("a link points to a node that does not exist");
            }
            max_nodes = num;
        }
        if layers.is_empty() { Err("the graph has no layers") } else { Ok(Self { layers }) }
    }

    /// Links of each layer, the full layer first.
    pub fn layers(&self) -> impl Iterator<Item = &Numbers<u32>> {
        self.layers.iter().map(|layer| &layer.links)
    }

    /// Up to `ef` nearest nodes, best first.
    pub fn nearest<'a, S: Space>(
        &self,
        space: &S,
        query: &S::Query,
        beam_search: &'a mut BeamSearch,
        ef: usize,
    ) -> &'a [GraphNeighbor] {
        let entry = entry_point(&self.layers[1..], space, query, beam_search);
        beam_search.search(self.layers[0].view(), space, query, Beam { entry, ef })
    }
}

/// Entry node for the layer below: the nearest node that the layers above lead to.
fn entry_point<S: Space>(above: &[Layer], space: &S, query: &S::Query, beam_search: &mut BeamSearch) -> u32 {
    let below = |at, layer: &Layer| beam_search.search(layer.view(), space, query, Beam { entry: at, ef: 1 })[0].node;
    above.iter().rev().fold(0, below)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::space::{Floats, Int8Codes};

    const WIDTH: usize = 24;

    /// Unit vectors around 20 random centers, deterministic by seed.
    fn random_vectors(num: usize, seed: u64) -> Vec<f32> {
        let mut state = seed;
        let mut number = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        };
        let centres: Vec<f32> = (0..20 * WIDTH).map(|_| number()).collect();
        let mut flat = Vec::new();
        for i in 0..num {
            let row: Vec<f32> = (0..WIDTH).map(|x| centres[i % 20 * WIDTH + x] + number()).collect();
            let length = row.iter().map(|x| x * x).sum::<f32>().sqrt();
            flat.extend(row.into_iter().map(|x| x / length));
        }
        flat
    }

    fn floats(flat: &[f32]) -> Floats<'_> {
        Floats { flat, width: WIDTH }
    }

    fn build_graph(space: Floats<'_>, threads: usize) -> HnswGraph {
        let (layers, _) = plan_layers(space.num_rows(), 8);
        build(space, &layers, HnswParams { links: 8, ef_construction: 60, threads }, &mut |_| ())
    }

    fn exact(space: Floats<'_>, query: &[f32], k: usize) -> Vec<u32> {
        let rows: Vec<u32> = (0..space.num_rows() as u32).collect();
        let mut scores = vec![0.0; rows.len()];
        space.scores(query, &rows, &mut scores);
        let mut best = rows;
        best.sort_by(|a, b| scores[*b as usize].total_cmp(&scores[*a as usize]));
        best.truncate(k);
        best
    }

    #[test]
    fn graph_search_matches_brute_force() {
        let (rows, queries) = (random_vectors(3000, 1), random_vectors(100, 2));
        let space = floats(&rows);
        let (graph, codes) = (build_graph(space, 2), Int8Codes::quantize(space));
        let mut beam_search = BeamSearch::default();
        let (mut by_floats, mut by_codes) = (0, 0);
        for query in queries.chunks_exact(WIDTH) {
            let truth = exact(space, query, 10);
            let right =
                |found: &[GraphNeighbor]| found[..10].iter().filter(|found| truth.contains(&found.node)).count();
            by_floats += right(graph.nearest(&space, query, &mut beam_search, 150));
            by_codes += right(graph.nearest(&codes, &codes.query(query), &mut beam_search, 150));
        }
        assert!(by_floats >= 980, "{by_floats} of 1000");
        assert!(by_codes >= 950, "{by_codes} of 1000");
    }

    /// A graph that grows in small rounds finds its rows as well.
    #[test]
    fn growing_graph_finds_added_rows() {
        let (rows, queries) = (random_vectors(3000, 5), random_vectors(100, 6));
        let (mut grown, mut beam_search) =
            (GrowingGraph::new(HnswParams { links: 8, ef_construction: 60, threads: 1 }), BeamSearch::default());
        let mut found = 0;
        for num in [1, 2, 500, 3000] {
            let space = floats(&rows[..num * WIDTH]);
            while grown.num_nodes() < num {
                let chosen = grown.choose(space, &mut beam_search);
                grown.link(space, &chosen);
            }
            found = 0;
            for query in queries.chunks_exact(WIDTH) {
                let (truth, best) = (exact(space, query, 10), grown.nearest(space, query, &mut beam_search, 150));
                assert_eq!(best.len(), num.min(150));
                found += best.iter().take(10).filter(|found| truth.contains(&found.node)).count();
            }
        }
        assert!(found >= 980, "{found} of 1000");
    }

    #[test]
    fn returns_all_nodes_when_ef_is_their_number() {
        let mut beam_search = BeamSearch::default();
        for num in [1, 2, 3, 7, 17, 60, 200, 600] {
            let rows = random_vectors(num, 3);
            let space = floats(&rows);
            let graph = build_graph(space, 2);
            let found = graph.nearest(&space, space.row(0), &mut beam_search, num);
            assert_eq!((found.len(), found[0].node), (num, 0));
            assert!(found.is_sorted_by(|a, b| a.score >= b.score));
        }
    }

    #[test]
    fn graph_does_not_depend_on_threads() {
        let rows = random_vectors(1500, 4);
        let [one, three] = [1, 3].map(|threads| build_graph(floats(&rows), threads));
        for (a, b) in one.layers().zip(three.layers()) {
            assert_eq!(**a, **b);
        }
        assert_eq!(one.layers().count(), 4);
    }

    #[test]
    fn layer_plan_is_a_permutation() {
        let (layers, rows) = plan_layers(1000, 16);
        assert_eq!(layers, [1000, 62, 3]);
        let mut sorted = rows.clone();
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..1000));
        assert!(!rows.is_sorted());
    }

    #[test]
    fn rejects_invalid_links() {
        let one = |links: Vec<u32>| (2, Numbers::from(links));
        assert!(HnswGraph::from_layers(vec![one(vec![1, 1, 0, 1, 0, 0])]).is_ok());
        assert!(HnswGraph::from_layers(Vec::new()).is_err());
        assert!(HnswGraph::from_layers(vec![one(Vec::new())]).is_err());
        assert!(HnswGraph::from_layers(vec![one(vec![1, 2, 0, 1, 0, 0])]).is_err(), "a node that does not exist");
        assert!(HnswGraph::from_layers(vec![one(vec![3, 1, 0, 1, 0, 0])]).is_err(), "more links than the width");
        assert!(
            HnswGraph::from_layers(vec![one(vec![0; 3]), one(vec![0; 6])]).is_err(),
            "a layer larger than the one below"
        );
    }
}
