//! A graph is built in rounds: the nodes of a round look for neighbours in what is there, side by side, then join at once.
//! The same vectors give the same graph, whatever the number of threads. A round adds a fiftieth, so that the nodes of
//! one, which do not see each other, are few beside those that they see.

use std::thread;

use souk_native::{Numbers, product};

use super::walk::{Found, Space, Walker};
use super::{Graph, Layer, View, entry};
use crate::dataset::Permutation;
use crate::index::space::Floats;

#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Links that a node begins with; it may come to have twice as many in the layer of all nodes.
    pub links: usize,
    /// How far it looks around for them.
    pub reach: usize,
    pub threads: usize,
}

/// One node in so many joins in a round.
const ROUND: usize = 50;
const MOST_IN_ROUND: usize = 2000;
/// A thread is not worth starting for fewer.
const SHARE: usize = 8;

/// The number of each layer's nodes, and which row becomes which node. A layer has one node in `links` of the one below it,
/// drawn; so is the order, for rows that stand together are often alike.
pub fn order(num_rows: usize, links: usize) -> (Vec<usize>, Vec<u32>) {
    let drawn = Permutation::new(num_rows as u64, 0);
    let rows = (0..num_rows as u64).map(|node| drawn.at(node) as u32).collect();
    let mut layers = vec![num_rows];
    while let Some(above) = layers.last().map(|num| num / links).filter(|above| *above > 1) {
        layers.push(above);
    }
    (layers, rows)
}

/// Joins the rows of `space`, which stand in the order that `order` gave with these `layers`. `told` hears how many have
/// joined the layer of all nodes.
pub fn build(space: &Floats, layers: &[usize], setting: Setting, told: &mut dyn FnMut(usize)) -> Graph {
    let mut walkers: Vec<Walker> = (0..setting.threads.max(1)).map(|_| Walker::default()).collect();
    // those above the one that grows, the highest last
    let mut above: Vec<Layer> = Vec::new();
    for (level, num) in layers.iter().enumerate().rev() {
        let width = if level == 0 { 2 * setting.links } else { setting.links };
        let mut growing = Growing { width, links: begun(above.first(), width), above: &above, space, setting };
        let mut done = growing.num_nodes();
        while done < *num {
            let size = (done / ROUND).clamp(1, MOST_IN_ROUND).min(num - done);
            growing.join(done, size, &mut walkers);
            done += size;
            if level == 0 {
                told(done);
            }
        }
        let links = Numbers::from(growing.links);
        above.insert(0, Layer { width, links });
    }
    Graph { layers: above }
}

/// A layer begins as the one above it, and the highest with one node.
fn begun(above: Option<&Layer>, width: usize) -> Vec<u32> {
    let Some(above) = above else { return vec![0; 1 + width] };
    let mut links = vec![0; above.view().num_nodes() * (1 + width)];
    for (to, from) in links.chunks_exact_mut(1 + width).zip(above.links.chunks_exact(1 + above.width)) {
        to[..from.len()].copy_from_slice(from);
    }
    links
}

struct Growing<'a> {
    width: usize,
    links: Vec<u32>,
    above: &'a [Layer],
    space: &'a Floats,
    setting: Setting,
}

/// From a node that is there to one that joins.
type Back = (u32, Found);

