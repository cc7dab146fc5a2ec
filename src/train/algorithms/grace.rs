//! GRACE: a generative encoder trained by contrastive rewards (GRACE, eq. 3 to 13). The model writes a rationale for every query,
//! positive and negative; the vectors of these rationales reward each of a positive's K rollouts; a policy gradient makes the better
//! ones likelier. Rewards have no gradient: the model learns to write.

use tch::{Device, Kind, Tensor};

use super::Algorithm;
use crate::objective::{ContrastiveRewards, Estimator, GraceSettings, RationaleVectors, WrittenTokens, k3_kl};
use crate::train::batch::Batch;
use crate::train::context::{Outcome, StageContext, StepContext, read_item, read_query};
use crate::train::grad_cache::{autocast, in_chunks};
use crate::train::rationale_metrics::RationaleSums;
use crate::train::writer::Writer;
use souk_io::error::{Error, Result};
use souk_nn::backbone::{Continuation, Sampling};
use souk_nn::collective::gather_rows;
use souk_nn::encoder::{Encoder, Text};

/// Attempts to resample a group whose rationales are all equal (DAPO).
const MAX_RESAMPLES: u64 = 3;

pub struct Grace {
    settings: GraceSettings,
    writer: Writer,
    /// The model that the stage began with, if β is not 0.
    reference: Option<Encoder>,
}

/// One process's rollouts with their advantages.
#[derive(Default)]
struct RolloutBatch {
    /// Token ids of prompt and rationale, and the length of the prompt.
    texts: Vec<(Vec<u32>, usize)>,
    /// The pair of each rationale, counted over all processes.
    pair: Vec<usize>,
    /// Log-probabilities of each rationale's tokens when they were drawn.
    old: Vec<Vec<f32>>,
    /// Those of the reference, if there is one.
    reference: Vec<Vec<f32>>,
    advantage: Vec<f32>,
    divisor: f64,
}

impl RolloutBatch {
    /// Tokens of one rationale.
    fn num_written(&self, place: usize) -> usize {
        let (ids, prompt) = &self.texts[place];
        ids.len() - prompt
    }

    /// Rationales of the update's share of the pairs.
    fn of_update(&self, update: usize, num_updates: usize) -> Vec<usize> {
        (0..self.texts.len()).filter(|place| self.pair[*place] % num_updates == update).collect()
    }

    /// Computes the old log-probabilities that the writer did not give, with the present weights.
    fn complete(&mut self, stage: &StageContext, encoder: &Encoder, temperature: f64) -> Result<()> {
        let missing: Vec<usize> =
            (0..self.texts.len()).filter(|place| self.old[*place].len() != self.num_written(*place)).collect();
        for (place, own) in missing.iter().zip(self.log_probs(stage, encoder, temperature, &missing)?) {
            self.old[*place] = own;
        }
        Ok(())
    }

    /// Log-probabilities of some rationales' tokens, without a graph.
    fn log_probs(
        &self,
        stage: &StageContext,
        encoder: &Encoder,
        temperature: f64,
        places: &[usize],
    ) -> Result<Vec<Vec<f32>>> {
        let _guard = tch::no_grad_guard();
        // as in training, but without dropout
        let _autocast = autocast(stage.bf16, encoder)?;
        let lengths: Vec<usize> = places.iter().map(|place| self.texts[*place].0.len()).collect();
        let mut all = vec![Vec::new(); places.len()];
        for chunk in in_chunks(&lengths, stage.settings.chunk_tokens) {
            let of = |at: &usize| &self.texts[places[*at]];
            let texts: Vec<(&[u32], usize)> =
                chunk.iter().map(of).map(|(ids, prompt)| (ids.as_slice(), *prompt)).collect();
            let found = encoder.log_probs(&texts, temperature, false)?;
            let mut rest: &[f32] = &Vec::<f32>::try_from(found.to_device(Device::Cpu))?;
            for at in chunk {
                let own;
                (own, rest) = rest.split_at(self.num_written(places[at]));
                all[at] = own.to_vec();
            }
        }
        Ok(all)
    }

    /// Sum over this process's tokens of the divergence from the reference (k3), and their number.
    fn divergence(&self) -> (f64, f64) {
        let [old, reference] = [&self.old, &self.reference].map(|all| Tensor::from_slice(&all.concat()));
        (k3_kl(&old, &reference).sum(Kind::Double).double_value(&[]), old.numel() as f64)
    }
}

