//! Nearest-neighbor search over the vectors of a catalogue, or of one process's shard of it, by brute force or HNSW. Takes vectors in
//! catalogue order, returns rows with scores.

use std::sync::atomic::AtomicBool;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tch::{Device, Kind, Tensor};

use super::hnsw::Graph;
use super::top;
use souk_io::error::{Error, Result};
use souk_nn::encoder::unit;

/// Scores computed in one block.
const BLOCK: i64 = 1 << 24;

/// Search method of a bank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum BankSearch {
    /// The cheaper of the two, by the number of items and queries.
    #[default]
    Auto,
    /// Brute force: one matrix product, then top-k.
    Exact,
    /// HNSW graph: approximate, and has to be built first.
    Hnsw,
}

/// Number of items from which a graph search is faster than brute force (`benches/candidates.rs`).
const GRAPH_PAYS_FROM: usize = 1_000_000;
/// Number of queries from which building the graph pays off. The build cost and the saving per query both grow with the number of
/// items.
const GRAPH_PAYS_AFTER: u64 = 1_500_000;

impl BankSearch {
    /// Resolves `auto` for a number of items and queries. On a GPU, brute force is always faster.
    pub fn cheaper(self, device: Device, num_items: usize, num_queries: u64) -> Self {
        match self {
            Self::Auto if device == Device::Cpu && num_items >= GRAPH_PAYS_FROM && num_queries >= GRAPH_PAYS_AFTER => {
                Self::Hnsw
            }
            Self::Auto => Self::Exact,
            chosen => chosen,
        }
    }
}

/// Vectors of a catalogue or of one process's shard of it, searchable by cosine.
pub struct Bank {
    /// Catalogue row of the first vector.
    first: i64,
    len: i64,
    index: BankIndex,
}

enum BankIndex {
    /// `[n, d]`
    Exact(Tensor),
    Hnsw(Graph),
}

/// Hits, `[b, k]` each, best first; padded with row -1.
pub struct Nearest {
    /// Cosines; negative infinity past the last item.
    pub scores: Tensor,
    /// Rows of the catalogue; -1 past the last item.
    pub rows: Tensor,
}

impl Bank {
    /// Builds a bank from `[n, d]` vectors of the items from `first` on, which are normalised. `stop` ends the building of a graph early.
    pub fn build(first: usize, vectors: Tensor, search: BankSearch, stop: &AtomicBool) -> Result<Self> {
        let [len, width] = vectors.size()[..] else {
            return Err(Error::input(format!(
                "a bank needs vectors of shape [items, dimensions], not {:?}",
                vectors.size()
            )));
        };
        let vectors = unit(&vectors.to_kind(Kind::Float));
        let index = match search {
            BankSearch::Hnsw if len > 0 => {
                let flat = Vec::<f32>::try_from(vectors.contiguous().view([-1]))?;
                BankIndex::Hnsw(Graph::build(&flat, width as usize, stop))
            }
            _ => BankIndex::Exact(vectors),
        };
        Ok(Self { first: first as i64, len, index })
    }

    /// Nearest rows of each query in `[b, d]`.
    pub fn nearest(&self, queries: &Tensor, k: usize) -> Result<Nearest> {
        let _guard = tch::no_grad_guard();
        let queries = unit(&queries.to_kind(Kind::Float));
        match &self.index {
            BankIndex::Exact(vectors) => Ok(self.by_product(vectors, &queries, k as i64)),
            BankIndex::Hnsw(graph) => self.by_graph(graph, &queries, k),
        }
    }

    fn by_product(&self, vectors: &Tensor, queries: &Tensor, k: i64) -> Nearest {
        let block = (BLOCK / self.len.max(1)).max(1);
        let (mut scores, mut rows) = (Vec::new(), Vec::new());
        for some in queries.split(block, 0) {
            let products = some.matmul(&vectors.tr());
            let places = top(&products, k as usize);
            let lacking = [0, k - places.size()[1]];
            scores.push(products.gather(1, &places, false).constant_pad_nd(lacking));
            rows.push((places + self.first).constant_pad_nd(lacking));
        }
        let (scores, rows) = (Tensor::cat(&scores, 0), Tensor::cat(&rows, 0));
        let lacking = Tensor::arange(k, (Kind::Int64, queries.device())).ge(self.len).expand_as(&rows);
        Nearest { scores: scores.masked_fill(&lacking, f64::NEG_INFINITY), rows: rows.masked_fill(&lacking, -1) }
    }

