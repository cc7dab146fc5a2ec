//! A graph is built in rounds: the nodes of a round look for neighbours in what is there, side by side, then join at once.
//! The same vectors give the same graph, whatever the number of threads. A round adds a fiftieth, so that the nodes of
//! one, which do not see each other, are few beside those that they see.

use std::ops::Range;
use std::thread;

use souk_native::{Numbers, product};

use super::walk::{Found, Space, Walker};
use super::{Graph, Layer, View, entry};
use crate::index::space::Floats;
use souk_io::shuffle::Permutation;

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
const MAX_IN_ROUND: usize = 2000;
/// Of a graph that is searched meanwhile, which waits for them.
const MAX_AT_ONCE: usize = 32;
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
pub fn build(space: Floats<'_>, layers: &[usize], setting: Setting, told: &mut dyn FnMut(usize)) -> Graph {
    let mut walkers: Vec<Walker> = (0..setting.threads.max(1)).map(|_| Walker::default()).collect();
    // those above the one that grows, the highest last
    let mut above: Vec<Layer> = Vec::new();
    for (level, num) in layers.iter().enumerate().rev() {
        let width = if level == 0 { 2 * setting.links } else { setting.links };
        let mut links = begun(above.first(), width);
        let mut done = links.len() / (1 + width);
        while done < *num {
            let nodes = done..done + round(done).min(num - done);
            let chosen = choose(space, (&above, View { width, links: &links }), &setting, nodes, &mut walkers);
            done = link(space, &mut links, width, &chosen, walkers.len());
            if level == 0 {
                told(done);
            }
        }
        above.insert(0, Layer { width, links: Numbers::from(links) });
    }
    Graph { layers: above }
}

/// How many may join at once what so many others have joined.
fn round(done: usize) -> usize {
    (done / ROUND).clamp(1, MAX_IN_ROUND)
}

/// A graph that rows join as they come: one layer, for they are few. What has not joined yet, a walk does not find.
pub struct Grown {
    setting: Setting,
    links: Vec<u32>,
}

impl Grown {
    pub fn new(setting: Setting) -> Self {
        Self { setting, links: Vec::new() }
    }

    fn view(&self) -> View<'_> {
        View { width: 2 * self.setting.links, links: &self.links }
    }

    pub fn num_nodes(&self) -> usize {
        self.view().num_nodes()
    }

    /// The neighbours of the next rows of `space` that may join, as `link` takes them; it is not called in between.
    pub fn choose(&self, space: Floats<'_>, walker: &mut Walker) -> Vec<Vec<Found>> {
        let (done, num) = (self.num_nodes(), space.num_rows());
        if done == 0 {
            return vec![Vec::new(); num.min(1)];
        }
        let nodes = done..num.min(done + round(done).min(MAX_AT_ONCE));
        choose(space, (&[], self.view()), &self.setting, nodes, std::slice::from_mut(walker))
    }

    /// Lets the rows join that neighbours were chosen for.
    pub fn link(&mut self, space: Floats<'_>, chosen: &[Vec<Found>]) {
        link(space, &mut self.links, 2 * self.setting.links, chosen, 1);
    }

    /// The nodes nearest to the query, best first: at most `reach`, which is also how far the walk looks around.
    pub fn nearest<'a>(&self, space: Floats<'_>, query: &[f32], walker: &'a mut Walker, reach: usize) -> &'a [Found] {
        walker.walk(self.view(), &space, query, (0, reach))
    }
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

/// From a node that is there to one that joins.
type Back = (u32, Found);

/// The neighbours of each of `nodes` among those that are there, found by as many threads as there are walkers.
fn choose(
    space: Floats<'_>,
    (above, here): (&[Layer], View<'_>),
    setting: &Setting,
    nodes: Range<usize>,
    walkers: &mut [Walker],
) -> Vec<Vec<Found>> {
    let look = |nodes: Range<usize>, walker: &mut Walker| -> Vec<Vec<Found>> {
        let neighbours = |node: usize| {
            let query = space.row(node as u32);
            let entry = entry(above, &space, query, walker);
            let found = walker.walk(here, &space, query, (entry, setting.reach));
            let mut kept = Vec::with_capacity(setting.links);
            select(space, found, setting.links, &mut kept);
            kept
        };
        nodes.map(neighbours).collect()
    };
    let shares = walkers.len().min(nodes.len() / SHARE).max(1);
    if shares == 1 {
        return look(nodes, &mut walkers[0]);
    }
    let (look, size) = (&look, nodes.len().div_ceil(shares));
    thread::scope(|scope| {
        let starts = nodes.clone().step_by(size);
        let start = |(from, walker)| {
            let share = from..nodes.end.min(from + size);
            scope.spawn(move || look(share, walker))
        };
        let works: Vec<_> = starts.zip(walkers).map(start).collect();
        works.into_iter().flat_map(|work| work.join().expect("a walk does not panic")).collect()
    })
}

/// Adds a node for each that neighbours were chosen for, and tells these; gives how many nodes there are now.
fn link(space: Floats<'_>, links: &mut Vec<u32>, width: usize, chosen: &[Vec<Found>], threads: usize) -> usize {
    let stride = 1 + width;
    let first = links.len() / stride;
    links.resize((first + chosen.len()) * stride, 0);
    let mut back: Vec<Back> = Vec::new();
    for (node, kept) in (first..).zip(chosen) {
        write(&mut links[node * stride..][..stride], kept);
        back.extend(kept.iter().map(|found| (found.node, Found { score: found.score, node: node as u32 })));
    }
    back.sort_unstable_by_key(|(to, from)| (*to, from.node));
    link_back(space, links, stride, &back, threads.min(chosen.len() / SHARE).max(1));
    first + chosen.len()
}

/// Tells those that were chosen; they are shared out, each with its row of links.
fn link_back(space: Floats<'_>, links: &mut [u32], stride: usize, back: &[Back], shares: usize) {
    thread::scope(|scope| {
        let (mut links, mut begin, mut rest) = (links, 0, back);
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

/// Adds to the links of each node that was chosen, and keeps the best where they become too many.
fn tell(space: Floats<'_>, links: &mut [u32], (first, stride): (usize, usize), back: &[Back]) {
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
fn select(space: Floats<'_>, found: &[Found], most: usize, kept: &mut Vec<Found>) {
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
