//! Generates a step's rationales with the trained model or a server: prompts as tokens in, continuations as tokens out. An
//! unreachable server is retried; permanent failures are errors.

use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use souk_io::address::Address;
use souk_io::backoff::Backoff;
use souk_io::error::{Error, Result};
use souk_nn::backbone::{Continuation, Sampling};
use souk_nn::encoder::{Encoder, Text};
use souk_reward::{Failure, FailureKind, Http};

/// Limit on the tokens whose keys and values are in memory.
const MAX_SLOTS: usize = 1 << 16;

/// Prompts per request.
const MAX_PROMPTS: usize = 64;

/// Longest pause between attempts.
const MAX_PAUSE: Duration = Duration::from_secs(30);

/// A server with OpenAI's `/completions` that accepts tokens, such as vLLM.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WriterSettings {
    /// For example `http://127.0.0.1:8000/v1`.
    pub url: Address,
    /// Name of the model on that server.
    pub model: String,
    /// Environment variable with the key.
    #[serde(default)]
    pub key_env: Option<String>,
    /// Timeout of a request.
    #[serde(default = "timeout_seconds")]
    pub timeout_seconds: f64,
    /// Time to retry a server that does not answer.
    #[serde(default = "patience_seconds")]
    pub patience_seconds: f64,
}

fn timeout_seconds() -> f64 {
    120.0
}

fn patience_seconds() -> f64 {
    600.0
}

impl WriterSettings {
    pub(super) fn check(&self) -> Result<()> {
        for (name, seconds) in [("timeout_seconds", self.timeout_seconds), ("patience_seconds", self.patience_seconds)]
        {
            if !(0.001..=1e6).contains(&seconds) {
                let problem = format!("is {seconds}: use a number of seconds above 0");
                return Err(Error::config(format!("train.writer.{name}"), problem));
            }
        }
        Ok(())
    }
}

pub enum Writer {
    Own,
    Server(Box<CompletionServer>),
}

pub struct CompletionServer {
    http: Http,
    settings: WriterSettings,
}

impl Writer {
    pub fn open(settings: Option<&WriterSettings>) -> Result<Self> {
        let Some(settings) = settings else { return Ok(Self::Own) };
        let http = Http::open(&settings.url, "completions", settings.key_env.as_deref())?;
        Ok(Self::Server(Box::new(CompletionServer { http, settings: settings.clone() })))
    }

    /// True if another model than the trained one generates.
    pub fn is_other(&self) -> bool {
        matches!(self, Self::Server(_))
    }

    /// `each` continuations of every text, grouped by text.
    pub fn write(&self, encoder: &Encoder, texts: &[Text], each: usize, how: &Sampling) -> Result<Vec<Continuation>> {
        let longest = texts.iter().map(|text| text.ids.len()).max().unwrap_or(0) + how.max_tokens;
        let at_once = match self {
            // limited by the memory of keys and values
            Self::Own => (MAX_SLOTS / (longest * each).max(1)).max(1),
            Self::Server(_) => MAX_PROMPTS,
        };
        let mut all = Vec::with_capacity(texts.len() * each);
        for (at, texts) in texts.chunks(at_once).enumerate() {
            let how = Sampling { first: how.first + (at * at_once * each) as u64, ..*how };
            all.extend(match self {
                Self::Own => encoder.generate(&texts.iter().collect::<Vec<_>>(), each, &how)?,
                Self::Server(server) => server.write(encoder, texts, each, &how)?,
            });
        }
        Ok(all)
    }
}

impl CompletionServer {
    fn write(&self, encoder: &Encoder, texts: &[Text], each: usize, how: &Sampling) -> Result<Vec<Continuation>> {
        let prompts: Vec<&[u32]> = texts.iter().map(|text| text.ids.as_slice()).collect();
        // some servers accept only 31 bits
        let seed = (how.seed ^ how.first).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
        let mut question = json!({
            "model": self.settings.model, "prompt": prompts, "n": each, "max_tokens": how.max_tokens,
            "temperature": how.temperature, "top_p": how.top_p, "seed": seed,
            "stop_token_ids": encoder.reader().ends(), "logprobs": 1, "return_token_ids": true,
        });
        if how.top_k > 0 {
            question["top_k"] = how.top_k.into();
        }
        let answer = self.ask(&question)?;
        let broken = |problem: &str| self.failed(format!("its answer {problem}"), false);
        let choices = answer["choices"].as_array().ok_or_else(|| broken("has no `choices`"))?;
        let mut places: Vec<Option<Continuation>> = vec![None; texts.len() * each];
        for choice in choices {
            let place = choice["index"].as_u64().and_then(|index| places.get_mut(index as usize));
            *place.ok_or_else(|| broken("has a choice that was not asked for"))? =
                Some(read(encoder, choice, how).map_err(|problem| broken(&problem))?);
        }
        let all: Option<Vec<Continuation>> = places.into_iter().collect();
        all.ok_or_else(|| broken("lacks choices that were asked for"))
    }

