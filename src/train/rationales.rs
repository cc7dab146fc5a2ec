//! GRACE, the arrow: let the model write what it makes of queries, positives and negatives, take the vectors of what it wrote, reward
//! each rationale of a positive by these, and make the better ones likelier. Rewards have no gradient: what is learned is to write.

use std::ops::Range;
use std::time::Instant;

use serde::Serialize;
use tch::{Device, Kind, Tensor};

use super::batch::Batch;
use super::correct::Turn;
use super::policy::Spread;
use super::share::{autocast, in_chunks};
use super::step::{Parts, Stepped};
use super::writer::Writer;
use crate::backbone::{Continuation, Sampling};
use crate::collective::gather_rows;
use crate::encoder::{Encoder, Text};
use crate::error::Result;
use crate::objective::{Estimator, Grace, Written};
use crate::optimizer::Optimizer;

/// Times that a group of equal rationales is drawn again (DAPO).
const REDRAWS: u64 = 3;

pub struct Rationales {
    rule: Grace,
    writer: Writer,
}

/// What one step says of its rationales, over all processes.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Wrote {
    /// After the rule of length.
    pub reward: Spread,
    /// Likeness to the query, less that of negatives; to each other; and how little others are taken for one's own.
    pub close: f64,
    pub alike: f64,
    pub apart: f64,
    /// Tokens of a rationale, and the share of them that came to an end.
    pub length: f64,
    pub ended: f64,
    pub frac_group_zero_std: f64,
}

/// Rationales with their advantages, one after the other.
#[derive(Default)]
struct Lesson {
    texts: Vec<(Vec<u32>, usize)>,
    /// Of each text's tokens, when they were drawn.
    old: Vec<Vec<f32>>,
    advantage: Vec<f32>,
    divisor: f64,
}

impl Lesson {
    /// Tokens of one rationale.
    fn written(&self, place: usize) -> usize {
        let (ids, prompt) = &self.texts[place];
        ids.len() - prompt
    }

    /// The log-probabilities that nobody told, by the model as it is.
    fn complete(&mut self, parts: &Parts, encoder: &Encoder, temperature: f64) -> Result<()> {
        let _guard = tch::no_grad_guard();
        // as they are computed when they are learned from, but for dropout
        let _autocast = autocast(parts.bf16, encoder)?;
        let missing: Vec<usize> =
            (0..self.texts.len()).filter(|place| self.old[*place].len() != self.written(*place)).collect();
        let lengths: Vec<usize> = missing.iter().map(|place| self.texts[*place].0.len()).collect();
        for places in in_chunks(&lengths, parts.settings.chunk_tokens) {
            let places: Vec<usize> = places.iter().map(|place| missing[*place]).collect();
            let texts: Vec<(&[u32], usize)> =
                places.iter().map(|place| (self.texts[*place].0.as_slice(), self.texts[*place].1)).collect();
            let found = encoder.log_probs(&texts, temperature, false)?;
            let mut rest: &[f32] = &Vec::<f32>::try_from(found.to_device(Device::Cpu))?;
            for place in places {
                let own;
                (own, rest) = rest.split_at(self.written(place));
                self.old[place] = own.to_vec();
            }
        }
        Ok(())
    }
}

impl Rationales {
    pub fn new(rule: Grace, writer: Writer) -> Self {
        Self { rule, writer }
    }

    /// Whether the weights that learn may be others than those that wrote.
    fn is_behind(&self) -> bool {
        self.rule.inner_epochs > 1 || self.writer.is_other()
    }

