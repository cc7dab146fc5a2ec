//! Trains three steps with an objective of your own: a margin loss that wants each query nearer to its item than to any other item of
//! the batch, by at least 0.2.
//!
//!     cargo run --release --example own_objective
#![expect(clippy::print_stdout, reason = "it shows its result")]

use std::fs;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use serde_json::{Value, json};
use souk::backbone::Precision;
use souk::beir::DataFolder;
use souk::collective::Solo;
use souk::encoder::{Encoder, Overrides, Placement};
use souk::objective::{Objective, cosines};
use souk::train::{Algorithm, FrozenEncoders, Outcome, Progress, Run, Stage, StageSummary, StepContext, TrainSettings};
use souk::{Error, Result};
use tch::{Device, Kind, Tensor};

struct MarginLoss {
    margin: f64,
}

impl Algorithm for MarginLoss {
    fn step(&mut self, cx: &mut StepContext) -> Result<Outcome> {
        cx.zero_grad();
        for micro in cx.micro_batches() {
            let batch = cx.draw_batch(micro.draws);
            let own = cx.stage.own_pairs(&batch);
            let encoded = cx.encode(&batch)?;
            cx.backward(encoded, |vectors| {
                let scores = cosines(vectors.queries, vectors.items);
                let chosen = Tensor::from_slice(&batch.chosen[own.clone()]).unsqueeze(1);
                let violation = (&scores - scores.gather(1, &chosen, false) + self.margin).relu();
                // an item is not its own negative, and neither is one that the query is known to have found
                let negative =
                    scores.ones_like().scatter_value(1, &chosen, 0.0).masked_fill(&batch.known(&own, Device::Cpu), 0.0);
                Ok((violation * negative).sum(Kind::Float) * (micro.weight / batch.pairs.len() as f64))
            })?;
            cx.metrics.pairs += batch.pairs.len();
        }
        cx.optimizer_step()?;
        Ok(Outcome::Done)
    }
}

fn main() -> Result<()> {
    let home = std::env::temp_dir().join(format!("souk-own-objective-{}", std::process::id()));
    let summary = run(Path::new("tests/golden/st_mean_dense"), &home, |loss| println!("loss {loss:.4}"))?;
    println!("{} steps; the model is in {}", summary.step, home.join("run").display());
    Ok(())
}

/// Trains in the folder `home`, and reports the loss of each step.
pub fn run(model: &Path, home: &Path, mut report: impl FnMut(f64)) -> Result<StageSummary> {
    write_shop(&home.join("data")).map_err(Error::store(home, "write the data"))?;
    let placement =
        Placement { device: Device::Cpu, precision: Precision::F32, adapter: None, ignore_fields: Vec::new() };
    let stage = Stage {
        encoder: Encoder::open(model, placement, Overrides::default())?,
        settings: TrainSettings { batch: 8, max_steps: 3, epochs: 3.0, ..TrainSettings::default() },
        objective: Objective::default(),
        bf16: false,
        rewards: None,
        frozen: FrozenEncoders::default(),
        span: None,
        config: Value::Null,
    };
    let data = DataFolder::open(&home.join("data"))?;
    let run = Run::open_with(Box::new(MarginLoss { margin: 0.2 }), stage, &data, &home.join("run"), Box::new(Solo))?;
    run.train(&AtomicBool::new(false), |progress| {
        if let Progress::Step(step) = progress {
            report(step.metrics.loss);
        }
    })
}

/// Twelve items, and a query for each.
fn write_shop(data: &Path) -> std::io::Result<()> {
    let (mut corpus, mut queries, mut qrels) =
        (String::new(), String::new(), String::from("query-id\tcorpus-id\tscore\n"));
    for number in 0..12 {
        let kind = ["desk", "lamp", "chair"][number % 3];
        corpus += &format!("{}\n", json!({"_id": format!("d{number}"), "title": format!("{kind} number {number}")}));
        queries += &format!("{}\n", json!({"_id": format!("q{number}"), "text": format!("{kind} {number}")}));
        qrels += &format!("q{number}\td{number}\t4\n");
    }
    fs::create_dir_all(data.join("qrels"))?;
    fs::write(data.join("corpus.jsonl"), corpus)?;
    fs::write(data.join("queries.jsonl"), queries)?;
    fs::write(data.join("qrels/train.tsv"), qrels)
}