    /// Retries until there is an answer, or the retry time is over.
    fn ask(&self, question: &Value) -> Result<Value> {
        let begun = Instant::now();
        let patience = Duration::from_secs_f64(self.settings.patience_seconds);
        let mut backoff = Backoff::new(Duration::from_millis(250), MAX_PAUSE);
        loop {
            let failure = match self.http.post(question, Duration::from_secs_f64(self.settings.timeout_seconds)) {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            let Failure { kind, problem, retry_after } = failure;
            match kind {
                FailureKind::Fatal => return Err(Error::config(format!("train.writer: {}", self.http.url()), problem)),
                FailureKind::Passing if begun.elapsed() < patience => {
                    tracing::warn!("waiting for the rationale server: {}: {problem}", self.http.url());
                    let pause = backoff.next_pause();
                    std::thread::sleep(retry_after.unwrap_or(pause).min(patience.saturating_sub(begun.elapsed())));
                }
                _ => return Err(self.failed(problem, kind == FailureKind::Passing)),
            }
        }
    }

    fn failed(&self, problem: String, retryable: bool) -> Error {
        Error::Upstream { service: self.http.url().into(), problem, retryable, source: None }
    }
}

/// Parses a server's continuation: its tokens with log-probabilities, or the tokens of its text.
fn read(encoder: &Encoder, choice: &Value, how: &Sampling) -> std::result::Result<Continuation, String> {
    let ended = choice["finish_reason"] == "stop";
    let reader = encoder.reader();
    let said: Option<Vec<u32>> = serde_json::from_value(choice["token_ids"].clone()).unwrap_or_default();
    let log_probs = choice["logprobs"]["token_logprobs"].clone();
    let (mut ids, mut log_probs) = match said {
        // servers report them for the scores before temperature
        Some(ids) if how.temperature == 1.0 => (ids, serde_json::from_value(log_probs).unwrap_or_default()),
        Some(ids) => (ids, Vec::new()),
        None => {
            let words = choice["text"].as_str().ok_or("has a choice without `text`")?;
            (reader.encode_raw(words).map_err(|e| format!("cannot be read: {e}"))?, Vec::<f32>::new())
        }
    };
    ids.truncate(how.max_tokens);
    let ends = reader.ends();
    if ended && ids.last().is_none_or(|last| !ends.contains(last)) {
        // some omit the end token; a text of maximum length has no room for it
        let end = *ends.first().ok_or("came to an end that this model does not have")?;
        ids.truncate(how.max_tokens - 1);
        ids.push(end);
    }
    if let Some(strange) = ids.iter().find(|id| **id as usize >= encoder.vocab()) {
        return Err(format!("has token {strange}, which this model does not know: is it the same model?"));
    }
    if log_probs.len() != ids.len() {
        log_probs.clear();
    }
    Ok(Continuation { ids, log_probs, ended })
}

#[cfg(test)]
mod tests {
    use super::*;
    use souk_io::item_text::ItemText;
    use souk_nn::backbone::Precision;
    use souk_nn::encoder::{Overrides, Placement, Pooling, Rationale, Scratch};
    use souk_testing::fake_judge::{FakeJudge, JudgeReply, ReceivedRequest};

    /// Decoder with random weights that generates at most four tokens.
    fn encoder(dir: &std::path::Path) -> Encoder {
        let scratch: Scratch = serde_json::from_value(json!({
            "seed": 1, "vocab": 300, "pooling": "mean", "max_tokens": 32,
            "architecture": {
                "model_type": "llama", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
                "intermediate_size": 8, "max_position_embeddings": 64, "tie_word_embeddings": true,
            },
        }))
        .unwrap();
        assert_eq!(scratch.pooling, Pooling::Mean);
        scratch.write(["red desk", "oak lamp"].into_iter().map(String::from), &ItemText::default(), dir).unwrap();
        let rationale = Some(Rationale { max_tokens: Some(4), ..Rationale::default() });
        let placement =
            Placement { device: tch::Device::Cpu, precision: Precision::F32, adapter: None, ignore_fields: Vec::new() };
        Encoder::open(dir, placement, Overrides { rationale, ..Overrides::default() }).unwrap()
    }