    pub fn step(
        &self,
        parts: &Parts,
        (encoder, optimizer): (&Encoder, &mut Optimizer),
        turn: Turn,
        stop: bool,
    ) -> Result<Stepped> {
        let mut stepped = Stepped::default();
        let mut lessons = Vec::new();
        for ((from, to), share) in parts.settings.batches(parts.draws(turn.at)) {
            lessons.push((self.write(parts, encoder, (from, to), &mut stepped)?, share));
        }
        if let Some(wrote) = stepped.wrote.as_ref().filter(|_| turn.at == 0 && parts.collective.rank() == 0) {
            wrote.warn_of_the_cut(encoder.most_written());
        }
        for _ in 0..self.rule.inner_epochs {
            optimizer.zero();
            let mut loss = Tensor::zeros([1], (Kind::Float, Device::Cpu));
            for (lesson, share) in &lessons {
                loss += self.learn(parts, encoder, (lesson, *share), &mut stepped)?;
            }
            parts.update(optimizer, &loss, (turn.rate, stop), &mut stepped)?;
        }
        Ok(stepped)
    }

    /// Rationales of one batch, rewarded.
    fn write(&self, parts: &Parts, encoder: &Encoder, (from, to): (u64, u64), stepped: &mut Stepped) -> Result<Lesson> {
        let mut clock = Instant::now();
        let batch = parts.draw(from, to);
        let (own, _) = parts.own(&batch);
        let [queries, positives, negatives] = self.read(parts, encoder, (&batch, from, own.clone()))?;
        stepped.pairs += batch.pairs.len();
        stepped.texts += queries.len() + positives.len() + negatives.len();
        parts.lap(&mut clock, &mut stepped.seconds.data);
        let seed = self.rule.sampling.seed ^ parts.settings.seed.rotate_left(32) ^ (from << 2);
        let max_tokens = encoder.most_written();
        let how = |kind: u64, first: usize| Sampling {
            seed: seed ^ kind,
            first: first as u64,
            max_tokens,
            ..self.rule.sampling
        };
        // nothing here has gradients, so that casts of weights may be kept from the first token to the last
        let casts = autocast(parts.bf16, encoder)?;
        let of_queries = self.writer.write(encoder, &queries, 1, &how(1, own.start))?;
        let of_negatives = self.writer.write(encoder, &negatives, 1, &how(2, own.start * self.rule.negatives))?;
        let of_positives = self.rollouts(encoder, &positives, &how(3, own.start * self.rule.rollouts))?;
        // rewards of one group lie near each other: what they are made of stays exact
        drop(casts);
        let chunk = parts.settings.chunk_tokens;
        let columns = self.rule.columns() as usize;
        let vectors = [
            vectors(encoder, (&queries, &of_queries, 1), chunk)?,
            vectors(encoder, (&positives, &of_positives, columns), chunk)?,
            vectors(encoder, (&negatives, &of_negatives, 1), chunk)?,
        ];
        let wrote = of_queries.iter().chain(&of_negatives).chain(&of_positives);
        stepped.tokens += wrote.map(|text| text.ids.len()).sum::<usize>();
        parts.lap(&mut clock, &mut stepped.seconds.forward);
        let mut lesson = self.reward(parts, (&positives, of_positives), (&vectors, own.len()), stepped)?;
        if self.is_behind() {
            lesson.complete(parts, encoder, self.rule.sampling.temperature)?;
        }
        parts.lap(&mut clock, &mut stepped.seconds.loss);
        Ok(lesson)
    }

    /// This process's queries, positives and negatives, as the model is asked about them; where sides are swapped, the item asks.
    fn read(
        &self,
        parts: &Parts,
        encoder: &Encoder,
        (batch, from, own): (&Batch, u64, Range<usize>),
    ) -> Result<[Vec<Text>; 3]> {
        let (reader, mut texts) = (encoder.reader(), [Vec::new(), Vec::new(), Vec::new()]);
        for place in own {
            let pair = &batch.pairs[place];
            let mut sides = [parts.read_query(&reader, pair.query)?, parts.read_item(&reader, pair.item)?];
            if self.rule.sides.swaps(from + place as u64) {
                sides.reverse();
            }
            let [anchor, positive] = sides;
            texts[0].push(anchor);
            texts[1].push(positive);
            let found = parts.pairs.positives(pair.query_number);
            for number in 0..self.rule.negatives as u64 {
                let draw = (from + place as u64) * self.rule.negatives as u64 + number;
                // of a query that found nearly everything any will do
                let drawn = |again: u64| parts.catalogue.negative(parts.settings.seed, draw ^ (again << 48));
                let fits = |row: &u32| *row != pair.item && !found.contains(row);
                let row = (0..8).map(drawn).find(fits).unwrap_or_else(|| drawn(8));
                texts[2].push(parts.read_item(&reader, row)?);
            }
        }
        Ok(texts)
    }