    fn by_graph(&self, graph: &Graph, queries: &Tensor, k: usize) -> Result<Nearest> {
        let asked = Vec::<Vec<f32>>::try_from(queries.to_device(Device::Cpu))?;
        let (mut scores, mut rows) = (Vec::with_capacity(asked.len() * k), Vec::with_capacity(asked.len() * k));
        for hits in graph.nearest(&asked, k) {
            let lacking = k - hits.len();
            scores.extend(hits.iter().map(|(score, _)| *score).chain(std::iter::repeat_n(f32::NEG_INFINITY, lacking)));
            rows.extend(hits.iter().map(|(_, row)| self.first + *row as i64).chain(std::iter::repeat_n(-1, lacking)));
        }
        let shape = [asked.len() as i64, k as i64];
        let of = |tensor: Tensor| tensor.view(shape).to_device(queries.device());
        Ok(Nearest { scores: of(Tensor::from_slice(&scores)), rows: of(Tensor::from_slice(&rows)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static GOES_ON: AtomicBool = AtomicBool::new(false);

    fn drawn(rows: i64, width: i64) -> Tensor {
        unit(&Tensor::randn([rows, width], (Kind::Float, Device::Cpu)))
    }

    #[test]
    fn the_nearest_rows_are_those_of_the_whole_product() {
        tch::manual_seed(3);
        let (vectors, queries) = (drawn(50, 8), drawn(7, 8));
        let bank = |vectors: Tensor| Bank::build(100, vectors, BankSearch::Exact, &GOES_ON).unwrap();
        let found = bank(vectors.shallow_clone()).nearest(&queries, 5).unwrap();
        let products = queries.matmul(&vectors.tr());
        assert_eq!(found.rows, top(&products, 5) + 100);
        let differs = (found.scores - products.gather(1, &top(&products, 5), false)).abs().max().double_value(&[]);
        assert!(differs < 1e-6, "scores differ by {differs}");
        assert_eq!(bank(vectors.shallow_clone()).nearest(&queries.narrow(0, 0, 0), 5).unwrap().rows.size(), [0, 5]);
        for search in [BankSearch::Exact, BankSearch::Hnsw] {
            for rows in [0, 3] {
                let few = Bank::build(100, vectors.narrow(0, 0, rows), search, &GOES_ON).unwrap();
                let found = few.nearest(&queries, 5).unwrap();
                assert_eq!(found.rows.ge(0).sum(Kind::Int64).int64_value(&[]), 7 * rows, "{search:?} of {rows}");
                assert_eq!(found.scores.isfinite().sum(Kind::Int64).int64_value(&[]), 7 * rows);
            }
        }
        assert!(Bank::build(0, Tensor::zeros([8], (Kind::Float, Device::Cpu)), BankSearch::Exact, &GOES_ON).is_err());
    }

    /// Items in groups of like ones, as a catalogue's are; queries beside them.
    #[test]
    fn a_graph_finds_what_the_product_finds_and_is_the_same_each_time() {
        tch::manual_seed(5);
        let centres = drawn(200, 32);
        let near = |rows: i64| {
            let of = Tensor::randint(200, [rows], (Kind::Int64, Device::Cpu));
            unit(&(centres.index_select(0, &of) + drawn(rows, 32) * 0.7))
        };
        let (vectors, queries) = (near(4000), near(100));
        let search = |search| {
            let bank = Bank::build(0, vectors.shallow_clone(), search, &GOES_ON).unwrap();
            let found = bank.nearest(&queries, 16).unwrap();
            (Vec::<Vec<i64>>::try_from(found.rows).unwrap(), found.scores)
        };
        let ((truth, best), (found, scores)) = (search(BankSearch::Exact), search(BankSearch::Hnsw));
        let shared: usize = truth.iter().zip(&found).map(|(a, b)| a.iter().filter(|row| b.contains(row)).count()).sum();
        assert!(shared as f64 >= 0.99 * 1600.0, "{shared} of 1600 were found");
        let differs = (best.narrow(1, 0, 1) - scores.narrow(1, 0, 1)).abs().max().double_value(&[]);
        assert!(differs < 1e-5, "the first scores differ by {differs}");
        assert_eq!(search(BankSearch::Hnsw).0, found);
    }

    /// A folder without a module that normalises gives vectors of any length.
    #[test]
    fn lengths_do_not_count() {
        tch::manual_seed(7);
        let (vectors, queries) = (drawn(300, 16), drawn(20, 16));
        let longer = &vectors * Tensor::rand([300, 1], (Kind::Float, Device::Cpu)) * 9.0;
        for search in [BankSearch::Exact, BankSearch::Hnsw] {
            let rows = |vectors: &Tensor, queries: &Tensor| {
                Bank::build(0, vectors.shallow_clone(), search, &GOES_ON).unwrap().nearest(queries, 5).unwrap().rows
            };
            assert_eq!(rows(&vectors, &queries), rows(&longer, &(&queries * 5.0)), "{search:?}");
        }
        // the same vector is the nearest to itself, and ends nothing
        let own = Bank::build(0, longer, BankSearch::Hnsw, &GOES_ON).unwrap().nearest(&vectors, 1).unwrap();
        assert_eq!(own.rows.view([-1]), Tensor::arange(300, (Kind::Int64, Device::Cpu)));
        assert!((own.scores - 1.0_f64).abs().max().double_value(&[]) < 1e-5);
    }

    #[test]
    fn auto_is_what_was_measured_to_cost_less() {
        let auto = |device, items, queries| BankSearch::Auto.cheaper(device, items, queries);
        assert_eq!(auto(Device::Cpu, 20_000, 6_400), BankSearch::Exact);
        assert_eq!(auto(Device::Cpu, 2_000_000, 2_000_000), BankSearch::Hnsw);
        assert_eq!(auto(Device::Cpu, 100_000, 2_000_000), BankSearch::Exact);
        assert_eq!(auto(Device::Cuda(0), 2_000_000, 2_000_000), BankSearch::Exact);
        assert_eq!(BankSearch::Hnsw.cheaper(Device::Cpu, 10, 1), BankSearch::Hnsw);
    }
}
