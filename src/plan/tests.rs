//! A plan as a whole, on sizes that a pencil can follow.

use super::*;
use crate::objective::InfoNceSettings;
use souk_nn::backbone::Architecture;
use souk_nn::backbone::lora::Lora;

/// The outline of a `config.json`, read from its last or mean token.
pub fn outline(json: &str) -> Outline {
    let architecture = Architecture::read(serde_json::from_str(json).unwrap(), "config.json", Some(&[])).unwrap();
    let sizes = architecture.sizes();
    let (dimensions, causal) = (sizes.width, architecture.is_causal());
    Outline { vocabulary: sizes.untied, sizes, dense: Vec::new(), dimensions, skip_layers: 0, causal }
}

pub fn bert_base() -> Outline {
    outline(
        r#"{"model_type": "bert", "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
        "intermediate_size": 3072, "vocab_size": 30522, "max_position_embeddings": 512, "hidden_act": "gelu"}"#,
    )
}

struct Case {
    outline: Outline,
    settings: TrainSettings,
    objective: Objective,
    texts: TextLengths,
    bf16: bool,
}

impl Case {
    fn new() -> Self {
        Self {
            outline: bert_base(),
            settings: TrainSettings { batch: 256, ..TrainSettings::default() },
            objective: Objective::default(),
            texts: TextLengths::new(vec![8], vec![64], 1.0, Some(100_000)).unwrap(),
            bf16: true,
        }
    }

    fn plan(&self, devices: u64) -> Plan {
        self.plan_on(&Device::named("h200").unwrap(), devices)
    }

    fn plan_on(&self, device: &Device, devices: u64) -> Plan {
        let Self { outline, settings, objective, texts, bf16 } = self;
        let job = Job { outline, settings, objective, texts, bf16: *bf16, devices };
        job.plan(device, &Host::default()).unwrap()
    }
}

#[test]
fn what_is_kept_goes_once_and_the_rest_twice() {
    let mut case = Case::new();
    let own_tokens = 256.0 * 72.0;
    case.settings.keep_tokens = usize::MAX;
    let kept = case.plan(1);
    assert_eq!((kept.load.tokens, kept.load.kept_tokens, kept.flops.again), (own_tokens, own_tokens, 0.0));
    case.settings.keep_tokens = 0;
    let cached = case.plan(1);
    assert_eq!(cached.flops.again, cached.flops.forward);
    assert_eq!(cached.flops.backward, kept.flops.backward);
    assert!(cached.step_seconds > kept.step_seconds && cached.memory.bytes < kept.memory.bytes);
}

#[test]
fn seconds_are_the_same_by_phase_and_by_cause() {
    let mut case = Case::new();
    for (devices, accumulate) in [(1, 1), (4, 1), (16, 3)] {
        case.settings.accumulate = accumulate;
        let plan = case.plan(devices);
        let by_cause: f64 = plan.causes.all().iter().map(|(_, seconds)| seconds).sum();
        assert!((by_cause / plan.step_seconds - 1.0).abs() < 1e-9, "{devices} devices: {by_cause}");
        assert!(plan.utilisation > 0.0 && plan.utilisation < plan.device.mfu);
    }
}

#[test]
fn exchanges_are_those_of_the_step() {
    let mut case = Case::new();
    case.objective = Objective::InfoNce(InfoNceSettings { global_negatives: 64, ..InfoNceSettings::default() });
    let plan = case.plan(4);
    let bytes = |name: &str| plan.exchanges.iter().find(|exchange| exchange.name == name).unwrap().bytes;
    // 320 items, 80 of them on each device, rows of 768 numbers
    assert_eq!(bytes("gathering vectors"), 3.0 * 80.0 * 768.0 * 4.0);
    assert_eq!(bytes("returning their gradients"), 0.75 * 320.0 * 768.0 * 4.0);
    assert_eq!(bytes("sum of gradients"), 1.5 * 4.0 * plan.parameters);
    assert!(case.plan(1).exchanges.is_empty());
    case.objective =
        Objective::InfoNce(InfoNceSettings { global_negatives: 64, symmetric: true, ..InfoNceSettings::default() });
    let both = case.plan(4);
    let gathered = both.exchanges.iter().find(|exchange| exchange.name == "gathering vectors").unwrap();
    assert_eq!(gathered.bytes, 3.0 * (80.0 + 64.0) * 768.0 * 4.0);
    assert!(both.flops.loss > plan.flops.loss);
}

#[test]
fn memory_is_what_adam_in_f32_takes_and_an_adapter_takes_little() {
    let mut case = Case::new();
    let full = case.plan(2);
    let bytes = |plan: &Plan, name: &str| plan.memory.parts.iter().find(|part| part.name == name).unwrap().bytes;
    assert_eq!(bytes(&full, "AdamW's two moments, f32"), 8.0 * full.parameters);
    let targets = vec!["query".into(), "value".into()];
    case.settings.lora = Some(Lora { rank: 8, alpha: 16.0, dropout: 0.0, targets, rank_stabilized: false });
    let adapted = case.plan(2);
    assert_eq!(adapted.trained, 24.0 * 8.0 * 2.0 * 768.0);
    assert_eq!(bytes(&adapted, "weights, f32"), 4.0 * (full.parameters + adapted.trained));
    assert_eq!(bytes(&adapted, "gradients, f32"), 4.0 * adapted.trained);
    assert!(adapted.memory.bytes < full.memory.bytes);
    assert!(adapted.exchanges.last().unwrap().seconds < full.exchanges.last().unwrap().seconds);
}

#[test]
fn the_largest_batch_fits_and_a_few_percent_more_do_not() {
    let mut case = Case::new();
    case.settings.keep_tokens = usize::MAX;
    let device = Device { memory: Some(24e9), ..Device::named("h200").unwrap() };
    let largest = case.plan_on(&device, 2).largest_batch.unwrap();
    assert!(largest > 256);
    for (batch, fits) in [(largest, true), (largest + largest / 20, false)] {
        case.settings.batch = batch as usize;
        assert_eq!(case.plan_on(&device, 2).memory.fits(), fits, "{batch}");
    }
    let too_small = Device { memory: Some(1e9), ..device };
    let plan = case.plan_on(&too_small, 2);
    assert_eq!(plan.largest_batch, Some(0));
    assert!(plan.limit.starts_with("memory"), "{}", plan.limit);
}

#[test]
fn an_epoch_has_the_steps_that_training_makes() {
    let mut case = Case::new();
    case.settings.epochs = 2.0;
    case.settings.accumulate = 2;
    let plan = case.plan(1);
    let epoch = plan.epoch.unwrap();
    assert_eq!((epoch.pairs, epoch.steps), (100_000, 200_000_u64.div_ceil(512)));
    assert!((epoch.hours * 3600.0 / epoch.steps as f64 - plan.step_seconds).abs() < 1e-9);
    case.settings.max_steps = 7;
    assert_eq!(case.plan(1).epoch.unwrap().steps, 7);
}

#[test]
fn a_batch_that_cannot_be_shared_is_refused() {
    let case = Case::new();
    let Case { outline, settings, objective, texts, .. } = &case;
    let job = Job { outline, settings, objective, texts, bf16: false, devices: 512 };
    let device = Device::named("h200").unwrap();
    assert!(job.plan(&device, &Host::default()).unwrap_err().to_string().contains("512 devices"));
    assert!(Job { devices: 0, ..job }.plan(&device, &Host::default()).is_err());
}