    /// `columns` rationales of each positive.
    fn rollouts(&self, encoder: &Encoder, positives: &[Text], how: &Sampling) -> Result<Vec<Continuation>> {
        let (each, columns) = (self.rule.rollouts, self.rule.columns() as usize);
        let mut drawn = self.writer.write(encoder, positives, each, how)?;
        if self.rule.estimator == Estimator::Dapo {
            for again in 1..=REDRAWS {
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

    fn reward(
        &self,
        parts: &Parts,
        (positives, wrote): (&[Text], Vec<Continuation>),
        ([queries, vectors, negatives], num): (&[Tensor; 3], usize),
        stepped: &mut Stepped,
    ) -> Result<Lesson> {
        let (num, columns, width) = (num as i64, self.rule.columns(), queries.size()[1]);
        let all_queries = gather_rows(parts.collective, queries)?;
        let all_positives = gather_rows(parts.collective, &vectors.view([num, columns * width]))?;
        let rewarded = self.rule.rewards(&Written {
            queries: &all_queries.all,
            positives: &all_positives.all.view([-1, columns, width]),
            negatives: &negatives.view([num, self.rule.negatives as i64, width]),
            first: all_queries.starts[parts.collective.rank()] as i64,
        });
        let ended: Vec<bool> = wrote.iter().map(|text| text.ended).collect();
        let ended = Tensor::from_slice(&ended).view([num, columns]).to_device(queries.device());
        let total = self.rule.curbed(&rewarded.total, &ended);
        let all = gather_rows(parts.collective, &total)?.all;
        let found = self.rule.advantages(&total, &all);
        let values = Vec::<Vec<f32>>::try_from(found.values.to_device(Device::Cpu))?;
        // in bf16 a token has another share where it is written than where all are read at once
        let told = !parts.bf16 || self.writer.is_other();
        let mut lesson = Lesson::default();
        for (at, group) in wrote.chunks(columns as usize).enumerate() {
            for (text, advantage) in group.iter().zip(&values[at]) {
                if *advantage != 0.0 {
                    lesson.texts.push((positives[at].followed_by(&text.ids).ids, positives[at].ids.len()));
                    lesson.old.push(if told { text.log_probs.clone() } else { Vec::new() });
                    lesson.advantage.push(*advantage);
                }
            }
        }
        let sum = |x: &Tensor| {
            x.narrow(1, 0, self.rule.rollouts as i64).to_kind(Kind::Double).sum(Kind::Double).double_value(&[])
        };
        let of_each = wrote.chunks(columns as usize).flat_map(|group| &group[..self.rule.rollouts]);
        let lengths: usize = of_each.map(|text| text.ids.len()).sum();
        let tokens: usize = (0..lesson.texts.len()).map(|place| lesson.written(place)).sum();
        let sampled = (num * self.rule.rollouts as i64) as f64;
        let mut sums = Tensor::from_slice(&[
            sampled,
            sum(&total),
            sum(&total.square()),
            sum(&rewarded.close),
            sum(&rewarded.alike),
            sum(&rewarded.apart),
            lengths as f64,
            sum(&ended.to_kind(Kind::Float)),
            num as f64,
            num as f64 - found.teaches.sum(Kind::Double).double_value(&[]),
            tokens as f64,
        ]);
        parts.collective.all_reduce(&mut sums)?;
        let sums = Vec::<f64>::try_from(sums)?;
        lesson.divisor = self.rule.divisor(sums[8], sums[10]);
        stepped.wrote = Some(Wrote::of(&sums));
        Ok(lesson)
    }

    /// The gradient of this process's rationales, and their loss.
    fn learn(
        &self,
        parts: &Parts,
        encoder: &Encoder,
        (lesson, share): (&Lesson, f64),
        stepped: &mut Stepped,
    ) -> Result<Tensor> {
        let mut clock = Instant::now();
        let lengths: Vec<usize> = lesson.texts.iter().map(|(ids, _)| ids.len()).collect();
        let mut loss = Tensor::zeros([1], (Kind::Float, Device::Cpu));
        for places in in_chunks(&lengths, parts.settings.chunk_tokens) {
            let texts: Vec<(&[u32], usize)> =
                places.iter().map(|place| (lesson.texts[*place].0.as_slice(), lesson.texts[*place].1)).collect();
            let old: Vec<f32> = places.iter().flat_map(|place| lesson.old[*place].iter().copied()).collect();
            let advantage: Vec<f32> = places
                .iter()
                .flat_map(|place| std::iter::repeat_n(lesson.advantage[*place], lesson.written(*place)))
                .collect();
            let [old, advantage] =
                [old, advantage].map(|values| Tensor::from_slice(&values).to_device(encoder.device()));
            let part = {
                let _autocast = autocast(parts.bf16, encoder)?;
                let now = encoder.log_probs(&texts, self.rule.sampling.temperature, parts.settings.dropout)?;
                self.rule.loss(&now, self.is_behind().then_some(&old), &advantage) * (share / lesson.divisor)
            };
            part.f_backward()?;
            loss += part.detach().to_device(Device::Cpu);
        }
        parts.lap(&mut clock, &mut stepped.seconds.backward);
        Ok(loss)
    }
}

impl Wrote {
    /// Where hardly any rationale has room to end, those that do end are worth most, and what is learned is to be brief.
    fn warn_of_the_cut(&self, most: usize) {
        if self.ended < 0.5 {
            let share = 100.0 * self.ended;
            tracing::warn!(
                "{share:.0} % of rationales come to an end within {most} tokens, and the cut ones never count more than \
                 these: brevity is what will be learned. Say a larger encoder.rationale.max_tokens"
            );
        }
    }

    fn of(sums: &[f64]) -> Self {
        let (num, groups) = (sums[0].max(1.0), sums[8].max(1.0));
        let mean = sums[1] / num;
        Self {
            reward: Spread { mean, std: (sums[2] / num - mean * mean).max(0.0).sqrt() },
            close: sums[3] / num,
            alike: sums[4] / num,
            apart: sums[5] / num,
            length: sums[6] / num,
            ended: sums[7] / num,
            frac_group_zero_std: sums[9] / groups,
        }
    }
}

/// Vectors `[n·each, d]` of texts with what was written behind them, without a graph.
fn vectors(encoder: &Encoder, (texts, wrote, each): (&[Text], &[Continuation], usize), most: usize) -> Result<Tensor> {
    let _guard = tch::no_grad_guard();
    let whole: Vec<Text> = wrote.iter().enumerate().map(|(at, more)| texts[at / each].followed_by(&more.ids)).collect();
    if whole.is_empty() {
        return Ok(Tensor::zeros([0, encoder.dimensions()], (Kind::Float, encoder.device())));
    }
    let lengths: Vec<usize> = whole.iter().map(|text| text.ids.len()).collect();
    let (mut rows, mut order) = (Vec::new(), Vec::new());
    for places in in_chunks(&lengths, most) {
        rows.push(encoder.encode_written(&places.iter().map(|place| &whole[*place]).collect::<Vec<_>>())?);
        order.extend(places.iter().map(|place| *place as i64));
    }
    let back = Tensor::from_slice(&order).argsort(0, false).to_device(encoder.device());
    Ok(Tensor::cat(&rows, 0).index_select(0, &back))
}
