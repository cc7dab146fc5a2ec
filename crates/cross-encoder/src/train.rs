//! Trains a relevance model from a base model and graded pairs, calibrates and evaluates it on held-out queries, and saves its
//! folder. Deterministic on a CPU. Training is short and cannot be resumed: if stopped, nothing is saved.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use serde::Serialize;
use tch::Device;

use super::RelevanceSettings;
use super::agreement::Agreement;
use super::calibration::{Calibration, Reliability};
use super::head::Grading;
use super::judge::batches;
use super::lists;
use super::manifest::{Base, CrossEncoderManifest, TrainedOn, write_json};
use super::model::{CrossEncoder, EncoderShape};
use super::pairs::{GradedPair, GradedPairs};
use super::reader::PairText;
use souk_io::beir::DataFolder;
use souk_io::domain::Level;
use souk_io::error::{Error, Result};
use souk_io::item_text::ItemText;
use souk_io::shuffle::{Draw, Order, Permutation};
use souk_nn::backbone::Precision;
use souk_nn::backbone::weights::weight_files;
use souk_nn::encoder::{Placement, digest_files, transformer_dir};
use souk_nn::optimizer::Optimizer;

/// Metrics file in the model's folder.
pub const METRICS: &str = "relevance-metrics.json";

/// Calibration pairs that are judged in int8, too.
const MAX_INT8_PAIRS: usize = 1000;

/// Training progress.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TrainProgress {
    Learning {
        step: u64,
        pairs: u64,
        of: u64,
        loss: f64,
    },
    /// Number of held-out pairs.
    Measuring {
        pairs: u64,
        of: u64,
    },
}

/// Metrics of a model on held-out queries.
#[derive(Clone, Debug, Serialize)]
pub struct JudgeReport {
    /// Base model.
    pub base: String,
    pub data: String,
    pub split: String,
    pub steps: u64,
    pub draws: u64,
    pub seconds: f64,
    pub num_parameters: usize,
    /// Agreement on the calibration queries.
    pub calibration: Calibration,
    /// Agreement on the other held-out queries: judged pairs, and all pairs including random items.
    pub judged: JudgeMeasurement,
    pub all: JudgeMeasurement,
}

#[derive(Clone, Debug, Serialize)]
pub struct JudgeMeasurement {
    #[serde(flatten)]
    pub agreement: Agreement,
    /// Reliability of P(Good) before and after calibration.
    pub before: Reliability,
    pub after: Reliability,
}

impl JudgeMeasurement {
    fn of(graded: &[(Vec<f32>, Level)], plain: &Grading, fitted: &Grading) -> Self {
        let scored: Vec<(Level, f64, Level)> = graded
            .iter()
            .map(|(outputs, level)| {
                let score = fitted.score(outputs);
                (*level, score, fitted.level(score))
            })
            .collect();
        let reliability = |grading: &Grading| {
            Reliability::of(graded.iter().map(|(outputs, level)| (grading.good(outputs), level.is_good())))
        };
        Self { agreement: Agreement::of(&scored), before: reliability(plain), after: reliability(fitted) }
    }
}

pub struct Training {
    settings: RelevanceSettings,
    base: PathBuf,
    model: CrossEncoder,
    pairs: GradedPairs,
    data: DataFolder,
    item_text: ItemText,
}

impl Training {
    /// Opens the base model and the data, whose items are read with the template `item_text`.
    pub fn open(
        settings: &RelevanceSettings,
        base: &Path,
        placement: Placement,
        data: &DataFolder,
        item_text: ItemText,
    ) -> Result<Self> {
        settings.check()?;
        let RelevanceSettings { loss, pooling, num_layers, max_tokens, seed, .. } = *settings;
        let pairs = GradedPairs::load(data, settings)?;
        let model =
            CrossEncoder::begin(base, placement, &EncoderShape { loss, pooling, num_layers, max_tokens, seed })?;
        Ok(Self { settings: settings.clone(), base: base.into(), model, pairs, data: data.clone(), item_text })
    }

    pub fn pairs(&self) -> &GradedPairs {
        &self.pairs
    }

