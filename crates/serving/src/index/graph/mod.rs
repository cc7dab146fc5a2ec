//! A navigable graph: vectors joined to vectors near them, in layers of which each has fewer and farther ones than the one
//! below (Malkov and Yashunin, 2018). A walk from the first node finds the nearest to a query and looks at few of the rest.
//!
//! Nodes are numbered in the order in which they joined, those of the highest layer first: a layer has the first so many.

mod build;
mod walk;

use souk_native::Numbers;

pub use build::{Grown, Setting, build, order};
pub use walk::{Found, MAX_NODES, Space, Walker, Walkers};

#[derive(Debug)]
pub struct Graph {
    /// The one with all nodes first.
    layers: Vec<Layer>,
}

/// Up to `width` neighbours of each node.
#[derive(Debug)]
pub struct Layer {
    width: usize,
    /// `[n, 1 + width]`: how many, then which; what stands behind them means nothing.
    links: Numbers<u32>,
}

/// A layer as a walk sees it.
#[derive(Clone, Copy)]
struct View<'a> {
    width: usize,
    links: &'a [u32],
}

impl Layer {
    fn view(&self) -> View<'_> {
        View { width: self.width, links: &self.links }
    }
}

impl<'a> View<'a> {
    fn num_nodes(self) -> usize {
        self.links.len() / (1 + self.width)
    }

    fn of(self, node: u32) -> &'a [u32] {
        let row = &self.links[node as usize * (1 + self.width)..][..1 + self.width];
        &row[1..][..row[0] as usize]
    }
}

impl Graph {
    /// Of the links that `layers` gave, each with its width; says what is wrong with them.
    pub fn of(layers: Vec<(usize, Numbers<u32>)>) -> Result<Self, &'static str> {
        let layers: Vec<Layer> = layers.into_iter().map(|(width, links)| Layer { width, links }).collect();
        let mut most = usize::MAX;
        for layer in &layers {
            let num = layer.view().num_nodes();
            if num == 0 || num > most || layer.links.len() != num * (1 + layer.width) {
                return Err("a layer has another size than the one below it allows");
            }
            let sound = |row: &[u32]| {
                let count = row[0] as usize;
                count <= layer.width && row[1..=count].iter().all(|to| (*to as usize) < num)
            };
            if !layer.links.chunks_exact(1 + layer.width).all(sound) {
                return Err("a link leads nowhere");
            }
            most = num;
        }
        if layers.is_empty() { Err("there is no layer") } else { Ok(Self { layers }) }
    }

    /// The links of each layer, the one with all nodes first.
    pub fn layers(&self) -> impl Iterator<Item = &Numbers<u32>> {
        self.layers.iter().map(|layer| &layer.links)
    }

    /// The nodes nearest to the query, best first: at most `reach`, which is also how far the walk looks around.
    pub fn nearest<'a, S: Space>(
        &self,
        space: &S,
        query: &S::Query,
        walker: &'a mut Walker,
        reach: usize,
    ) -> &'a [Found] {
        let entry = entry(&self.layers[1..], space, query, walker);
        walker.walk(self.layers[0].view(), space, query, (entry, reach))
    }
}

