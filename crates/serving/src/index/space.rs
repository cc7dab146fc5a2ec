//! Vectors of an index as f32 and as int8 codes. Both score numbered rows against a query; int8 is approximate and
//! takes a quarter of the memory.

use souk_native::{Numbers, code_products, products};

/// Similarity of a query to numbered vectors.
pub trait Space: Sync {
    type Query: ?Sized;

    /// Writes the similarity of each of `nodes` to the query; larger is nearer.
    fn scores(&self, query: &Self::Query, nodes: &[u32], out: &mut [f32]);
}

/// `[n, width]`.
#[derive(Clone, Copy, Debug)]
pub struct Floats<'a> {
    pub flat: &'a [f32],
    pub width: usize,
}

impl<'a> Floats<'a> {
    pub fn row(self, row: u32) -> &'a [f32] {
        &self.flat[row as usize * self.width..][..self.width]
    }

    pub fn num_rows(self) -> usize {
        self.flat.len() / self.width
    }
}

impl Space for Floats<'_> {
    type Query = [f32];

    fn scores(&self, query: &[f32], rows: &[u32], out: &mut [f32]) {
        products(query, self.flat, rows, out);
    }
}

/// int8 codes: each row in steps of 1/127 of its largest absolute entry.
#[derive(Debug)]
pub struct Int8Codes {
    /// `[n, width]`.
    pub codes: Numbers<i8>,
    /// `[n]`: step size of each row.
    pub steps: Numbers<f32>,
}

/// int8 codes of a query.
pub struct QuantizedQuery {
    codes: Vec<i16>,
    step: f32,
}

/// int8 codes and step size of a nonzero vector.
fn quantize(vector: &[f32]) -> (impl Iterator<Item = i8>, f32) {
    let step = vector.iter().fold(f32::MIN_POSITIVE, |max, x| max.max(x.abs())) / 127.0;
    // float-to-int casts saturate in Rust
    (vector.iter().map(move |x| (x / step).round() as i8), step)
}

impl Int8Codes {
    pub fn quantize(vectors: Floats<'_>) -> Self {
        let (mut codes, mut steps) = (Vec::with_capacity(vectors.flat.len()), Vec::new());
        for row in vectors.flat.chunks_exact(vectors.width) {
            let (row, step) = quantize(row);
            codes.extend(row);
            steps.push(step);
        }
        Self { codes: codes.into(), steps: steps.into() }
    }

    pub fn query(&self, query: &[f32]) -> QuantizedQuery {
        let (codes, step) = quantize(query);
        QuantizedQuery { codes: codes.map(i16::from).collect(), step }
    }
}

/// Rows scored per call.
const BLOCK: usize = 64;

impl Space for Int8Codes {
    type Query = QuantizedQuery;

    fn scores(&self, query: &QuantizedQuery, rows: &[u32], out: &mut [f32]) {
        let (mut exact, codes, steps): (_, &[i8], &[f32]) = ([0; BLOCK], &self.codes, &self.steps);
        for (rows, out) in rows.chunks(BLOCK).zip(out.chunks_mut(BLOCK)) {
            let exact = &mut exact[..rows.len()];
            code_products(&query.codes, codes, rows, exact);
            for ((to, product), row) in out.iter_mut().zip(exact).zip(rows) {
                *to = *product as f32 * query.step * steps[*row as usize];
            }
        }
    }
}