impl Algorithm for Grace {
    fn step(&mut self, cx: &mut StepContext) -> Result<Outcome> {
        let mut rollouts = Vec::new();
        for micro in cx.micro_batches() {
            let batch = cx.draw_batch(micro.draws);
            self.check_share(batch.pairs.len())?;
            rollouts.push((self.roll_out(cx, &batch)?, micro.weight));
        }
        if cx.schedule.step == 0 && cx.stage.collective.rank() == 0 {
            cx.metrics.rationales.iter().for_each(|metrics| metrics.warn_if_cut(cx.encoder.max_rationale_tokens()));
        }
        let updates = self.settings.updates;
        for update in (0..self.settings.inner_epochs).flat_map(|_| 0..updates) {
            cx.zero_grad();
            for (batch, weight) in &rollouts {
                let places = batch.of_update(update, updates);
                self.backward(cx, batch, &places, weight * updates as f64 / batch.divisor)?;
            }
            cx.optimizer_step()?;
        }
        Ok(Outcome::Done)
    }
}

impl Grace {
    pub fn new(settings: GraceSettings, writer: Writer, reference: Option<Encoder>) -> Self {
        Self { settings, writer, reference }
    }

    /// Whether the weights that learn may differ from those that wrote.
    fn is_off_policy(&self) -> bool {
        self.settings.inner_epochs * self.settings.updates > 1 || self.writer.is_other()
    }

    /// An error if an update would be left without a pair.
    fn check_share(&self, num_pairs: usize) -> Result<()> {
        let updates = self.settings.updates;
        if num_pairs >= updates {
            return Ok(());
        }
        let problem = format!(
            "is {updates}, and there are only {num_pairs} pairs for these updates: lower it, raise train.batch, or lower train.accumulate"
        );
        Err(Error::config("objective.updates", problem))
    }

    /// Writes rationales for this process's part of a batch and rewards them.
    fn roll_out(&self, cx: &mut StepContext, batch: &Batch) -> Result<RolloutBatch> {
        let (stage, encoder) = (cx.stage, cx.encoder);
        let own = stage.own_pairs(batch);
        let PromptTexts { queries, positives, negatives } = self.read(&stage, encoder, batch)?;
        cx.metrics.pairs += batch.pairs.len();
        cx.metrics.texts += queries.len() + positives.len() + negatives.len();
        cx.lap(|seconds| &mut seconds.data);
        let seed = self.settings.sampling.seed ^ stage.settings.seed.rotate_left(32) ^ (batch.draws.start << 2);
        let max_tokens = encoder.max_rationale_tokens();
        let sampling = |kind: u64, first: usize| Sampling {
            seed: seed ^ kind,
            first: first as u64,
            max_tokens,
            ..self.settings.sampling
        };
        // no gradients here, so casts of weights may be kept from the first token to the last
        let casts = autocast(stage.bf16, encoder)?;
        let of_queries = self.writer.write(encoder, &queries, 1, &sampling(1, own.start))?;
        let of_negatives =
            self.writer.write(encoder, &negatives, 1, &sampling(2, own.start * self.settings.negatives))?;
        let of_positives = self.sample_group(encoder, &positives, &sampling(3, own.start * self.settings.rollouts))?;
        // the rewards of a group are close to each other, so their vectors are computed in f32
        drop(casts);
        let chunk_tokens = stage.settings.chunk_tokens;
        let columns = self.settings.columns() as usize;
        let vectors = Vectors {
            queries: vectors(encoder, &queries, &of_queries, 1, chunk_tokens)?,
            positives: vectors(encoder, &positives, &of_positives, columns, chunk_tokens)?,
            negatives: vectors(encoder, &negatives, &of_negatives, 1, chunk_tokens)?,
        };
        let wrote = of_queries.iter().chain(&of_negatives).chain(&of_positives);
        cx.metrics.tokens += wrote.map(|text| text.ids.len()).sum::<usize>();
        cx.lap(|seconds| &mut seconds.forward);
        let mut rollouts = self.reward(cx, &positives, &of_positives, &vectors)?;
        let temperature = self.settings.sampling.temperature;
        if self.is_off_policy() || self.reference.is_some() {
            rollouts.complete(&stage, encoder, temperature)?;
        }
        if let Some(reference) = &self.reference {
            let all: Vec<usize> = (0..rollouts.texts.len()).collect();
            rollouts.reference = rollouts.log_probs(&stage, reference, temperature, &all)?;
            let (sum, num) = rollouts.divergence();
            let mut sums = Tensor::from_slice(&[sum, num]);
            stage.collective.all_reduce(&mut sums)?;
            if let Some(metrics) = &mut cx.metrics.rationales {
                metrics.kl = Some(sums.double_value(&[0]) / sums.double_value(&[1]).max(1.0));
            }
        }
        cx.lap(|seconds| &mut seconds.loss);
        Ok(rollouts)
    }