    /// Trains, calibrates, evaluates, and fills the existing folder `out`. Returns an error if stopped.
    pub fn run(mut self, out: &Path, stop: &AtomicBool, mut report: impl FnMut(TrainProgress)) -> Result<JudgeReport> {
        let began = Instant::now();
        let draws = self.draws();
        let mut optimizer = Optimizer::new(&self.settings.optimizer, self.model.trainable()?)?;
        let steps = self.learn(&mut optimizer, draws, stop, &mut report)?;
        let num_parameters = optimizer.num_parameters();
        drop(optimizer);
        self.model.read_cutpoints()?;
        let plain = self.model.grading().clone();
        let of = (self.pairs.calibrate.len() + self.pairs.measure.len()) as u64;
        let mut done = 0;
        let mut tell = |more: u64| {
            done += more;
            report(TrainProgress::Measuring { pairs: done, of });
        };
        let fitted_on = self.graded(&self.pairs.calibrate, stop, &mut tell)?;
        let mut fitted = plain.clone();
        let calibration = Calibration::fit(&mut fitted, &fitted_on, self.settings.thresholds);
        let measured_on = self.graded(&self.pairs.measure, stop, &mut tell)?;
        self.model.grading = fitted.clone();
        let judged: Vec<(Vec<f32>, Level)> = self
            .pairs
            .measure
            .iter()
            .zip(&measured_on)
            .filter(|(pair, _)| pair.judged)
            .map(|(_, graded)| graded.clone())
            .collect();
        let measured = JudgeReport {
            base: name_of(&self.base),
            data: self.data.path().display().to_string(),
            split: self.settings.split.clone(),
            steps,
            draws,
            seconds: began.elapsed().as_secs_f64(),
            num_parameters,
            calibration,
            judged: JudgeMeasurement::of(&judged, &plain, &fitted),
            all: JudgeMeasurement::of(&measured_on, &plain, &fitted),
        };
        self.save(&measured, &fitted_on, out)?;
        Ok(measured)
    }

    fn draws(&self) -> u64 {
        let draws = ((self.pairs.learn.len() as f64 * self.settings.epochs).ceil() as u64).max(1);
        if self.settings.max_pairs == 0 { draws } else { draws.min(self.settings.max_pairs) }
    }

    fn learn(
        &self,
        optimizer: &mut Optimizer,
        draws: u64,
        stop: &AtomicBool,
        report: &mut impl FnMut(TrainProgress),
    ) -> Result<u64> {
        let seed = self.settings.seed;
        let mut learn = self.pairs.learn.clone();
        let lists = (self.settings.list_weight > 0.0).then(|| lists::by_query(&mut learn));
        let num = lists.as_ref().map_or(learn.len(), Vec::len) as u64;
        let mut order = Draw::new(num, Order { seed, block: None }, 0);
        let (mut step, mut drawn_pairs, mut seen) = (0, 0, 0);
        for block in 0_u64.. {
            let left = ((draws - drawn_pairs) as usize).min(self.settings.block_pairs);
            let (mut drawn, mut of_block): (Vec<GradedPair>, Vec<Range<usize>>) = (Vec::new(), Vec::new());
            while drawn.len() < left
                && let Some(row) = order.next()
            {
                let from = drawn.len();
                drawn.extend(match &lists {
                    Some(lists) => &learn[lists[row as usize].clone()],
                    None => &learn[row as usize..=row as usize],
                });
                of_block.push(from..drawn.len());
            }
            if drawn.is_empty() {
                break;
            }
            drawn_pairs = (drawn_pairs + drawn.len() as u64).min(draws);
            let texts = self.read(&drawn)?;
            let batches = match &lists {
                Some(_) => lists::batches(&of_block, |place| texts[place].ids.len(), self.settings.batch_tokens),
                None => batches(&texts, self.settings.batch_tokens),
            };
            let shuffled = Permutation::new(batches.len() as u64, seed ^ (block + 1));
            for at in 0..batches.len() as u64 {
                check_stop(stop)?;
                let batch = &batches[shuffled.at(at) as usize];
                let rate = self.settings.optimizer.rate(seen, draws);
                let chosen: Vec<(&PairText, GradedPair)> =
                    batch.iter().map(|place| (&texts[*place], drawn[*place])).collect();
                let loss = self.step(optimizer, &chosen, rate)?;
                step += 1;
                seen = (seen + batch.len() as u64).min(draws);
                if !loss.is_finite() {
                    let problem = format!("the loss of step {step} is {loss}: use a smaller one");
                    return Err(Error::config("relevance.optimizer.learning_rate", problem));
                }
                report(TrainProgress::Learning { step, pairs: seen, of: draws, loss });
            }
        }
        if !optimizer.is_finite() {
            let problem = "a weight is not finite after the last step: use a smaller one";
            return Err(Error::config("relevance.optimizer.learning_rate", problem));
        }
        Ok(step)
    }

    /// One update; returns the loss before it.
    fn step(&self, optimizer: &mut Optimizer, batch: &[(&PairText, GradedPair)], rate: f64) -> Result<f64> {
        optimizer.zero();
        if self.settings.dropout {
            tch::manual_seed((self.settings.seed ^ rate.to_bits()) as i64);
        }
        let texts: Vec<&PairText> = batch.iter().map(|(text, _)| *text).collect();
        let levels: Vec<i64> = batch.iter().map(|(_, pair)| i64::from(pair.level.number()) - 1).collect();
        let outputs = self.model.outputs(&texts, self.settings.dropout)?;
        let mut loss = self.model.loss(&outputs, &levels);
        if self.settings.list_weight > 0.0 {
            let queries: Vec<u32> = batch.iter().map(|(_, pair)| pair.query).collect();
            if let Some(of_lists) = lists::loss(&outputs, &queries, &levels) {
                loss += of_lists * self.settings.list_weight;
            }
        }
        loss.f_backward()?;
        let mut gradients = optimizer.gradients();
        let norm = optimizer.clip(&mut gradients);
        let loss = loss.double_value(&[]);
        if loss.is_finite() && norm.is_finite() {
            optimizer.step(&gradients, rate)?;
        }
        Ok(if norm.is_finite() { loss } else { norm })
    }

