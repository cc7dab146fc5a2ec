//! Items of the whole catalogue that join a batch: those nearest to its queries in a bank of vectors, which is made anew
//! every so many steps. All processes get the same; each encodes its part of the bank.

use std::collections::BTreeSet;

use tch::{Kind, Tensor};

use super::batch::{Batch, share};
use super::share::{Chunking, Share};
use super::step::Parts;
use crate::candidates::{Bank, CandidateSettings};
use crate::collective::gather_rows;
use crate::encoder::Encoder;
use crate::error::Result;

/// Items that are read and encoded at a time for the bank.
const BLOCK: usize = 4096;

pub struct Proposals {
    settings: CandidateSettings,
    bank: Option<Bank>,
}

impl Proposals {
    pub fn new(settings: CandidateSettings) -> Self {
        Self { settings, bank: None }
    }

    /// Makes the bank anew where the step is one for that, or where there is none.
    pub fn refresh(&mut self, parts: &Parts, encoder: &Encoder, step: u64) -> Result<()> {
        if self.bank.is_none() || step.is_multiple_of(self.settings.refresh_steps) {
            self.bank = Some(Bank::build(catalogue_vectors(parts, encoder)?)?);
        }
        Ok(())
    }

    /// Adds to a batch what is nearest to its queries.
    pub fn join(&self, parts: &Parts, encoder: &Encoder, batch: &mut Batch) -> Result<()> {
        let Some(bank) = &self.bank else { return Ok(()) };
        let own = parts.own(batch).0;
        let mut texts = Vec::with_capacity(own.len());
        for pair in &batch.pairs[own] {
            texts.push(parts.read_query(&encoder.reader(), pair.query)?);
        }
        let _guard = tch::no_grad_guard();
        let (_, queries) = Share::encode(encoder, texts, parts.plain_chunking())?;
        let nearest = bank.nearest(&queries, self.settings.reach).view([-1, 1]);
        let all = gather_rows(parts.collective, &nearest)?.all;
        let rows: BTreeSet<i64> = Vec::<i64>::try_from(all.contiguous().view([-1]))?.into_iter().collect();
        for row in rows {
            batch.add(row as u32);
        }
        Ok(())
    }
}

/// `[n, d]` of the whole catalogue, by the encoder of now.
pub fn catalogue_vectors(parts: &Parts, encoder: &Encoder) -> Result<Tensor> {
    let _guard = tch::no_grad_guard();
    let own = share(parts.catalogue.len() as usize, parts.collective.rank(), parts.collective.size());
    let mut blocks = Vec::new();
    for start in own.clone().step_by(BLOCK) {
        let mut texts = Vec::with_capacity(BLOCK);
        for row in start..own.end.min(start + BLOCK) {
            texts.push(parts.read_item(&encoder.reader(), row as u32)?);
        }
        blocks.push(Share::encode(encoder, texts, parts.plain_chunking())?.1);
    }
    let vectors = match blocks.is_empty() {
        true => Tensor::zeros([0, encoder.dimensions()], (Kind::Float, encoder.device())),
        false => Tensor::cat(&blocks, 0),
    };
    Ok(gather_rows(parts.collective, &vectors)?.all)
}

impl Parts<'_> {
    /// For vectors that nothing is learned from.
    pub fn plain_chunking(&self) -> Chunking {
        Chunking { keep_tokens: 0, dropout: false, ..Chunking::of(self.settings, self.bf16, 0) }
    }
}