    /// This process's queries, positives and negatives as prompts. With swapped sides, the item is the query.
    fn read(&self, stage: &StageContext, encoder: &Encoder, batch: &Batch) -> Result<PromptTexts> {
        let (reader, mut texts, from) = (encoder.reader(), PromptTexts::default(), batch.draws.start);
        for place in stage.own_pairs(batch) {
            let pair = &batch.pairs[place];
            let mut sides = [read_query(&reader, pair.query)?, read_item(stage.catalogue, &reader, pair.item)?];
            if self.settings.sides.swaps(from + place as u64) {
                sides.reverse();
            }
            let [anchor, positive] = sides;
            texts.queries.push(anchor);
            texts.positives.push(positive);
            let found = stage.pairs.positives(pair.query_number);
            for number in 0..self.settings.negatives as u64 {
                let draw = (from + place as u64) * self.settings.negatives as u64 + number;
                // for a query that found nearly every item, any will do
                let drawn = |again: u64| stage.catalogue.negative(stage.settings.seed, draw ^ (again << 48));
                let fits = |row: &u32| *row != pair.item && !found.contains(row);
                let row = (0..8).map(drawn).find(fits).unwrap_or_else(|| drawn(8));
                texts.negatives.push(read_item(stage.catalogue, &reader, row)?);
            }
        }
        Ok(texts)
    }

    /// `columns` rationales of each positive.
    fn sample_group(&self, encoder: &Encoder, positives: &[Text], how: &Sampling) -> Result<Vec<Continuation>> {
        let (each, columns) = (self.settings.rollouts, self.settings.columns() as usize);
        let mut drawn = self.writer.write(encoder, positives, each, how)?;
        if self.settings.estimator == Estimator::Dapo {
            for again in 1..=MAX_RESAMPLES {
                let equal = |group: &[Continuation]| group.iter().all(|text| text.ids == group[0].ids);
                for (at, text) in positives.iter().enumerate() {
                    let group = at * each..(at + 1) * each;
                    if equal(&drawn[group.clone()]) {
                        let how =
                            Sampling { seed: how.seed ^ (again << 56), first: how.first + group.start as u64, ..*how };
                        drawn[group].clone_from_slice(&self.writer.write(
                            encoder,
                            std::slice::from_ref(text),
                            each,
                            &how,
                        )?);
                    }
                }
            }
        }
        if columns == each {
            return Ok(drawn);
        }
        let likeliest = self.writer.write(encoder, positives, 1, &Sampling { temperature: 0.0, ..*how })?;
        let groups = drawn.chunks(each).zip(likeliest);
        Ok(groups.flat_map(|(group, best)| group.iter().cloned().chain([best])).collect())
    }

    /// Rewards this process's rationales (eq. 5 to 9) and takes their advantages.
    fn reward(
        &self,
        cx: &mut StepContext,
        positives: &[Text],
        wrote: &[Continuation],
        vectors: &Vectors,
    ) -> Result<RolloutBatch> {
        let (stage, columns) = (cx.stage, self.settings.columns());
        let (num, width) = vectors.queries.size2()?;
        let all_queries = gather_rows(stage.collective, &vectors.queries)?;
        let all_positives = gather_rows(stage.collective, &vectors.positives.view([num, columns * width]))?;
        let first = all_queries.starts[stage.collective.rank()];
        let rewards = self.settings.rewards(&RationaleVectors {
            queries: &all_queries.all,
            positives: &all_positives.all.view([-1, columns, width]),
            negatives: &vectors.negatives.view([num, self.settings.negatives as i64, width]),
            first,
        });
        let ended: Vec<bool> = wrote.iter().map(|text| text.ended).collect();
        let ended = Tensor::from_slice(&ended).view([num, columns]).to_device(vectors.queries.device());
        let total = self.settings.penalise_length(&rewards.total, &ended);
        let all = gather_rows(stage.collective, &total)?.all;
        let advantages = self.settings.advantages(&total, &all);
        let values = Vec::<Vec<f32>>::try_from(advantages.values.to_device(Device::Cpu))?;
        // in bf16, token by token and all at once give different probabilities
        let keeps_log_probs = !stage.bf16 || self.writer.is_other();
        let mut rollouts = RolloutBatch::default();
        let has_force = |advantage: f32| advantage != 0.0 || self.reference.is_some();
        for (at, group) in wrote.chunks(columns as usize).enumerate() {
            for (text, advantage) in group.iter().zip(&values[at]).filter(|(_, advantage)| has_force(**advantage)) {
                rollouts.pair.push(first as usize + at);
                rollouts.texts.push((positives[at].followed_by(&text.ids).ids, positives[at].ids.len()));
                rollouts.old.push(if keeps_log_probs { text.log_probs.clone() } else { Vec::new() });
                rollouts.advantage.push(*advantage);
            }
        }
        let mut sums = self.sums(wrote, &rewards, &total, &ended);
        sums.groups = num as f64;
        sums.flat = num as f64 - advantages.has_spread.sum(Kind::Double).double_value(&[]);
        sums.trained_tokens = (0..rollouts.texts.len()).map(|place| rollouts.num_written(place)).sum::<usize>() as f64;
        sums.all_reduce(stage.collective)?;
        rollouts.divisor = self.settings.divisor(sums.groups, sums.trained_tokens);
        cx.metrics.rationales = Some(sums.metrics());
        Ok(rollouts)
    }

