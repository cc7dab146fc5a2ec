//! `souk plan`: predicts the memory and time of a training stage without running it.

use std::fmt::Write;
use std::path::PathBuf;

use clap::Args;
use souk::config::Config;
use souk::plan::{Device, Host, Job, Plan, TextLengths, sample};

use crate::output::print;
use crate::{GlobalArgs, ModelArgs};

const GB: f64 = 1e9;

/// Predict the memory, step time and bottleneck of training
///
/// Prints memory, FLOPs, communication and time of a step of one training stage.
///
/// Reads the configuration of `souk train` and the model's dimensions, from [model] path or --model
/// (weights are not read and may be missing), else from [scratch]. Runs nothing. Text lengths come
/// from --data, counted with the model's tokenizer, or from --query-tokens and --item-tokens.
///
/// A device is a GPU, or one process on one core (cpu). Device data comes from datasheets. That
/// matrix products reach --mfu of the peak is an assumption; docs/scale.md compares predictions
/// with measurements.
///
/// Examples:
///   souk plan --config configs/plan-3b.toml --gpus 256 --gpu h200 --item-tokens 256
///   souk plan --config configs/sft-market.toml --model BASE --data SHOP --gpus 2 --gpu cpu
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub struct PlanCommand {
    #[command(flatten)]
    model: ModelArgs,
    /// Number of devices
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    gpus: u64,
    /// Device type: a100, h100, h200, b200 or cpu
    #[arg(long, value_name = "NAME", default_value = "h200")]
    gpu: String,
    /// Data folder, for text lengths and the number of pairs
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Tokens per query, without --data
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    query_tokens: u64,
    /// Tokens per item, without --data
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    item_tokens: u64,
    /// Number of training pairs, without --data
    #[arg(long, value_name = "N")]
    pairs: Option<u64>,
    /// Model FLOPs utilisation: fraction of the peak that matrix products reach (default: the device's)
    #[arg(long, value_name = "FRACTION", value_parser = fraction)]
    mfu: Option<f64>,
    /// Peak of matrix products in GFLOP/s (default: the device's)
    #[arg(long, value_name = "N", value_parser = positive)]
    gflops: Option<f64>,
    /// Memory per device in GB (default: the device's)
    #[arg(long, value_name = "GB", value_parser = positive)]
    memory: Option<f64>,
    /// Number of cores, for cpu (default: the device's)
    #[arg(long, value_name = "N", value_parser = positive)]
    cores: Option<f64>,
}

impl PlanCommand {
    pub fn run(&self, globals: &GlobalArgs) -> anyhow::Result<()> {
        let config = globals.load(self.model.changes())?;
        let outline = config.open_outline()?;
        let texts = self.texts(&config)?;
        let device = self.device()?;
        let job = Job {
            outline: &outline,
            settings: &config.train,
            objective: &config.objective,
            bf16: config.trains_in_bf16()?,
            texts: &texts,
            devices: self.gpus,
        };
        let plan = job.plan(&device, &Host::default())?;
        print(globals, &serde_json::to_value(&plan)?, &table(&plan, &texts)?)
    }

    fn device(&self) -> souk::Result<Device> {
        let mut device = Device::named(&self.gpu)?;
        device.mfu = self.mfu.unwrap_or(device.mfu);
        device.memory = self.memory.map(|gb| gb * GB).or(device.memory);
        device.cores = device.cores.map(|cores| self.cores.unwrap_or(cores));
        if let Some(gflops) = self.gflops {
            (device.bf16, device.tf32, device.f32) = (gflops * 1e9, gflops * 1e9, gflops * 1e9);
        }
        Ok(device)
    }

    fn texts(&self, config: &Config) -> souk::Result<TextLengths> {
        let Some(data) = &self.data else {
            return TextLengths::new(vec![self.query_tokens], vec![self.item_tokens], 1.0, self.pairs);
        };
        let negatives = config.objective.needs().global_negatives;
        sample(&config.open_data(data)?, &config.open_reader()?, &config.train, negatives)
    }
}

fn fraction(text: &str) -> Result<f64, String> {
    let fraction = positive(text)?;
    if fraction <= 1.0 { Ok(fraction) } else { Err("set it to a number above 0 and up to 1, such as 0.6".into()) }
}

