//! Reads a hub `config.json`: architecture and sizes of the backbone. Unknown architectures, and unknown fields that may
//! change the computation, are errors that name the field.

use std::path::Path;

use serde_json::Value;

use super::bert::{self, BertShape};
use super::decoder::{self, DecoderShape};
use super::fields::Fields;
use super::modernbert::{self, ModernBertShape};
use souk_io::error::{Error, Result};

/// Fields of a hub `config.json` that do not change the forward pass.
const HARMLESS: &str = "
    _attn_implementation _name_or_path _num_labels _sliding_window_pattern architectures attn_implementation
    bad_words_ids begin_suppress_tokens bos_token_id cache_implementation classifier_activation classifier_bias
    classifier_dropout classifier_pooling cls_token_id cross_attention_hidden_size decoder_bias decoder_start_token_id deterministic_flash_attn
    directionality diversity_penalty do_sample dtype early_stopping
    encoder_no_repeat_ngram_size eos_token_id exponential_decay_length_penalty finetuning_task
    forced_bos_token_id forced_eos_token_id gradient_checkpointing id2label initializer_cutoff_factor
    initializer_range is_decoder
    label2id length_penalty mask_token_id max_length max_window_layers min_length model_type
    no_repeat_ngram_size num_beam_groups num_beams num_labels num_return_sequences output_attentions
    output_hidden_states output_past output_scores pad_token_id pooler_fc_size pooler_num_attention_heads
    pooler_num_fc_layers pooler_size_per_head pooler_type prefix problem_type reference_compile
    remove_invalid_values repad_logits_with_grad repetition_penalty return_dict return_dict_in_generate
    sentence_transformers sep_token_id sparse_pred_ignore_index sparse_prediction suppress_tokens
    task_specific_params temperature tf_legacy_loss tokenizer_class top_k top_p torch_dtype torchscript
    transformers_version typical_p unsloth_fixed unsloth_version use_bfloat16 use_cache xla_device";

/// Architectures that Souk does not compute, each with the nearest that it does.
const NEAREST: [(&str, &str); 13] = [
    ("albert", "bert"),
    ("camembert", "xlm-roberta"),
    ("deberta", "roberta"),
    ("deberta-v2", "roberta"),
    ("distilbert", "bert"),
    ("electra", "bert"),
    ("gemma", "gemma3_text"),
    ("gemma2", "gemma3_text"),
    ("gemma3", "gemma3_text"),
    ("nomic_bert", "bert"),
    ("t5", "bert"),
    ("xlm-roberta-xl", "xlm-roberta"),
    ("xmod", "xlm-roberta"),
];

/// Architecture and sizes from a `config.json`.
#[derive(Clone, Debug)]
pub struct Architecture {
    pub(super) shape: Shape,
    /// Original JSON, for saving the model.
    json: Value,
}

/// Names of the classes of transformers that put a head on an architecture.
#[derive(Clone, Copy, Debug)]
pub struct ClassNames {
    /// Start of the class's name, such as `Bert` in `BertForSequenceClassification`.
    pub class: &'static str,
    /// Prefix of the backbone's tensors.
    pub prefix: &'static str,
}

#[derive(Clone, Debug)]
pub(super) enum Shape {
    Bert(BertShape),
    ModernBert(ModernBertShape),
    Decoder(DecoderShape),
}

impl Architecture {
    /// Reads a hub `config.json`; `ignored` lists unknown fields to accept.
    pub fn open(path: &Path, ignored: &[String]) -> Result<Self> {
        let text = std::fs::read(path).map_err(Error::store(path, "read it"))?;
        let json =
            serde_json::from_slice(&text).map_err(|e| Error::config(path.display(), "not valid JSON").because(e))?;
        Self::read(json, &path.display().to_string(), Some(ignored))
    }