    /// Outputs and judged levels of pairs.
    fn graded(
        &self,
        pairs: &[GradedPair],
        stop: &AtomicBool,
        tell: &mut impl FnMut(u64),
    ) -> Result<Vec<(Vec<f32>, Level)>> {
        let mut graded = Vec::with_capacity(pairs.len());
        for block in pairs.chunks(self.settings.block_pairs) {
            let texts = self.read(block)?;
            let mut outputs: Vec<Vec<f32>> = vec![Vec::new(); block.len()];
            for batch in batches(&texts, self.settings.batch_tokens) {
                check_stop(stop)?;
                let chosen: Vec<&PairText> = batch.iter().map(|place| &texts[*place]).collect();
                for (place, output) in batch.iter().zip(self.model.outputs_of(&chosen)?) {
                    outputs[*place] = output;
                }
                tell(batch.len() as u64);
            }
            graded.extend(outputs.into_iter().zip(block.iter().map(|pair| pair.level)));
        }
        Ok(graded)
    }

    /// The error that four of five scores in int8 do not exceed.
    fn int8_error(&self, graded: &[(Vec<f32>, Level)], saved: &Path) -> Result<Option<f64>> {
        let on_cpu = Placement { device: Device::Cpu, precision: Precision::Int8, ..self.model.placement().clone() };
        let (int8, grading) = (CrossEncoder::open(saved, on_cpu)?.freeze()?, self.model.grading());
        let texts = self.read(&self.pairs.calibrate[..self.pairs.calibrate.len().min(MAX_INT8_PAIRS)])?;
        let mut errors = Vec::with_capacity(texts.len());
        for batch in batches(&texts, self.settings.batch_tokens) {
            let chosen: Vec<&PairText> = batch.iter().map(|place| &texts[*place]).collect();
            for (place, outputs) in batch.iter().zip(int8.outputs_of(&chosen)?) {
                errors.push((grading.score(&outputs) - grading.score(&graded[*place].0)).abs());
            }
        }
        errors.sort_by(f64::total_cmp);
        Ok(errors.get(errors.len() * 4 / 5).copied())
    }

    fn read(&self, pairs: &[GradedPair]) -> Result<Vec<PairText>> {
        let reader = &self.model.reader;
        let read = |pair: &GradedPair| {
            let (query, item) = (&self.pairs.queries[pair.query as usize], self.pairs.catalogue.item(pair.item)?);
            let named = |e: Error| Error::input(format!("`{query}` and `{}` cannot be read", item.id)).because(e);
            reader.read(query, &self.item_text.render(&item)).map_err(named)
        };
        pairs.iter().map(read).collect()
    }

    /// `graded`: outputs for the calibration pairs.
    fn save(&self, measured: &JudgeReport, graded: &[(Vec<f32>, Level)], out: &Path) -> Result<()> {
        let RelevanceSettings { split, held_out, random_negatives, seed, .. } = self.settings.clone();
        let transformer = transformer_dir(&self.base)?;
        let mut files = weight_files(&transformer)?;
        files.extend(["config.json", "tokenizer.json"].map(|name| transformer.join(name)));
        let base = Base {
            path: self.base.display().to_string(),
            fingerprint: digest_files(&transformer, files)?,
            num_layers: self.model.architecture().num_layers(),
        };
        let trained_on = TrainedOn {
            data: measured.data.clone(),
            split,
            hash: self.pairs.hash.clone(),
            draws: measured.draws,
            pairs: self.pairs.learn.len(),
            held_out,
            random_negatives,
            seed,
        };
        let manifest = CrossEncoderManifest {
            ece: measured.judged.after.ece,
            base: Some(base),
            trained_on: Some(trained_on),
            item_text: self.item_text.clone(),
            ..self.model.manifest()
        };
        self.model.save(&manifest, &transformer, out)?;
        if self.model.device() == Device::Cpu {
            CrossEncoderManifest { int8_error: self.int8_error(graded, out)?, ..manifest }.save(out)?;
        }
        let json =
            serde_json::to_value(measured).map_err(|e| Error::config(METRICS, "cannot be written down").because(e))?;
        write_json(&out.join(METRICS), &json)
    }
}

fn name_of(path: &Path) -> String {
    path.file_name().map_or_else(|| "model".into(), |name| name.to_string_lossy().into_owned())
}

fn check_stop(stop: &AtomicBool) -> Result<()> {
    if stop.load(Ordering::Relaxed) {
        Err(Error::input("stopped before the model was complete: nothing was written"))
    } else {
        Ok(())
    }
}