    fn writer(url: &str) -> Writer {
        let settings = json!({"url": url, "model": "m", "timeout_seconds": 2.0, "patience_seconds": 0.6});
        Writer::open(Some(&serde_json::from_value(settings).unwrap())).unwrap()
    }

    /// Two texts, continued twice each, by a server that answers as `choice` says.
    fn written(
        temperature: f64,
        choice: impl Fn(usize) -> Value + Send + Sync + 'static,
    ) -> (Result<Vec<Continuation>>, Vec<ReceivedRequest>) {
        let home = tempfile::tempdir().unwrap();
        let encoder = encoder(&home.path().join("model"));
        let server = FakeJudge::start(move |number, _| match number {
            0 => JudgeReply::Status(503, "", "starting".into()),
            _ => JudgeReply::Json(json!({"choices": (0..4).rev().map(&choice).collect::<Vec<_>>()})),
        });
        let texts = ["red", "oak desk"].map(|text| encoder.reader().read(text, None).unwrap());
        let how = Sampling { temperature, max_tokens: 4, top_k: 9, ..Sampling::default() };
        let written = writer(&server.url()).write(&encoder, &texts, 2, &how);
        (written, server.seen())
    }

    #[test]
    fn a_server_writes_in_any_order_after_it_was_waited_for() {
        let (all, seen) = written(1.0, |place| {
            json!({"index": place, "text": "?", "finish_reason": "length", "token_ids": [place + 5, 6],
                "logprobs": {"token_logprobs": [-0.5, -(place as f64)]}})
        });
        let all = all.unwrap();
        for (place, found) in all.iter().enumerate() {
            let log_probs = vec![-0.5, -(place as f32)];
            assert_eq!(*found, Continuation { ids: vec![place as u32 + 5, 6], log_probs, ended: false });
        }
        assert_eq!((seen.len(), seen[1].path.as_str()), (2, "/completions"));
        let asked = &seen[1].body;
        assert_eq!((&asked["n"], &asked["max_tokens"], &asked["top_k"]), (&json!(2), &json!(4), &json!(9)));
        assert!(asked["prompt"][1].as_array().unwrap().len() > asked["prompt"][0].as_array().unwrap().len(), "{asked}");
    }

    #[test]
    fn what_a_server_leaves_out_is_put_in() {
        let of = |temperature, choice: Value| {
            let (all, _) = written(temperature, move |place| {
                let mut choice = choice.clone();
                choice["index"] = place.into();
                choice
            });
            all.unwrap().remove(3)
        };
        let end = 2;
        // an unreported end, and log-probabilities of only some tokens
        let tokens =
            json!({"finish_reason": "stop", "token_ids": [7, 8], "logprobs": {"token_logprobs": [-1.0, -2.0]}});
        let found = of(1.0, tokens.clone());
        assert_eq!((found.ids, found.log_probs.len(), found.ended), (vec![7, 8, end], 0, true));
        // text only
        let found = of(1.0, json!({"finish_reason": "stop", "text": "red"}));
        assert!(found.ended && found.ids.last() == Some(&end) && found.ids.len() <= 4 && found.log_probs.is_empty());
        // scores at another temperature
        let all = json!({"finish_reason": "stop", "token_ids": [7, end], "logprobs": {"token_logprobs": [-1.0, -2.0]}});
        assert_eq!((of(1.0, all.clone()).log_probs.len(), of(0.5, all).log_probs.len()), (2, 0));
    }

    #[test]
    fn what_is_no_answer_is_told() {
        for (choice, words) in [
            (json!({"index": 9, "text": "red"}), "not asked for"),
            (json!({"index": 0, "text": "red"}), "lacks choices"),
            (json!({"index": 0, "token_ids": [999]}), "is it the same model?"),
            (json!({"index": 0}), "without `text`"),
        ] {
            let (all, _) = written(1.0, move |_| choice.clone());
            let message = all.unwrap_err().to_string();
            assert!(message.contains(words), "`{message}` does not say `{words}`");
        }
        let home = tempfile::tempdir().unwrap();
        let encoder = encoder(&home.path().join("model"));
        let server = FakeJudge::start(|_, _| JudgeReply::Status(503, "", "starting".into()));
        let text = [encoder.reader().read("red", None).unwrap()];
        let how = Sampling { max_tokens: 4, ..Sampling::default() };
        let error = writer(&server.url()).write(&encoder, &text, 1, &how).unwrap_err();
        assert!(matches!(error, Error::Upstream { retryable: true, .. }), "{error}");
        assert!(server.seen().len() > 1);
    }
}
