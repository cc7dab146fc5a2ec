//! The YAML at the top of a model card, in the fields that the Hugging Face hub reads. Texts are written as JSON strings, which are
//! valid YAML.

use std::fmt::Write;

use super::{Card, MeasurementRecord};

/// Front matter with its two lines of dashes.
pub fn front_matter(card: &Card) -> String {
    let Card { name, encoder, record } = card;
    let mut text = String::from("---\n");
    let library = if encoder.loads_in_sentence_transformers { "sentence-transformers" } else { "souk" };
    let _ = writeln!(text, "library_name: {library}\npipeline_tag: sentence-similarity");
    let foreign = encoder.loads_in_sentence_transformers.then_some("sentence-transformers");
    list(
        &mut text,
        "tags",
        foreign.into_iter().chain(["sentence-similarity", "feature-extraction", "retrieval", "souk"]),
    );
    if !record.languages.is_empty() {
        list(&mut text, "language", record.languages.iter().map(String::as_str));
    }
    if record.is_base_on_hub {
        let _ = writeln!(text, "base_model: {}", quoted(&record.base));
    }
    if !record.measurements.is_empty() {
        let _ = write!(text, "model-index:\n- name: {}\n  results:\n", quoted(name));
        record.measurements.iter().for_each(|measurement| result(&mut text, measurement));
    }
    text + "---\n"
}

fn list<'a>(text: &mut String, name: &str, values: impl Iterator<Item = &'a str>) {
    let _ = writeln!(text, "{name}:");
    values.for_each(|value| *text += &format!("- {}\n", quoted(value)));
}

/// One result of the index. The hub's metrics are fractions.
fn result(text: &mut String, measurement: &MeasurementRecord) {
    let MeasurementRecord { data, split, metrics, .. } = measurement;
    let _ = writeln!(text, "  - task:\n      type: information-retrieval\n      name: Information Retrieval");
    let (data, split) = (quoted(data), quoted(split));
    let _ = writeln!(text, "    dataset:\n      name: {data}\n      type: {data}\n      split: {split}");
    let _ = writeln!(text, "    metrics:");
    for (name, metric) in metrics {
        let name = quoted(name);
        let _ = writeln!(text, "    - type: {name}\n      value: {:.5}\n      name: {name}", metric.value / 100.0);
    }
}

fn quoted(text: &str) -> String {
    let printable: String = text.chars().filter(|letter| !letter.is_control()).collect();
    serde_json::Value::String(printable).to_string()
}

/// Language codes in the front matter of any card: `language: en`, `language: [en, de]` or a list.
pub fn languages(card: &str) -> Vec<String> {
    let Some((matter, _)) = card.strip_prefix("---\n").and_then(|rest| rest.split_once("\n---")) else {
        return Vec::new();
    };
    let mut lines = matter.lines().skip_while(|line| !line.starts_with("language:"));
    let first = lines.next().and_then(|line| line.strip_prefix("language:")).unwrap_or_default();
    let listed = lines.map_while(|line| line.trim_start().strip_prefix("- "));
    let words = first.split(['[', ']', ',']).chain(listed).map(|word| word.trim().trim_matches(['"', '\'']));
    let is_code = |word: &&str| (2..=3).contains(&word.len()) && word.bytes().all(|byte| byte.is_ascii_lowercase());
    words.filter(is_code).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model_card::{EncoderRecord, MetricRecord, ModelRecord};

    #[test]
    fn fields_of_the_hub_in_yaml() {
        let metrics = [("ndcg@10".into(), MetricRecord { value: 44.7, interval: None })].into();
        let measurement = MeasurementRecord {
            data: "a \"shop\"".into(),
            split: "test".into(),
            metrics,
            ..MeasurementRecord::default()
        };
        let record = ModelRecord {
            base: "owner/model".into(),
            is_base_on_hub: true,
            languages: vec!["no".into()],
            measurements: vec![measurement],
            ..ModelRecord::default()
        };
        let encoder = EncoderRecord { loads_in_sentence_transformers: true, ..EncoderRecord::default() };
        let text = front_matter(&Card { name: "SFT".into(), encoder, record });
        let expected = "---\nlibrary_name: sentence-transformers\npipeline_tag: sentence-similarity\ntags:\n\
            - \"sentence-transformers\"\n- \"sentence-similarity\"\n- \"feature-extraction\"\n- \"retrieval\"\n- \"souk\"\n\
            language:\n- \"no\"\nbase_model: \"owner/model\"\nmodel-index:\n- name: \"SFT\"\n  results:\n  - task:\n      \
            type: information-retrieval\n      name: Information Retrieval\n    dataset:\n      name: \"a \\\"shop\\\"\"\n      \
            type: \"a \\\"shop\\\"\"\n      split: \"test\"\n    metrics:\n    - type: \"ndcg@10\"\n      value: 0.44700\n      \
            name: \"ndcg@10\"\n---\n";
        assert_eq!(text, expected);
        let plain = front_matter(&Card::default());
        assert!(plain.starts_with("---\nlibrary_name: souk\n") && !plain.contains("base_model"), "{plain}");
    }

    #[test]
    fn languages_of_other_cards() {
        for (matter, found) in [
            ("language: en", &["en"][..]),
            ("tags:\n- x\nlanguage:\n- en\n- \"no\"\nlicense: mit", &["en", "no"]),
            ("language: [en, 'deu']", &["en", "deu"]),
            ("language:\n  - multilingual\n  - pt", &["pt"]),
            ("license: mit", &[]),
        ] {
            assert_eq!(languages(&format!("---\n{matter}\n---\n# Card")), found, "{matter}");
        }
        assert!(languages("# A page\nlanguage: en").is_empty());
    }
}
