//! Chat models behind OpenAI's `/chat/completions`: one request per pair, graded from 1 to 4. Shop texts stay inside the data
//! part of the prompt.

use std::time::Duration;

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::{Http, JudgeClient, JudgeResult, Prompt, Thresholds, answer};
use crate::Question;

/// How a chat model is prompted.
pub struct ChatSettings {
    pub model: String,
    pub prompt: Prompt,
    /// Ask for JSON by schema and accept nothing else.
    pub structured: bool,
    /// Alternatives per token that are requested; 0: no log-probabilities.
    pub logprobs: u8,
    /// Maximum tokens of the answer; 0: the server's default.
    pub max_tokens: u32,
    pub item_chars: usize,
    pub thresholds: Thresholds,
    /// Additional request fields.
    pub body: Map<String, Value>,
}

pub struct Openai {
    http: Http,
    settings: ChatSettings,
    id: String,
}

impl Openai {
    pub const ROUTE: &'static str = "chat/completions";

    pub fn new(http: Http, settings: ChatSettings) -> Self {
        let ChatSettings { model, prompt, structured, logprobs, item_chars, thresholds, .. } = &settings;
        // the id covers everything a verdict depends on, because it is part of the cache key
        let all = json!([prompt.fingerprint(), structured, logprobs, item_chars, thresholds.0, settings.body]);
        let digest = Sha256::digest(all.to_string());
        let mark: String = digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
        let id = format!("openai {model} at {} (recipe {mark})", http.url());
        Self { http, settings, id }
    }

    fn question(&self, asked: &Question<'_>) -> Value {
        let ChatSettings { model, prompt, structured, logprobs, max_tokens, item_chars, body, .. } = &self.settings;
        let mut question = json!({
            "model": model,
            "messages": prompt.messages(asked.query, asked.item, *item_chars),
            "temperature": 0,
        });
        if *max_tokens > 0 {
            question["max_tokens"] = json!(max_tokens);
        }
        if *logprobs > 0 {
            question["logprobs"] = json!(true);
            question["top_logprobs"] = json!(logprobs);
        }
        if *structured {
            let level = json!({ "type": "integer", "enum": [1, 2, 3, 4] });
            let schema = json!({
                "type": "object", "properties": { "level": level }, "required": ["level"], "additionalProperties": false,
            });
            let named = json!({ "name": "grade", "strict": true, "schema": schema });
            question["response_format"] = json!({ "type": "json_schema", "json_schema": named });
        }
        for (name, value) in body {
            question[name] = value.clone();
        }
        question
    }
}

impl JudgeClient for Openai {
    fn id(&self) -> &str {
        &self.id
    }

    fn place(&self) -> &str {
        self.http.url()
    }

    fn ask(&self, asked: &[Question<'_>], patience: Duration) -> JudgeResult {
        let one = |asked| {
            let answer = self.http.post(&self.question(asked), patience)?;
            answer::read(answer, self.settings.structured, self.settings.thresholds).map(Some)
        };
        asked.iter().map(one).collect()
    }
}