    /// Parses the JSON of a `config.json`; `place` names it in errors.
    pub fn read(json: Value, place: &str, ignored: Option<&[String]>) -> Result<Self> {
        let fields = Fields::new(place.into(), json.clone(), ignored)?;
        let model_type: String = fields.required("model_type")?;
        for (field, neutral) in [
            ("is_encoder_decoder", Value::from(false)),
            ("chunk_size_feed_forward", 0.into()),
            ("pruned_heads", serde_json::json!({})),
            ("tie_encoder_decoder", false.into()),
            ("add_cross_attention", false.into()),
        ] {
            fields.expect(field, neutral)?;
        }
        let encoder = bert::FAMILIES.iter().find(|family| family.model_type == model_type);
        let decoder = decoder::FAMILIES.iter().find(|family| family.model_type == model_type);
        let shape = match (encoder, decoder) {
            (Some(family), _) => Shape::Bert(BertShape::read(family, &fields)?),
            (None, Some(family)) => Shape::Decoder(DecoderShape::read(family, &fields)?),
            (None, None) if model_type == modernbert::MODEL_TYPE => Shape::ModernBert(ModernBertShape::read(&fields)?),
            (None, None) => return Err(fields.error("model_type", &unsupported(&model_type))),
        };
        fields.finish(HARMLESS)?;
        Ok(Self { shape, json })
    }

    pub fn json(&self) -> &Value {
        &self.json
    }

    /// Keeps only the lowest `layers` layers; `ignored` lists unknown fields to accept.
    pub fn truncate_layers(&self, layers: usize, ignored: &[String]) -> Result<Self> {
        let mut json = self.json.clone();
        json["num_hidden_layers"] = layers.into();
        if let Some(types) = json.get_mut("layer_types").and_then(Value::as_array_mut) {
            types.truncate(layers);
        }
        Self::read(json, "config.json", Some(ignored))
    }

    /// Names in transformers' classes for this architecture.
    pub fn class_names(&self) -> ClassNames {
        match &self.shape {
            Shape::Bert(shape) => ClassNames { class: shape.family.class, prefix: shape.family.prefix },
            Shape::ModernBert(_) => ClassNames { class: modernbert::CLASS, prefix: modernbert::PREFIX },
            Shape::Decoder(shape) => ClassNames { class: shape.class, prefix: decoder::PREFIX },
        }
    }

    /// Overrides causal attention; `None` keeps the setting of the file.
    pub fn with_causal(mut self, causal: Option<bool>, ignored: &[String]) -> Result<Self> {
        match (causal, &self.shape) {
            (Some(causal), Shape::Decoder(shape)) if causal != shape.causal => {
                let (field, value) = shape.causal_field(causal);
                self.json[field] = value.into();
                Self::read(self.json, "config.json", Some(ignored))
            }
            (Some(true), Shape::Bert(_) | Shape::ModernBert(_)) => {
                Err(Error::config("encoder.causal", "is true, but this model is bidirectional: use a decoder"))
            }
            _ => Ok(self),
        }
    }

    /// Whether each token attends only to itself and earlier ones.
    pub fn is_causal(&self) -> bool {
        matches!(&self.shape, Shape::Decoder(shape) if shape.causal)
    }

    pub fn num_layers(&self) -> usize {
        match &self.shape {
            Shape::Bert(shape) => usize::try_from(shape.layers).unwrap_or(0),
            Shape::ModernBert(shape) => shape.windows.len(),
            Shape::Decoder(shape) => shape.windows.len(),
        }
    }

    /// Number of token types; 1 for models that have none.
    pub fn num_token_types(&self) -> i64 {
        match &self.shape {
            Shape::Bert(shape) => shape.token_types.max(1),
            Shape::ModernBert(_) | Shape::Decoder(_) => 1,
        }
    }

    /// Width of a hidden state.
    pub fn width(&self) -> i64 {
        match &self.shape {
            Shape::Bert(shape) => shape.width,
            Shape::ModernBert(shape) => shape.width,
            Shape::Decoder(shape) => shape.width,
        }
    }

    /// Maximum number of positions.
    pub fn max_tokens(&self) -> usize {
        let positions = match &self.shape {
            Shape::Bert(shape) => shape.positions(),
            Shape::ModernBert(shape) => shape.positions,
            Shape::Decoder(shape) => shape.positions,
        };
        usize::try_from(positions).unwrap_or(usize::MAX)
    }

    /// Vocabulary size: all token ids are below it.
    pub fn vocab(&self) -> usize {
        let vocab = match &self.shape {
            Shape::Bert(shape) => shape.vocab,
            Shape::ModernBert(shape) => shape.vocab,
            Shape::Decoder(shape) => shape.vocab,
        };
        usize::try_from(vocab).unwrap_or(usize::MAX)
    }