impl Growing<'_> {
    fn num_nodes(&self) -> usize {
        self.links.len() / (1 + self.width)
    }

    /// Adds `size` nodes from `first` on.
    fn join(&mut self, first: usize, size: usize, walkers: &mut [Walker]) {
        let nodes: Vec<u32> = (first..first + size).map(|node| node as u32).collect();
        let shares = walkers.len().min(size / SHARE).max(1);
        let chosen = self.choose(&nodes, &mut walkers[..shares]);
        let stride = 1 + self.width;
        self.links.resize((first + size) * stride, 0);
        let mut back: Vec<Back> = Vec::new();
        for (node, kept) in nodes.iter().zip(&chosen) {
            write(&mut self.links[*node as usize * stride..][..stride], kept);
            back.extend(kept.iter().map(|found| (found.node, Found { score: found.score, node: *node })));
        }
        back.sort_unstable_by_key(|(to, from)| (*to, from.node));
        self.link_back(&back, shares);
    }

    /// Each node's neighbours among those that are there.
    fn choose(&self, nodes: &[u32], walkers: &mut [Walker]) -> Vec<Vec<Found>> {
        let look = |nodes: &[u32], walker: &mut Walker| -> Vec<Vec<Found>> {
            nodes.iter().map(|node| self.neighbours(*node, walker)).collect()
        };
        if let [walker] = walkers {
            return look(nodes, walker);
        }
        let shares = nodes.chunks(nodes.len().div_ceil(walkers.len()));
        thread::scope(|scope| {
            let look = &look;
            let start = |(nodes, walker)| scope.spawn(move || look(nodes, walker));
            let works: Vec<_> = shares.zip(walkers).map(start).collect();
            works.into_iter().flat_map(|work| work.join().expect("a walk does not panic")).collect()
        })
    }

    fn neighbours(&self, node: u32, walker: &mut Walker) -> Vec<Found> {
        let query = self.space.row(node);
        let entry = entry(self.above, self.space, query, walker);
        let here = View { width: self.width, links: &self.links };
        let found = walker.walk(here, self.space, query, (entry, self.setting.reach));
        let mut kept = Vec::with_capacity(self.setting.links);
        select(self.space, found, self.setting.links, &mut kept);
        kept
    }

    /// Tells those that were chosen; they are shared out, each with its row of links.
    fn link_back(&mut self, back: &[Back], shares: usize) {
        let (space, stride) = (self.space, 1 + self.width);
        thread::scope(|scope| {
            let (mut links, mut begin, mut rest) = (&mut self.links[..], 0, back);
            for share in (1..=shares).rev() {
                let mut cut = rest.len() / share;
                while cut > 0 && cut < rest.len() && rest[cut].0 == rest[cut - 1].0 {
                    cut += 1;
                }
                let (mine, others) = rest.split_at(cut);
                let end = others.first().map_or(begin + links.len() / stride, |(to, _)| *to as usize);
                let (own, further) = links.split_at_mut((end - begin) * stride);
                let first = begin;
                (links, begin, rest) = (further, end, others);
                let mut work = move || tell(space, own, (first, stride), mine);
                if share == 1 {
                    work();
                } else {
                    scope.spawn(work);
                }
            }
        });
    }
}

/// Adds to the links of each node that was chosen, and keeps the best where they become too many.
fn tell(space: &Floats, links: &mut [u32], (first, stride): (usize, usize), back: &[Back]) {
    let (mut all, mut kept, mut scores) = (Vec::new(), Vec::new(), vec![0.0; stride - 1]);
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
        let held = &row[1..][..len];
        space.scores(space.row(node), held, &mut scores[..len]);
        all.extend(held.iter().zip(&scores).map(|(node, score)| Found { score: *score, node: *node }));
        all.sort_unstable_by(|a, b| b.score.total_cmp(&a.score).then(a.node.cmp(&b.node)));
        select(space, &all, stride - 1, &mut kept);
        write(row, &kept);
    }
}

fn write(row: &mut [u32], kept: &[Found]) {
    row[0] = kept.len() as u32;
    for (slot, found) in row[1..].iter_mut().zip(kept) {
        *slot = found.node;
    }
}

/// Keeps of `found`, best first, those that are nearer to the node than to any that is kept: links that lead into different
/// directions. What is few is kept whole, for a first node whose links were thinned would cut off the others.
fn select(space: &Floats, found: &[Found], most: usize, kept: &mut Vec<Found>) {
    kept.clear();
    if found.len() <= most {
        return kept.extend(found);
    }
    for one in found {
        if kept.len() == most {
            break;
        }
        let row = space.row(one.node);
        if kept.iter().all(|other| product(row, space.row(other.node)) < one.score) {
            kept.push(*one);
        }
    }
}
