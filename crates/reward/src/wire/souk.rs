//! Souk's relevance service: `POST /score {query, items: [{id, text}]}` returns `{model, scores, levels}`. Verdicts of another
//! model than the configured one are rejected.

use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

use super::{Failure, Http, JudgeClient, JudgeResult, MAX_CHARS, begin, checked, shown};
use crate::{Question, Verdict};
use souk_io::domain::Level;

pub struct Souk {
    http: Http,
    model: String,
    id: String,
}

#[derive(Deserialize)]
struct Scored {
    model: String,
    scores: Vec<Value>,
    levels: Vec<Value>,
}

impl Souk {
    pub const ROUTE: &'static str = "score";

    pub fn new(http: Http, model: &str) -> Self {
        let id = format!("souk {model} at {}", http.url());
        Self { http, model: model.into(), id }
    }
}

impl JudgeClient for Souk {
    fn id(&self) -> &str {
        &self.id
    }

    fn place(&self) -> &str {
        self.http.url()
    }

    fn ask(&self, asked: &[Question<'_>], patience: Duration) -> JudgeResult {
        let query = asked.first().map_or("", |one| begin(one.query, MAX_CHARS));
        let item = |one: &Question<'_>| json!({ "id": one.item_id, "text": begin(one.item, MAX_CHARS) });
        let items: Vec<Value> = asked.iter().map(item).collect();
        let answer = self.http.post(&json!({ "query": query, "items": items }), patience)?;
        let shape = |e| Failure::broken(format!("did not answer with {{model, scores, levels}}: {e}"));
        let Scored { model, scores, levels } = Scored::deserialize(answer).map_err(shape)?;
        if model != self.model {
            let (judge, wanted) = (shown(&model), &self.model);
            return Err(Failure::fatal(format!(
                "judges with the model `{judge}`, and `{wanted}` is configured: set `model`, or start that model there"
            )));
        }
        if scores.len() != asked.len() || levels.len() != asked.len() {
            let (scores, levels, num) = (scores.len(), levels.len(), asked.len());
            return Err(Failure::broken(format!("returned {scores} scores and {levels} levels for {num} items")));
        }
        Ok(scores.iter().zip(&levels).map(|(score, level)| verdict(score, level)).collect())
    }
}

fn verdict(score: &Value, level: &Value) -> Option<Verdict> {
    Some(Verdict { score: checked(score.as_f64()?)?, level: Level::from_number(level.as_i64()?)? })
}
