//! Graph construction in rounds: the nodes of a round search for neighbors in parallel, then join at once. The result
//! does not depend on the number of threads. A round adds one fiftieth of the nodes present, so that the nodes of a
//! round, which cannot see each other, are few.

use std::ops::Range;
use std::thread;

use souk_native::{Numbers, product};

use super::beam::{Beam, BeamSearch, GraphNeighbor};
use super::{HnswGraph, Layer, LayerView, entry_point};
use crate::index::space::{Floats, Space};
use souk_io::shuffle::Permutation;

#[derive(Clone, Copy, Debug)]
pub struct HnswParams {
    /// Links of a new node; a node can get twice as many in the full layer.
    pub links: usize,
    /// Search width when looking for neighbors.
    pub ef_construction: usize,
    pub threads: usize,
}

/// Nodes present per node that joins in a round.
const NODES_PER_NEW_NODE: usize = 50;
const MAX_ROUND: usize = 2000;
/// Maximum round of a graph that is being searched: searches wait for the round.
const MAX_LIVE_ROUND: usize = 32;
/// Fewest nodes for an extra thread.
const MIN_NODES_PER_THREAD: usize = 8;

/// Number of nodes per layer, and the row of each node. Each layer has 1/`links` of the nodes of the one below, chosen
/// at random; the order of rows is random too, because adjacent rows are often similar.
pub fn plan_layers(num_rows: usize, links: usize) -> (Vec<usize>, Vec<u32>) {
    let permutation = Permutation::new(num_rows as u64, 0);
    let rows = (0..num_rows as u64).map(|node| permutation.at(node) as u32).collect();
    let mut layers = vec![num_rows];
    while let Some(above) = layers.last().map(|num| num / links).filter(|above| *above > 1) {
        layers.push(above);
    }
    (layers, rows)
}

/// Builds the graph over the rows of `space`, ordered as `plan_layers` returned them with these `layers`. `report` gets
/// the number of nodes in the full layer so far.
pub fn build(space: Floats<'_>, layers: &[usize], params: HnswParams, report: &mut dyn FnMut(usize)) -> HnswGraph {
    let mut beams: Vec<BeamSearch> = (0..params.threads.max(1)).map(|_| BeamSearch::default()).collect();
    // layers above the current one, highest last
    let mut above: Vec<Layer> = Vec::new();
    for (level, num) in layers.iter().enumerate().rev() {
        let width = if level == 0 { 2 * params.links } else { params.links };
        let mut links = layer_from_above(above.first(), width);
        let mut done = links.len() / (1 + width);
        while done < *num {
            let nodes = done..done + round_size(done).min(num - done);
            let chosen = choose(
                space,
                GraphView { above: &above, layer: LayerView { width, links: &links } },
                &params,
                nodes,
                &mut beams,
            );
            done = add_nodes(space, &mut links, width, &chosen, beams.len());
            if level == 0 {
                report(done);
            }
        }
        above.insert(0, Layer { width, links: Numbers::from(links) });
    }
    HnswGraph { layers: above }
}

/// Number of nodes that can join at once.
fn round_size(done: usize) -> usize {
    (done / NODES_PER_NEW_NODE).clamp(1, MAX_ROUND)
}

/// Single-layer graph that rows join one round at a time. A search does not find rows that have not joined.
pub struct GrowingGraph {
    params: HnswParams,
    links: Vec<u32>,
}

impl GrowingGraph {
    pub fn new(params: HnswParams) -> Self {
        Self { params, links: Vec::new() }
    }

    fn view(&self) -> LayerView<'_> {
        LayerView { width: 2 * self.params.links, links: &self.links }
    }

    pub fn num_nodes(&self) -> usize {
        self.view().num_nodes()
    }

    /// Neighbors of the next rows that can join, for `link`; call them in turn.
    pub fn choose(&self, space: Floats<'_>, beam_search: &mut BeamSearch) -> Vec<Vec<GraphNeighbor>> {
        let (done, num) = (self.num_nodes(), space.num_rows());
        if done == 0 {
            return vec![Vec::new(); num.min(1)];
        }
        let nodes = done..num.min(done + round_size(done).min(MAX_LIVE_ROUND));
        choose(
            space,
            GraphView { above: &[], layer: self.view() },
            &self.params,
            nodes,
            std::slice::from_mut(beam_search),
        )
    }

    /// Adds the rows whose neighbors were chosen.
    pub fn link(&mut self, space: Floats<'_>, chosen: &[Vec<GraphNeighbor>]) {
        add_nodes(space, &mut self.links, 2 * self.params.links, chosen, 1);
    }

    /// Up to `ef` nearest nodes, best first.
    pub fn nearest<'a>(
        &self,
        space: Floats<'_>,
        query: &[f32],
        beam_search: &'a mut BeamSearch,
        ef: usize,
    ) -> &'a [GraphNeighbor] {
        beam_search.search(self.view(), &space, query, Beam { entry: 0, ef })
    }
}

/// A layer starts as a copy of the one above; the highest starts with one node.
fn layer_from_above(above: Option<&Layer>, width: usize) -> Vec<u32> {
    let Some(above) = above else { return vec![0; 1 + width] };
    let mut links = vec![0; above.view().num_nodes() * (1 + width)];
    for (to, from) in links.chunks_exact_mut(1 + width).zip(above.links.chunks_exact(1 + above.width)) {
        to[..from.len()].copy_from_slice(from);
    }
    links
}

/// Link from an existing node to a new one.
type BackLink = (u32, GraphNeighbor);

/// The graph built so far: the layers above, and the layer that grows.
#[derive(Clone, Copy)]
struct GraphView<'a> {
    above: &'a [Layer],
    layer: LayerView<'a>,
}

