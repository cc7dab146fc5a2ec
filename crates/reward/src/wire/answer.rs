//! Parses a chat model's answer. A grade is the level it names, or the expected level if log-probabilities are present; the answer must
//! have exactly the requested form, and no digit is searched for in other text.

use serde::Deserialize;
use serde_json::Value;

use super::{Failure, Thresholds, shown};
use crate::Verdict;
use souk_io::domain::Level;

#[derive(Deserialize)]
struct Completion {
    choices: Vec<Choice>,
}

#[derive(Deserialize)]
struct Choice {
    message: Message,
    finish_reason: Option<String>,
    logprobs: Option<Logprobs>,
}

#[derive(Deserialize)]
struct Message {
    content: Option<String>,
    refusal: Option<String>,
}

#[derive(Deserialize)]
struct Logprobs {
    content: Option<Vec<Token>>,
}

#[derive(Deserialize)]
struct Token {
    token: String,
    logprob: Option<f64>,
    #[serde(default)]
    top_logprobs: Vec<Alternative>,
}

#[derive(Deserialize)]
struct Alternative {
    token: String,
    logprob: Option<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Graded {
    level: i64,
}

/// Rounding may put the log-probability of a certain token slightly above 0.
const MAX_LOGPROB: f64 = 1e-3;

/// Verdict of one completion.
pub fn read(answer: Value, structured: bool, thresholds: Thresholds) -> Result<Verdict, Failure> {
    let (content, logprobs) = finished(answer, "judge.max_tokens")?;
    let level = parse(&content, structured).ok_or_else(|| {
        let asked = if structured { "{\"level\": 1 to 4}" } else { "1 to 4" };
        Failure::refused(format!("answered `{}` instead of {asked}", shown(&content)))
    })?;
    let tokens = logprobs.and_then(|logprobs| logprobs.content).unwrap_or_default();
    match expected(&tokens, level)? {
        Some(expected) => thresholds
            .verdict((expected - 1.0) / 3.0)
            .ok_or_else(|| Failure::refused(format!("its log-probabilities give an expected level of {expected}"))),
        None => Ok(Verdict::of(level)),
    }
}

/// The answer in words, without what a thinking model thought.
pub fn read_text(answer: Value) -> Result<String, Failure> {
    let (content, _) = finished(answer, "--max-tokens")?;
    let said = content.rsplit("</think>").next().unwrap_or_default();
    let line = said.lines().map(|line| line.trim().trim_matches(['"', '`'])).find(|line| !line.is_empty());
    line.map(str::to_owned).ok_or_else(|| Failure::refused(format!("answered `{}`", shown(&content))))
}

/// Content of a completion that came to its end. `limit` names the setting for longer ones.
fn finished(answer: Value, limit: &str) -> Result<(String, Option<Logprobs>), Failure> {
    let shape = |e| Failure::broken(format!("did not answer with a chat completion: {e}"));
    let mut choices = Completion::deserialize(answer).map_err(shape)?.choices;
    let (Some(choice), true) = (choices.pop(), choices.is_empty()) else {
        return Err(Failure::broken("its answer has not exactly one choice"));
    };
    if let Some(refusal) = choice.message.refusal.filter(|refusal| !refusal.is_empty()) {
        return Err(Failure::refused(format!("refused: `{}`", shown(&refusal))));
    }
    let content = choice.message.content.unwrap_or_default();
    if let Some(reason) = choice.finish_reason.filter(|reason| reason != "stop") {
        let advice =
            if reason == "length" { format!(": raise {limit}, or turn its thinking off") } else { String::new() };
        let (reason, content) = (shown(&reason), shown(&content));
        return Err(Failure::refused(format!("stopped with `{reason}` at `{content}`{advice}")));
    }
    Ok((content, choice.logprobs))
}

/// Parses the level from the answer's text.
fn parse(content: &str, structured: bool) -> Option<Level> {
    let content = content.trim();
    if structured {
        return Level::from_number(serde_json::from_str::<Graded>(content).ok()?.level);
    }
    grade(content)
}

fn grade(text: &str) -> Option<Level> {
    Level::ALL.into_iter().find(|level| text.trim() == level.number().to_string())
}

/// Expected level under the token's log-probabilities. `None` without log-probabilities, or if no token consists of exactly the
/// level.
fn expected(tokens: &[Token], level: Level) -> Result<Option<f64>, Failure> {
    let mut grades = tokens.iter().filter(|token| grade(&token.token).is_some());
    let (Some(token), None) = (grades.next(), grades.next()) else { return Ok(None) };
    if grade(&token.token) != Some(level) {
        return Err(Failure::refused("its tokens are not its answer"));
    }
    let chosen = (token.token.as_str(), token.logprob);
    let listed = token.top_logprobs.iter().map(|other| (other.token.as_str(), other.logprob));
    let others = listed.filter(|(text, _)| *text != token.token);
    let (mut sum, mut total) = (0.0, 0.0);
    for (text, logprob) in std::iter::once(chosen).chain(others) {
        let (Some(level), Some(logprob)) = (grade(text), logprob) else { continue };
        if logprob.is_nan() || logprob > MAX_LOGPROB {
            return Err(Failure::refused(format!("returned a log-probability of {logprob}")));
        }
        let probability = logprob.min(0.0).exp();
        sum += probability * f64::from(level.number());
        total += probability;
    }
    // if all probabilities underflow, there is no expectation
    Ok((total > 0.0).then(|| (sum / total).clamp(1.0, 4.0)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::FailureKind;
    use super::*;

    fn completion(content: &str) -> Value {
        json!({ "choices": [{ "message": { "role": "assistant", "content": content }, "finish_reason": "stop" }] })
    }

    fn with_tokens(content: &str, tokens: Value) -> Value {
        let mut answer = completion(content);
        answer["choices"][0]["logprobs"] = json!({ "content": tokens });
        answer
    }

    fn level(answer: Value, structured: bool) -> Option<u8> {
        read(answer, structured, Thresholds::NEAREST).ok().map(|verdict| verdict.level.number())
    }

    #[test]
    fn only_the_answer_that_was_asked_for_is_one() {
        for (content, wanted) in [("3", Some(3)), (" 4\n", Some(4)), ("1", Some(1))] {
            assert_eq!(level(completion(content), false), wanted);
        }
        for (content, wanted) in [("{\"level\": 2}", Some(2)), (" {\"level\":4}\n", Some(4))] {
            assert_eq!(level(completion(content), true), wanted);
        }
        for none in ["", "5", "0", "04", "４", "4.", "4 4", "Level 4", "**4**", "{\"level\": 4}", "-1", "4.0", "four"]
        {
            assert_eq!(level(completion(none), false), None, "{none}");
        }
        for none in [
            "4",
            "{\"level\": 5}",
            "{\"level\": 0}",
            "{\"level\": \"4\"}",
            "{\"level\": 4.0}",
            "{\"level\": 4, \"why\": 1}",
            "{\"level\": 1, \"level\": 4}",
            "{\"level\": 4} {\"level\": 4}",
            "```json\n{\"level\": 4}\n```",
            "<think>4</think>{\"level\": 4}",
            "[{\"level\": 4}]",
            "{\"level\": null}",
            "{\"level\": NaN}",
            "I grade it {\"level\": 4}",
        ] {
            assert_eq!(level(completion(none), true), None, "{none}");
        }
    }

    #[test]
    fn a_refusal_a_cut_and_another_shape_are_no_answer() {
        let change = |pointer: &str, value: Value| {
            let mut answer = completion("4");
            *answer.pointer_mut(pointer).unwrap() = value;
            read(answer, false, Thresholds::NEAREST).unwrap_err().kind
        };
        for reason in ["length", "content_filter", "tool_calls"] {
            assert_eq!(change("/choices/0/finish_reason", json!(reason)), FailureKind::Refused);
        }
        assert_eq!(change("/choices/0/message", json!({ "content": "4", "refusal": "no" })), FailureKind::Refused);
        assert_eq!(change("/choices/0/message", json!({ "content": null })), FailureKind::Refused);
        assert_eq!(change("/choices/0", json!({})), FailureKind::Broken);
        assert_eq!(change("/choices", json!([])), FailureKind::Broken);
        let two = completion("4")["choices"][0].clone();
        assert_eq!(change("/choices", json!([two, two])), FailureKind::Broken);
    }

    #[test]
    fn a_level_is_expected_from_the_likelihoods_of_its_token() {
        let at = |p: f64| p.ln();
        let top = json!([
            { "token": "3", "logprob": at(0.5) },
            { "token": " 4", "logprob": at(0.2) },
            { "token": "4", "logprob": at(0.1) },
            { "token": "The", "logprob": at(0.15) },
            { "token": "1", "logprob": -9999.0 },
            { "token": "2", "logprob": null },
        ]);
        let three = json!({ "token": "3", "logprob": at(0.5), "top_logprobs": top });
        // (3 * 0.5 + 4 * 0.3) / 0.8 = 3.375
        let verdict = read(with_tokens("3", json!([three])), false, Thresholds::NEAREST).unwrap();
        assert!((f64::from(verdict.score) - 2.375 / 3.0).abs() < 1e-6, "{verdict:?}");
        assert_eq!(verdict.level, Level::L3);
        let strict = Thresholds([0.1, 0.2, 0.3]);
        let tokens = json!([{ "token": "{\"" }, { "token": "level" }, { "token": "\":" }, three, { "token": "}" }]);
        assert_eq!(read(with_tokens("{\"level\": 3}", tokens), true, strict).unwrap().level, Level::L4);
        let bare = json!([{ "token": "2", "logprob": at(0.4) }]);
        assert_eq!(read(with_tokens("2", bare), false, Thresholds::NEAREST).unwrap(), Verdict::of(Level::L2));
    }

    #[test]
    fn without_usable_likelihoods_the_level_itself_counts() {
        for tokens in [
            json!(null),
            json!([]),
            json!([{ "token": ":3", "logprob": -0.1 }]),
            json!([{ "token": "3", "logprob": -0.1 }, { "token": "1", "logprob": -0.1 }]),
            json!([{ "token": "3", "logprob": -9999.0 }]),
            json!([{ "token": "3" }]),
        ] {
            let verdict = read(with_tokens("3", tokens), false, Thresholds::NEAREST).unwrap();
            assert_eq!(verdict, Verdict::of(Level::L3));
        }
        assert_eq!(level(with_tokens("3", json!([{ "token": "3", "logprob": 0.5 }])), false), None);
        assert_eq!(level(with_tokens("3", json!([{ "token": "4", "logprob": -0.5 }])), false), None);
    }
}