/// The node from which a walk begins in the layer below these: the nearest that they lead to.
fn entry<S: Space>(above: &[Layer], space: &S, query: &S::Query, walker: &mut Walker) -> u32 {
    let below = |at, layer: &Layer| walker.walk(layer.view(), space, query, (at, 1))[0].node;
    above.iter().rev().fold(0, below)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::space::{Codes, Floats};

    const WIDTH: usize = 24;

    /// Vectors about some centres, of unit length, the same each time.
    fn drawn(num: usize, seed: u64) -> Vec<f32> {
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

    fn of(flat: &[f32]) -> Floats<'_> {
        Floats { flat, width: WIDTH }
    }

    fn built(space: Floats<'_>, threads: usize) -> Graph {
        let (layers, _) = order(space.num_rows(), 8);
        build(space, &layers, Setting { links: 8, reach: 60, threads }, &mut |_| ())
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
    fn a_walk_finds_what_a_look_at_all_finds() {
        let (rows, queries) = (drawn(3000, 1), drawn(100, 2));
        let space = of(&rows);
        let (graph, codes) = (built(space, 2), Codes::of(space));
        let mut walker = Walker::default();
        let (mut by_floats, mut by_codes) = (0, 0);
        for query in queries.chunks_exact(WIDTH) {
            let truth = exact(space, query, 10);
            let right = |found: &[Found]| found[..10].iter().filter(|found| truth.contains(&found.node)).count();
            by_floats += right(graph.nearest(&space, query, &mut walker, 150));
            by_codes += right(graph.nearest(&codes, &codes.query(query), &mut walker, 150));
        }
        assert!(by_floats >= 980, "{by_floats} of 1000");
        assert!(by_codes >= 950, "{by_codes} of 1000");
    }

    /// Rows that come a few at a time are found as well, once they have joined.
    #[test]
    fn a_graph_that_grows_finds_what_joined_it() {
        let (rows, queries) = (drawn(3000, 5), drawn(100, 6));
        let (mut grown, mut walker) = (Grown::new(Setting { links: 8, reach: 60, threads: 1 }), Walker::default());
        let mut found = 0;
        for num in [1, 2, 500, 3000] {
            let space = of(&rows[..num * WIDTH]);
            while grown.num_nodes() < num {
                let chosen = grown.choose(space, &mut walker);
                grown.link(space, &chosen);
            }
            found = 0;
            for query in queries.chunks_exact(WIDTH) {
                let (truth, best) = (exact(space, query, 10), grown.nearest(space, query, &mut walker, 150));
                assert_eq!(best.len(), num.min(150));
                found += best.iter().take(10).filter(|found| truth.contains(&found.node)).count();
            }
        }
        assert!(found >= 980, "{found} of 1000");
    }

    #[test]
    fn every_size_is_found_whole_when_all_are_asked_for() {
        let mut walker = Walker::default();
        for num in [1, 2, 3, 7, 17, 60, 200, 600] {
            let rows = drawn(num, 3);
            let space = of(&rows);
            let graph = built(space, 2);
            let found = graph.nearest(&space, space.row(0), &mut walker, num);
            assert_eq!((found.len(), found[0].node), (num, 0));
            assert!(found.is_sorted_by(|a, b| a.score >= b.score));
        }
    }

    #[test]
    fn threads_change_nothing() {
        let rows = drawn(1500, 4);
        let [one, three] = [1, 3].map(|threads| built(of(&rows), threads));
        for (a, b) in one.layers().zip(three.layers()) {
            assert_eq!(**a, **b);
        }
        assert_eq!(one.layers().count(), 4);
    }

    #[test]
    fn a_row_of_a_graph_is_drawn_once() {
        let (layers, rows) = order(1000, 16);
        assert_eq!(layers, [1000, 62, 3]);
        let mut sorted = rows.clone();
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..1000));
        assert!(!rows.is_sorted());
    }

    #[test]
    fn links_that_lead_nowhere_are_refused() {
        let one = |links: Vec<u32>| (2, Numbers::from(links));
        assert!(Graph::of(vec![one(vec![1, 1, 0, 1, 0, 0])]).is_ok());
        assert!(Graph::of(Vec::new()).is_err());
        assert!(Graph::of(vec![one(Vec::new())]).is_err());
        assert!(Graph::of(vec![one(vec![1, 2, 0, 1, 0, 0])]).is_err(), "a node that is not there");
        assert!(Graph::of(vec![one(vec![3, 1, 0, 1, 0, 0])]).is_err(), "more links than there is room for");
        assert!(Graph::of(vec![one(vec![0; 3]), one(vec![0; 6])]).is_err(), "a layer larger than the one below");
    }
}
