//! The text of a model card: what the model is, how to use it, how it was trained, and what was measured.

use std::fmt::Write;

use super::front_matter::front_matter;
use super::{BestRecord, Card, EncoderRecord, GateRecord, MeasurementRecord, StageRecord, TrainedRecord};

/// The page in Markdown, with its front matter.
pub fn page(card: &Card) -> String {
    let Card { name, encoder, record } = card;
    let mut text = format!("{}\n# {}\n\n", front_matter(card), plain(name));
    let (dimensions, similarity) = (encoder.dimensions, &encoder.similarity);
    let compared = if similarity == "cosine" { "cosine similarity" } else { "dot product" };
    let made = if record.stages.is_empty() { "exported by" } else { "trained with" };
    let _ = writeln!(
        text,
        "An encoder for product search, {made} Souk. It maps queries and items to vectors of {dimensions} dimensions; their \
         {compared} is the relevance score.\n"
    );
    facts(&mut text, card);
    usage(&mut text, encoder);
    if !record.stages.is_empty() {
        text += "## Training\n\n";
        for (number, stage) in record.stages.iter().enumerate() {
            match stage {
                StageRecord::Trained(stage) => trained(&mut text, number + 1, stage),
                StageRecord::Averaged { models } => averaged(&mut text, number + 1, models),
            }
        }
    }
    measured(&mut text, &record.measurements);
    record.gate.iter().for_each(|gate| verdict(&mut text, gate));
    text.truncate(text.trim_end().len());
    text + "\n"
}

fn facts(text: &mut String, card: &Card) {
    let Card { encoder, record, .. } = card;
    *text += "| | |\n|---|---|\n";
    let mut row = |name: &str, value: String| *text += &format!("| {name} | {value} |\n");
    if record.is_base_on_hub {
        row("base model", format!("[{0}](https://huggingface.co/{0})", plain(&record.base)));
    } else {
        row("base model", plain(&record.base));
    }
    encoder.max_tokens.iter().for_each(|max| row("longest text", format!("{max} tokens; the rest is cut off")));
    if !encoder.item_text.is_empty() {
        row("text of an item", code(&encoder.item_text));
    }
    for (what, prompt) in [("query", &encoder.query_prompt), ("item", &encoder.item_prompt)] {
        if !prompt.is_empty() {
            row(&format!("prompt of a {what}"), code(prompt));
        }
    }
    text.push('\n');
}

fn usage(text: &mut String, encoder: &EncoderRecord) {
    *text += "## Use\n\nWith Souk, where `MODEL` is this folder and `SHOP` is a data folder:\n\n```console\n\
              $ souk index --model MODEL --data SHOP --out INDEX\n\
              $ souk search --model MODEL --index INDEX \"desk for a small room\"\n\
              $ souk serve --model MODEL --data SHOP\n```\n\n";
    if !encoder.loads_in_sentence_transformers {
        *text += "sentence-transformers does not load this model: it reads soft tokens or rationales.\n\n";
        return;
    }
    let prompt =
        |prompt: &str, name: &str| if prompt.is_empty() { String::new() } else { format!(", prompt_name=\"{name}\"") };
    let (query, item) = (prompt(&encoder.query_prompt, "query"), prompt(&encoder.item_prompt, "document"));
    let _ = writeln!(
        text,
        "With sentence-transformers:\n\n```python\nfrom sentence_transformers import SentenceTransformer\n\n\
         model = SentenceTransformer(\"MODEL\")\n\
         queries = model.encode([\"desk for a small room\"]{query})\n\
         items = model.encode([\"Oak desk 120 cm\", \"Steel shelf\"]{item})\n\
         print(model.similarity(queries, items))\n```\n"
    );
}

fn trained(text: &mut String, number: usize, stage: &TrainedRecord) {
    let TrainedRecord { objective, model, data, num_pairs, pairs, num_items, steps, .. } = stage;
    let (model, data) = (code(model), code(data));
    let _ = writeln!(text, "### {number}. {}\n", code(objective));
    let loss = stage.loss.map(|loss| format!("; the last loss was {loss:.4}")).unwrap_or_default();
    let _ = writeln!(
        text,
        "From {model}, on {num_pairs} {pairs} of {data}, a catalogue of {num_items} items, in {steps} steps{loss}.\n"
    );
    if let Some(BestRecord { step, metric, value, split, num_queries }) = &stage.best {
        let split = code(split);
        let _ = writeln!(
            text,
            "The weights are those after step {step}, the best of the stage's evaluations: {metric} {value:.2} on \
             {num_queries} queries of {split}.\n"
        );
    }
    let settings = stage.settings.trim_end();
    let _ = writeln!(text, "<details><summary>Settings</summary>\n\n```toml\n{settings}\n```\n\n</details>\n");
}

