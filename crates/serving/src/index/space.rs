//! The vectors of an index, as numbers of four bytes and as codes of one. Both say how near a query is to rows that are
//! named by number; codes do so nearly, from a quarter of the memory.

use souk_native::{Numbers, code_products, products};

use super::graph::Space;

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

/// Each row in steps of a 127th of its largest entry.
#[derive(Debug)]
pub struct Codes {
    /// `[n, width]`.
    pub codes: Numbers<i8>,
    /// `[n]`: the step.
    pub steps: Numbers<f32>,
}

/// A query in codes.
pub struct Coded {
    codes: Vec<i16>,
    step: f32,
}

/// The codes of a vector that is not all zeros, and their step.
fn coded(vector: &[f32]) -> (impl Iterator<Item = i8>, f32) {
    let step = vector.iter().fold(f32::MIN_POSITIVE, |most, x| most.max(x.abs())) / 127.0;
    // Rust's conversion stops at the ends
    (vector.iter().map(move |x| (x / step).round() as i8), step)
}

impl Codes {
    pub fn of(vectors: Floats<'_>) -> Self {
        let (mut codes, mut steps) = (Vec::with_capacity(vectors.flat.len()), Vec::new());
        for row in vectors.flat.chunks_exact(vectors.width) {
            let (row, step) = coded(row);
            codes.extend(row);
            steps.push(step);
        }
        Self { codes: codes.into(), steps: steps.into() }
    }

    pub fn query(&self, query: &[f32]) -> Coded {
        let (codes, step) = coded(query);
        Coded { codes: codes.map(i16::from).collect(), step }
    }
}

/// Products that are taken at a time.
const BLOCK: usize = 64;

impl Space for Codes {
    type Query = Coded;

    fn scores(&self, query: &Coded, rows: &[u32], out: &mut [f32]) {
        let mut exact = [0; BLOCK];
        for (rows, out) in rows.chunks(BLOCK).zip(out.chunks_mut(BLOCK)) {
            let exact = &mut exact[..rows.len()];
            code_products(&query.codes, &self.codes, rows, exact);
            for ((to, product), row) in out.iter_mut().zip(exact).zip(rows) {
                *to = *product as f32 * query.step * self.steps[*row as usize];
            }
        }
    }
}