/// Neighbors of each of `nodes` among the nodes present, using one thread per beam search.
fn choose(
    space: Floats<'_>,
    graph: GraphView<'_>,
    params: &HnswParams,
    nodes: Range<usize>,
    beams: &mut [BeamSearch],
) -> Vec<Vec<GraphNeighbor>> {
    let search = |nodes: Range<usize>, beam_search: &mut BeamSearch| -> Vec<Vec<GraphNeighbor>> {
        let neighbours = |node: usize| {
            let query = space.row(node as u32);
            let entry = entry_point(graph.above, &space, query, beam_search);
            let found = beam_search.search(graph.layer, &space, query, Beam { entry, ef: params.ef_construction });
            let mut chosen = Vec::with_capacity(params.links);
            select_diverse(space, found, params.links, &mut chosen);
            chosen
        };
        nodes.map(neighbours).collect()
    };
    let num_parts = beams.len().min(nodes.len() / MIN_NODES_PER_THREAD).max(1);
    if num_parts == 1 {
        return search(nodes, &mut beams[0]);
    }
    let (search, size) = (&search, nodes.len().div_ceil(num_parts));
    thread::scope(|scope| {
        let starts = nodes.clone().step_by(size);
        let start = |(from, beam_search)| {
            let part = from..nodes.end.min(from + size);
            scope.spawn(move || search(part, beam_search))
        };
        let works: Vec<_> = starts.zip(beams).map(start).collect();
        works.into_iter().flat_map(|work| work.join().expect("a graph search does not panic")).collect()
    })
}

/// Adds a node for each list of neighbors, and links back to it; returns the number of nodes.
fn add_nodes(
    space: Floats<'_>,
    links: &mut Vec<u32>,
    width: usize,
    chosen: &[Vec<GraphNeighbor>],
    threads: usize,
) -> usize {
    let stride = 1 + width;
    let first = links.len() / stride;
    links.resize((first + chosen.len()) * stride, 0);
    let mut back: Vec<BackLink> = Vec::new();
    for (node, neighbors) in (first..).zip(chosen) {
        write_row(&mut links[node * stride..][..stride], neighbors);
        back.extend(
            neighbors.iter().map(|found| (found.node, GraphNeighbor { score: found.score, node: node as u32 })),
        );
    }
    back.sort_unstable_by_key(|(to, from)| (*to, from.node));
    add_all_back_links(space, links, stride, &back, threads.min(chosen.len() / MIN_NODES_PER_THREAD).max(1));
    first + chosen.len()
}

/// Adds the links back, in parallel over disjoint ranges of nodes.
fn add_all_back_links(space: Floats<'_>, links: &mut [u32], stride: usize, back: &[BackLink], num_parts: usize) {
    thread::scope(|scope| {
        let (mut links, mut begin, mut rest) = (links, 0, back);
        for remaining in (1..=num_parts).rev() {
            let mut cut = rest.len() / remaining;
            while cut > 0 && cut < rest.len() && rest[cut].0 == rest[cut - 1].0 {
                cut += 1;
            }
            let (mine, others) = rest.split_at(cut);
            let end = others.first().map_or(begin + links.len() / stride, |(to, _)| *to as usize);
            let (own, further) = links.split_at_mut((end - begin) * stride);
            let first = begin;
            (links, begin, rest) = (further, end, others);
            let mut work = move || add_back_links(space, own, first, stride, mine);
            if remaining == 1 {
                work();
            } else {
                scope.spawn(work);
            }
        }
    });
}

/// Adds links to existing nodes and keeps a diverse selection where there are too many.
fn add_back_links(space: Floats<'_>, links: &mut [u32], first: usize, stride: usize, back: &[BackLink]) {
    let (mut all, mut chosen, mut scores) = (Vec::new(), Vec::new(), vec![0.0; stride - 1]);
    for group in back.chunk_by(|a, b| a.0 == b.0) {
        let node = group[0].0;
        let row = &mut links[(node as usize - first) * stride..][..stride];
        let len = row[0] as usize;
        if len + group.len() < stride {
            for (slot, (_, from)) in row[1 + len..].iter_mut().zip(group) {
                *slot = from.node;
            }
            row[0] += group.len() as u32;
            continue;
        }
        all.clear();
        all.extend(group.iter().map(|(_, from)| *from));
        let old = &row[1..][..len];
        space.scores(space.row(node), old, &mut scores[..len]);
        all.extend(old.iter().zip(&scores).map(|(node, score)| GraphNeighbor { score: *score, node: *node }));
        all.sort_unstable_by(|a, b| b.score.total_cmp(&a.score).then(a.node.cmp(&b.node)));
        select_diverse(space, &all, stride - 1, &mut chosen);
        write_row(row, &chosen);
    }
}

fn write_row(row: &mut [u32], neighbors: &[GraphNeighbor]) {
    row[0] = neighbors.len() as u32;
    for (slot, found) in row[1..].iter_mut().zip(neighbors) {
        *slot = found.node;
    }
}

/// Diverse selection from `found`, best first: skips a node that is nearer to a selected node than to the query node,
/// so that links lead in different directions. Short lists are kept as they are: pruning the links of the first nodes
/// would disconnect the graph.
fn select_diverse(space: Floats<'_>, found: &[GraphNeighbor], max: usize, chosen: &mut Vec<GraphNeighbor>) {
    chosen.clear();
    if found.len() <= max {
        return chosen.extend(found);
    }
    for one in found {
        if chosen.len() == max {
            break;
        }
        let row = space.row(one.node);
        if chosen.iter().all(|other| product(row, space.row(other.node)) < one.score) {
            chosen.push(*one);
        }
    }
}