fn positive(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| number.is_finite() && *number > 0.0);
    number.ok_or_else(|| "set it to a number above 0".into())
}

/// Plan as text.
fn table(plan: &Plan, texts: &TextLengths) -> Result<String, std::fmt::Error> {
    let mut out = String::new();
    let Plan { device, load, memory, .. } = plan;
    let [query, item] = texts.mean_tokens();
    writeln!(
        out,
        "{} x {}, {} parameters, {} trained",
        plan.devices,
        device.name,
        count(plan.parameters),
        count(plan.trained)
    )?;
    writeln!(
        out,
        "batch: {} pairs, {} items; per device: {} queries of {query:.1} tokens, {} items of {item:.1}, {:.0} tokens \
         in {} chunks, {} with kept activations",
        plan.batch, plan.items, load.queries, load.items, load.tokens, load.num_chunks, load.kept
    )?;
    writeln!(out, "\nmemory per device (peak: {})", memory.moment)?;
    let (unit, symbol) = if memory.bytes < 10.0 * GB { (1e6, "MB") } else { (GB, "GB") };
    for part in &memory.parts {
        writeln!(out, "  {:<66} {:>9.2} {symbol}", part.name, part.bytes / unit)?;
    }
    let of = memory.capacity.map_or_else(String::new, |capacity| format!(" of {:.2}", capacity / unit));
    let fits = if memory.fits() { "" } else { ": DOES NOT FIT" };
    writeln!(out, "  {:<66} {:>9.2} {symbol}{of}{fits}", "total", memory.bytes / unit)?;
    write_step(&mut out, plan)?;
    writeln!(out, "\nbottleneck: {}", plan.limit)?;
    if let Some(largest) = plan.largest_batch {
        writeln!(out, "largest batch that fits: {largest} pairs, {} per device", largest / plan.devices)?;
    }
    if let Some(epoch) = plan.epoch {
        writeln!(out, "{} pairs: {} steps, {:.2} hours", epoch.pairs, epoch.steps, epoch.hours)?;
    }
    for note in &plan.notes {
        writeln!(out, "note: {note}")?;
    }
    out.truncate(out.trim_end().len());
    Ok(out)
}

/// Writes FLOPs, communication and time of a step.
fn write_step(out: &mut String, plan: &Plan) -> std::fmt::Result {
    let flops = plan.flops;
    let passes = [
        ("forward", flops.forward),
        ("recomputed forward", flops.again),
        ("backward", flops.backward),
        ("loss", flops.loss),
    ];
    writeln!(out, "\nFLOPs per device and step")?;
    for (name, flops) in passes {
        writeln!(out, "  {name:<66} {:>9.1} GFLOP", flops / 1e9)?;
    }
    if !plan.exchanges.is_empty() {
        writeln!(out, "\ncommunication per step: bytes sent by a device")?;
    }
    for exchange in &plan.exchanges {
        let (bytes, ms) = (exchange.bytes / 1e6, exchange.seconds * 1e3);
        writeln!(out, "  {:<44} {:>6.0} times {bytes:>12.3} MB {ms:>10.2} ms", exchange.name, exchange.times)?;
    }
    writeln!(out, "\ntime per step")?;
    let line = |out: &mut String, (name, seconds): (&str, f64)| {
        writeln!(out, "  {name:<66} {seconds:>9.4} s {:>5.1} %", 100.0 * seconds / plan.step_seconds)
    };
    plan.seconds.by_phase().into_iter().try_for_each(|phase| line(out, phase))?;
    line(out, ("total", plan.step_seconds))?;
    writeln!(out, "by cause")?;
    plan.causes.all().into_iter().try_for_each(|cause| line(out, cause))?;
    let (mfu, used) = (100.0 * plan.device.mfu, 100.0 * plan.utilisation);
    writeln!(out, "matrix products at {mfu:.0} % of the peak (assumed); the whole step at {used:.1} %")
}

fn count(number: f64) -> String {
    match number {
        n if n >= 1e9 => format!("{:.3} B", n / 1e9),
        n if n >= 1e6 => format!("{:.2} M", n / 1e6),
        n => format!("{n:.0}"),
    }
}
