//! Questions that a judge was asked repeatedly and answered without a verdict, although it works: it will not judge them.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::Question;

/// After so many refusals, a question is not worth asking again.
const MIN_REFUSALS: u32 = 2;
/// Questions that are remembered; all are forgotten when there are more.
const MAX_QUESTIONS: usize = 100_000;

#[derive(Default)]
pub struct Refusals {
    hasher: RandomState,
    /// By the hash of query and item.
    questions: Mutex<HashMap<u64, (u32, Arc<str>)>>,
}

impl Refusals {
    /// Records why a working judge gave no verdict.
    pub fn add<'a>(&self, asked: impl Iterator<Item = &'a Question<'a>>, problem: &str) {
        let (problem, mut questions) = (Arc::<str>::from(problem), self.lock());
        for question in asked {
            if questions.len() >= MAX_QUESTIONS {
                questions.clear();
            }
            let (times, why) = questions.entry(self.hash(question)).or_insert_with(|| (0, problem.clone()));
            *times += 1;
            why.clone_from(&problem);
        }
    }

    /// Why a question is not worth asking again, if so.
    pub fn why(&self, question: &Question<'_>) -> Option<String> {
        let questions = self.lock();
        questions.get(&self.hash(question)).filter(|(times, _)| *times >= MIN_REFUSALS).map(|(_, why)| why.to_string())
    }

    fn hash(&self, question: &Question<'_>) -> u64 {
        self.hasher.hash_one((question.query, question.item))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, (u32, Arc<str>)>> {
        // no code under this lock panics
        self.questions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