fn averaged(text: &mut String, number: usize, models: &[(String, f64)]) {
    let models: Vec<String> = models.iter().map(|(name, share)| format!("{} ({share})", code(name))).collect();
    let _ = writeln!(text, "### {number}. Average\n\nMean of the weights, with these shares: {}.\n", models.join(", "));
}

fn measured(text: &mut String, measurements: &[MeasurementRecord]) {
    if measurements.is_empty() {
        return;
    }
    *text += "## Metrics\n\nMeans over the queries in percent, with 95 % intervals. The index at the top has them as fractions.\n\n";
    for MeasurementRecord { data, split, pipeline, num_queries, metrics } in measurements {
        let _ = writeln!(text, "{} of {}, {num_queries} queries, {}:\n", code(split), code(data), plain(pipeline));
        *text += "| metric | mean | interval |\n|---|---|---|\n";
        for (name, metric) in metrics {
            let interval = metric.interval.map(|[low, high]| format!("{low:.2} to {high:.2}")).unwrap_or_default();
            let _ = writeln!(text, "| {name} | {:.2} | {interval} |", metric.value);
        }
        text.push('\n');
    }
}

fn verdict(text: &mut String, gate: &GateRecord) {
    let GateRecord { compared_with, passed, reasons } = gate;
    let outcome = if *passed { "passed" } else { "failed" };
    let _ = writeln!(text, "## Gate\n\nCompared with {}: {outcome}.\n", code(compared_with));
    reasons.iter().for_each(|reason| *text += &format!("- {}\n", plain(reason)));
}

/// A text that no table or heading is broken by.
fn plain(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect::<String>().replace('|', "\\|")
}

fn code(text: &str) -> String {
    format!("`{}`", plain(text).replace('`', "'"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model_card::{MetricRecord, ModelRecord};

    fn card() -> Card {
        let trained = TrainedRecord {
            objective: "info_nce".into(),
            model: "minilm".into(),
            data: "shop".into(),
            num_pairs: 120,
            pairs: "judged pairs".into(),
            num_items: 60,
            steps: 20,
            loss: Some(1.5),
            best: Some(BestRecord {
                step: 10,
                metric: "mrr@10".into(),
                value: 51.5,
                split: "dev".into(),
                num_queries: 30,
            }),
            settings: "[train]\nbatch = 12\n".into(),
        };
        let averaged = StageRecord::Averaged { models: vec![("a".into(), 0.7), ("b".into(), 0.3)] };
        let metrics = [("ndcg@10".into(), MetricRecord { value: 44.712, interval: Some([43.0, 46.0]) })].into();
        let measurement =
            MeasurementRecord { data: "shop".into(), split: "test".into(), metrics, ..MeasurementRecord::default() };
        let reasons = vec!["test: worse on the slice `rare|x`".into()];
        let record = ModelRecord {
            base: "minilm".into(),
            stages: vec![StageRecord::Trained(trained.into()), averaged],
            measurements: vec![measurement],
            gate: Some(GateRecord { compared_with: "v1".into(), passed: false, reasons }),
            ..ModelRecord::default()
        };
        let encoder = EncoderRecord {
            dimensions: 16,
            similarity: "cosine".into(),
            query_prompt: "query: ".into(),
            loads_in_sentence_transformers: true,
            ..EncoderRecord::default()
        };
        Card { name: "SFT".into(), encoder, record }
    }

    #[test]
    fn the_page_has_use_stages_metrics_and_verdict() {
        let text = page(&card());
        for words in [
            "\n# SFT\n",
            "vectors of 16 dimensions; their cosine similarity",
            "| base model | minilm |",
            "| prompt of a query | `query: ` |",
            "model.encode([\"desk for a small room\"], prompt_name=\"query\")",
            "### 1. `info_nce`\n\nFrom `minilm`, on 120 judged pairs of `shop`, a catalogue of 60 items, in 20 steps; the last loss \
             was 1.5000.",
            "those after step 10, the best of the stage's evaluations: mrr@10 51.50 on 30 queries of `dev`.",
            "```toml\n[train]\nbatch = 12\n```",
            "### 2. Average\n\nMean of the weights, with these shares: `a` (0.7), `b` (0.3).",
            "| ndcg@10 | 44.71 | 43.00 to 46.00 |",
            "Compared with `v1`: failed.\n\n- test: worse on the slice `rare\\|x`\n",
        ] {
            assert!(text.contains(words), "`{words}` is missing in\n{text}");
        }
        assert!(!text.contains("document"), "an item has no prompt");
    }

    #[test]
    fn a_model_that_only_souk_computes_says_so() {
        let mut card = card();
        card.encoder.loads_in_sentence_transformers = false;
        let text = page(&card);
        assert!(text.contains("does not load this model") && !text.contains("SentenceTransformer"), "{text}");
    }
}