    /// Sums over this process's sampled rationales.
    fn sums(
        &self,
        wrote: &[Continuation],
        rewards: &ContrastiveRewards,
        total: &Tensor,
        ended: &Tensor,
    ) -> RationaleSums {
        let num_rollouts = self.settings.rollouts as i64;
        let sum = |x: &Tensor| x.narrow(1, 0, num_rollouts).to_kind(Kind::Double).sum(Kind::Double).double_value(&[]);
        let sampled = wrote.chunks(self.settings.columns() as usize).flat_map(|group| &group[..num_rollouts as usize]);
        let lengths: usize = sampled.map(|text| text.ids.len()).sum();
        RationaleSums {
            sampled: (total.size()[0] * num_rollouts) as f64,
            reward: sum(total),
            reward_squares: sum(&total.square()),
            close: sum(&rewards.close),
            alike: sum(&rewards.alike),
            apart: sum(&rewards.apart),
            length: lengths as f64,
            ended: sum(&ended.to_kind(Kind::Float)),
            ..RationaleSums::default()
        }
    }

    /// Back-propagates the loss of some of this process's rationales.
    fn backward(&self, cx: &mut StepContext, batch: &RolloutBatch, places: &[usize], scale: f64) -> Result<()> {
        let (stage, encoder) = (cx.stage, cx.encoder);
        let lengths: Vec<usize> = places.iter().map(|place| batch.texts[*place].0.len()).collect();
        let mut loss = Tensor::zeros([1], (Kind::Float, Device::Cpu));
        for chunk in in_chunks(&lengths, stage.settings.chunk_tokens) {
            let chunk: Vec<usize> = chunk.iter().map(|at| places[*at]).collect();
            let texts: Vec<(&[u32], usize)> =
                chunk.iter().map(|place| (batch.texts[*place].0.as_slice(), batch.texts[*place].1)).collect();
            let tokens = |values: Vec<f32>| Tensor::from_slice(&values).to_device(encoder.device());
            let of_places =
                |all: &[Vec<f32>]| tokens(chunk.iter().flat_map(|place| all[*place].iter().copied()).collect());
            let advantage = |place: &usize| std::iter::repeat_n(batch.advantage[*place], batch.num_written(*place));
            let advantage = tokens(chunk.iter().flat_map(advantage).collect());
            let old = self.is_off_policy().then(|| of_places(&batch.old));
            let reference = self.reference.as_ref().map(|_| of_places(&batch.reference));
            let part = {
                let _autocast = autocast(stage.bf16, encoder)?;
                let now = encoder.log_probs(&texts, self.settings.sampling.temperature, stage.settings.dropout)?;
                let tokens = WrittenTokens { old: old.as_ref(), reference: reference.as_ref(), advantage: &advantage };
                self.settings.loss(&now, &tokens) * scale
            };
            part.f_backward()?;
            loss += part.detach().to_device(Device::Cpu);
        }
        cx.add_loss(&loss);
        cx.lap(|seconds| &mut seconds.backward);
        Ok(())
    }
}

/// Prompts of this process.
#[derive(Default)]
struct PromptTexts {
    queries: Vec<Text>,
    positives: Vec<Text>,
    negatives: Vec<Text>,
}

/// Vectors of their rationales, without a graph.
struct Vectors {
    queries: Tensor,
    positives: Tensor,
    negatives: Tensor,
}

/// Vectors `[n·each, d]` of texts with what was written behind them, without a graph.
fn vectors(
    encoder: &Encoder,
    texts: &[Text],
    wrote: &[Continuation],
    each: usize,
    chunk_tokens: usize,
) -> Result<Tensor> {
    let _guard = tch::no_grad_guard();
    let whole: Vec<Text> = wrote.iter().enumerate().map(|(at, more)| texts[at / each].followed_by(&more.ids)).collect();
    if whole.is_empty() {
        return Ok(Tensor::zeros([0, encoder.dimensions()], (Kind::Float, encoder.device())));
    }
    let lengths: Vec<usize> = whole.iter().map(|text| text.ids.len()).collect();
    let (mut rows, mut order) = (Vec::new(), Vec::new());
    for places in in_chunks(&lengths, chunk_tokens) {
        rows.push(encoder.encode_written(&places.iter().map(|place| &whole[*place]).collect::<Vec<_>>())?);
        order.extend(places.iter().map(|place| *place as i64));
    }
    let back = Tensor::from_slice(&order).argsort(0, false).to_device(encoder.device());
    Ok(Tensor::cat(&rows, 0).index_select(0, &back))
}