    pub fn is_decoder(&self) -> bool {
        matches!(self.shape, Shape::Decoder(_))
    }
}

/// The problem with a `model_type` that Souk does not compute.
fn unsupported(model_type: &str) -> String {
    let encoders = bert::FAMILIES.iter().map(|family| family.model_type);
    let decoders = decoder::FAMILIES.iter().map(|family| family.model_type);
    let known: Vec<&str> = encoders.chain([modernbert::MODEL_TYPE]).chain(decoders).collect();
    let problem = format!("is `{model_type}`: Souk supports {}", known.join(", "));
    match NEAREST.iter().find(|(name, _)| *name == model_type) {
        Some((_, nearest)) => format!("{problem}; choose a folder of the nearest, {nearest}"),
        None => problem,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Architecture> {
        Architecture::read(serde_json::from_str(json).unwrap(), "config.json", Some(&[]))
    }

    /// Configs as published on the hub, harmless fields included.
    #[test]
    fn reads_published_hub_configs() {
        let qwen = r#"{"architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643,
            "eos_token_id": 151643, "hidden_act": "silu", "hidden_size": 896, "initializer_range": 0.02,
            "intermediate_size": 4864, "max_position_embeddings": 32768, "max_window_layers": 24, "model_type": "qwen2",
            "num_attention_heads": 14, "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06,
            "rope_theta": 1000000.0, "sliding_window": 32768, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
            "transformers_version": "4.40.1", "use_cache": true, "use_mrope": false, "use_sliding_window": false,
            "vocab_size": 151936}"#;
        let llama = r#"{"architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
            "bos_token_id": 128000, "eos_token_id": [128001, 128008], "head_dim": 64, "hidden_act": "silu",
            "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 8192, "mlp_bias": false,
            "max_position_embeddings": 131072, "model_type": "llama", "num_attention_heads": 32,
            "num_hidden_layers": 16, "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
            "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192, "rope_type": "llama3"}, "rope_theta": 500000.0,
            "tie_word_embeddings": true, "torch_dtype": "bfloat16", "use_cache": true, "vocab_size": 128256}"#;
        let bert = r#"{"_name_or_path": "x", "architectures": ["BertModel"], "attention_probs_dropout_prob": 0.1,
            "classifier_dropout": null, "directionality": "bidi", "gradient_checkpointing": false, "hidden_act": "gelu",
            "hidden_dropout_prob": 0.1, "hidden_size": 768, "id2label": {"0": "LABEL_0"}, "initializer_range": 0.02,
            "intermediate_size": 3072, "label2id": {"LABEL_0": 0}, "layer_norm_eps": 1e-12,
            "max_position_embeddings": 512, "model_type": "bert", "num_attention_heads": 12, "num_hidden_layers": 12,
            "output_past": true, "pad_token_id": 0, "pooler_fc_size": 768, "pooler_type": "first_token_transform",
            "position_embedding_type": "absolute", "type_vocab_size": 2, "use_cache": true, "vocab_size": 21128}"#;
        let modernbert = r#"{"architectures": ["ModernBertForMaskedLM"], "attention_bias": false, "attention_dropout": 0.0,
            "bos_token_id": 50281, "classifier_activation": "gelu", "classifier_bias": false, "classifier_dropout": 0.0,
            "classifier_pooling": "mean", "cls_token_id": 50281, "decoder_bias": true, "deterministic_flash_attn": false,
            "embedding_dropout": 0.0, "eos_token_id": 50282, "global_attn_every_n_layers": 3,
            "global_rope_theta": 160000.0, "gradient_checkpointing": false, "hidden_activation": "gelu",
            "hidden_size": 768, "initializer_cutoff_factor": 2.0, "initializer_range": 0.02, "intermediate_size": 1152,
            "layer_norm_eps": 1e-05, "local_attention": 128, "local_rope_theta": 10000.0,
            "max_position_embeddings": 8192, "mlp_bias": false, "mlp_dropout": 0.0, "model_type": "modernbert",
            "norm_bias": false, "norm_eps": 1e-05, "num_attention_heads": 12, "num_hidden_layers": 22,
            "pad_token_id": 50283, "position_embedding_type": "absolute", "reference_compile": null,
            "sep_token_id": 50282, "tie_word_embeddings": true, "torch_dtype": "float32", "vocab_size": 50368}"#;
        let gemma = r#"{"_sliding_window_pattern": 6, "architectures": ["Gemma3TextModel"], "attention_bias": false,
            "attention_dropout": 0.0, "attn_logit_softcapping": null, "bos_token_id": 2, "dtype": "float32",
            "eos_token_id": 1, "final_logit_softcapping": null, "head_dim": 256,
            "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 768, "initializer_range": 0.02,
            "intermediate_size": 1152, "max_position_embeddings": 2048, "model_type": "gemma3_text",
            "num_attention_heads": 3, "num_hidden_layers": 24, "num_key_value_heads": 1, "pad_token_id": 0,
            "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000.0, "rope_scaling": null,
            "rope_theta": 1000000.0, "sliding_window": 512, "use_bidirectional_attention": true, "use_cache": true,
            "vocab_size": 262144}"#;
        for (json, width, decoder, causal) in [
            (qwen, 896, true, true),
            (llama, 2048, true, true),
            (bert, 768, false, false),
            (modernbert, 768, false, false),
            (gemma, 768, true, false),
        ] {
            let architecture = read(json).unwrap();
            assert_eq!((architecture.width(), architecture.is_decoder()), (width, decoder));
            assert_eq!(architecture.is_causal(), causal);
        }
        let windows = read(gemma).unwrap().sizes().windows;
        assert_eq!(windows[..6], [Some(257), Some(257), Some(257), Some(257), Some(257), None]);
    }

    #[test]
    fn rejects_unsupported_settings_of_encoders() {
        for (model_type, field, words) in [
            ("roberta", r#""position_embedding_type": "relative_key""#, "only \"absolute\""),
            ("xlm-roberta", r#""is_decoder": true"#, "only false"),
            ("mpnet", r#""relative_attention_num_buckets": 64"#, "only 32"),
            ("modernbert", r#""hidden_activation": "mish""#, "use gelu, gelu_new, relu or silu"),
            (
                "modernbert",
                r#""layer_types": ["full_attention", "chunked_attention"]"#,
                "full_attention or sliding_attention",
            ),
            ("modernbert", r#""rope_scaling": {"rope_type": "yarn"}"#, "only null"),
            ("gemma3_text", r#""attn_logit_softcapping": 50.0"#, "only null"),
            ("camembert", r#""pad_token_id": 1"#, "nearest, xlm-roberta"),
            ("gemma3", r#""text_config": {}"#, "nearest, gemma3_text"),
        ] {
            let json = format!(
                r#"{{"model_type": "{model_type}", "hidden_size": 8, "intermediate_size": 8, "vocab_size": 8,
                "num_attention_heads": 2, "num_hidden_layers": 2, "max_position_embeddings": 8, {field}}}"#
            );
            let error = read(&json).unwrap_err().to_string();
            let name = if words.starts_with("nearest") { "model_type" } else { field.split('"').nth(1).unwrap() };
            assert!(error.contains(&format!("config.json: field `{name}`")) && error.contains(words), "{error}");
        }
    }

    #[test]
    fn rejects_unsupported_settings() {
        let with = |field: &str| {
            let json = format!(
                r#"{{"model_type": "mistral", "hidden_size": 8, "intermediate_size": 8, "vocab_size": 8,
                "num_attention_heads": 2, "num_hidden_layers": 1, "max_position_embeddings": 8, {field}}}"#
            );
            read(&json).map(drop).map_err(|e| e.to_string())
        };
        with(r#""sliding_window": null"#).unwrap();
        for (field, named) in [
            (r#""rope_scaling": {"type": "yarn", "factor": 4.0}"#, "`yarn`"),
            (r#""num_key_value_heads": 3"#, "`num_key_value_heads`"),
            (r#""num_hidden_layers": 4000000000"#, "`num_hidden_layers`"),
            (r#""head_dim": 3"#, "`head_dim`"),
            (r#""layer_types": ["linear_attention"]"#, "`layer_types`"),
            (r#""num_experts": 8"#, "`num_experts`"),
        ] {
            assert!(with(field).unwrap_err().contains(named), "{field}: {:?}", with(field));
        }
    }
}
