//! A relevance judge of your own, and the rewards that Retrieval-GRPO would train on with it. The judge here counts shared words; a
//! real one would ask a rules engine or a model.
//!
//!     cargo run --release --example own_judge
#![expect(clippy::print_stdout, reason = "it shows its result")]

use std::collections::HashSet;
use std::sync::Arc;

use souk::domain::Level;
use souk::lexical::Lexical;
use souk::reward::{Blend, Candidate, Question, Reward, RewardSettings, RewardSource, Verdict};
use souk::{Error, Result};

struct SharedWords;

impl RewardSource for SharedWords {
    fn id(&self) -> &str {
        "shared words"
    }

    /// One answer for each question; `None` where the judge has none. It is never turned into a number.
    fn judge(&self, questions: &[Question<'_>]) -> Result<Vec<Option<Verdict>>> {
        let judge = |question: &Question<'_>| {
            let item: HashSet<&str> = question.item.split_whitespace().collect();
            let words: Vec<&str> = question.query.split_whitespace().collect();
            let shared = words.iter().filter(|word| item.contains(*word)).count();
            let score = shared as f32 / words.len().max(1) as f32;
            let level = if score > 0.9 {
                Level::L4
            } else if score > 0.4 {
                Level::L3
            } else {
                Level::L1
            };
            (!words.is_empty()).then_some(Verdict { score, level })
        };
        Ok(questions.iter().map(judge).collect())
    }
}

fn main() -> Result<()> {
    for (item, reward) in ITEMS.iter().zip(run()?) {
        match reward {
            Some(reward) => println!("{:.2}  {:?}  {item}", reward.total, reward.level),
            None => println!("missing  {item}"),
        }
    }
    Ok(())
}

const ITEMS: [&str; 3] = ["a desk made of oak", "an oak wardrobe", "a red rain jacket"];

/// The rewards of three items for the query `oak desk`: relevance, and half as much for quality.
pub fn run() -> Result<Vec<Option<Reward>>> {
    let settings = RewardSettings { quality: 0.5, ..RewardSettings::default() };
    let no_lexical = || -> Result<Lexical> { Err(Error::input("exclusivity has no weight here")) };
    let blend = Blend::build(&settings, Arc::new(SharedWords), no_lexical)?;
    let candidates: Vec<Candidate<'_>> = ITEMS
        .iter()
        .zip(0..)
        .map(|(item, row)| Candidate {
            question: Question { query_id: "q1", query: "oak desk", item_id: item, item },
            row,
            quality: Some(0.8),
        })
        .collect();
    blend.reward(&candidates)
}
