//! The judge of a stage: on threads of its own, so that the device goes on while it thinks. Takes the candidates of a
//! batch, gives their rewards. Candidates without a reward are asked for again; while too many lack one there is no step:
//! the stage waits, says so, and goes on by itself when the judge is back.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use tch::{Kind, Tensor};

use crate::collective::Collective;
use crate::error::{Error, Result};
use crate::reward::{Blend, Candidate, Question, Reward};

/// How long a judge may think before that is said.
const SAID_AFTER: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// A question that outlives its batch.
#[derive(Clone, Debug)]
pub struct Owned {
    pub query_id: Arc<str>,
    pub query: Arc<str>,
    pub item_id: Arc<str>,
    pub item: Arc<str>,
    pub row: u32,
    pub quality: Option<f32>,
}

impl Owned {
    fn candidate(&self) -> Candidate<'_> {
        let Self { query_id, query, item_id, item, row, quality } = self;
        Candidate { question: Question { query_id, query, item_id, item }, row: *row, quality: *quality }
    }
}

pub struct Judge {
    blend: Arc<Blend>,
}

/// Questions that are with the judge.
pub struct Asked {
    /// Each once.
    questions: Arc<Vec<Owned>>,
    /// Which question each candidate is.
    places: Vec<usize>,
    rewards: Vec<Option<Reward>>,
    /// Which questions the answers to come are of.
    open: Vec<usize>,
    answers: Receiver<Result<Vec<Option<Reward>>>>,
    since: Instant,
}

impl Judge {
    pub fn new(blend: Blend) -> Self {
        Self { blend: Arc::new(blend) }
    }

    pub fn blend(&self) -> &Blend {
        &self.blend
    }

    /// Hands candidates in; `places` says which question each candidate is.
    pub fn ask(&self, questions: Vec<Owned>, places: Vec<usize>) -> Result<Asked> {
        let questions = Arc::new(questions);
        let open: Vec<usize> = (0..questions.len()).collect();
        let answers = self.send(&questions, &open)?;
        let rewards = vec![None; questions.len()];
        Ok(Asked { questions, places, rewards, open, answers, since: Instant::now() })
    }

    fn send(&self, questions: &Arc<Vec<Owned>>, open: &[usize]) -> Result<Receiver<Result<Vec<Option<Reward>>>>> {
        let (sender, receiver) = channel();
        let (blend, questions, open) = (self.blend.clone(), questions.clone(), open.to_vec());
        let work = move || {
            let candidates: Vec<Candidate<'_>> = open.iter().map(|at| questions[*at].candidate()).collect();
            // the stage may have ended meanwhile
            drop(sender.send(blend.reward(&candidates)));
        };
        let thread = thread::Builder::new().name("souk-judge".into()).spawn(work);
        thread.map_err(|e| Error::device("no thread for the judge").because(e))?;
        Ok(receiver)
    }

    /// The rewards of all candidates, once enough of them are there, on all processes together; `None` if a process was
    /// asked to stop before.
    pub fn wait(
        &self,
        asked: &mut Asked,
        collective: &dyn Collective,
        stop: &AtomicBool,
    ) -> Result<Option<Vec<Option<Reward>>>> {
        let settings = self.blend.settings();
        let mut pause = Duration::from_secs_f64(settings.pause_seconds);
        let mut is_away = false;
        for round in 1.. {
            let stopped = !self.receive(asked, stop)?;
            let state = [stopped as u8 as f64, asked.open.len() as f64, asked.questions.len() as f64];
            let mut state = Tensor::from_slice(&state).to_kind(Kind::Double);
            collective.all_reduce(&mut state)?;
            let [stopped, missing, all] = [0, 1, 2].map(|at| state.double_value(&[at]));
            if stopped > 0.0 {
                return Ok(None);
            }
            let share = missing / all.max(1.0);
            if missing == 0.0 || round >= settings.asks && share <= settings.most_missing {
                if is_away {
                    tracing::warn!("the judge `{}` is back", self.blend.source().id());
                }
                break;
            }
            if share > settings.most_missing {
                is_away = true;
                let why = self.blend.source().trouble().map_or_else(String::new, |why| format!(" ({why})"));
                tracing::warn!(
                    "the judge `{}` gave no verdict on {missing} of {all} candidates{why}: no step is taken; asking again \
                     in {:.1} s",
                    self.blend.source().id(),
                    pause.as_secs_f64()
                );
            }
            sleep(pause, stop);
            pause = LONGEST_PAUSE.min(pause * 2);
            if !asked.open.is_empty() {
                asked.answers = self.send(&asked.questions, &asked.open)?;
                asked.since = Instant::now();
            }
        }
        Ok(Some(asked.places.iter().map(|place| asked.rewards[*place]).collect()))
    }

    /// Takes in what the judge says; false if the stage was asked to stop before.
    fn receive(&self, asked: &mut Asked, stop: &AtomicBool) -> Result<bool> {
        if asked.open.is_empty() {
            return Ok(!stop.load(Ordering::Relaxed));
        }
        let mut patience = SAID_AFTER;
        let answers = loop {
            match asked.answers.recv_timeout(Duration::from_millis(50)) {
                Ok(answers) => break answers?,
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Error::device("the thread that asks the judge has panicked"));
                }
                Err(RecvTimeoutError::Timeout) if stop.load(Ordering::Relaxed) => return Ok(false),
                Err(RecvTimeoutError::Timeout) if asked.since.elapsed() >= patience => {
                    let (id, seconds) = (self.blend.source().id(), asked.since.elapsed().as_secs());
                    tracing::warn!("the judge `{id}` has not answered for {seconds} s: waiting");
                    // twice as long each time, for a judge in this process may have much to do
                    patience = 2 * asked.since.elapsed();
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        };
        for (at, answer) in asked.open.iter().zip(answers) {
            asked.rewards[*at] = answer;
        }
        asked.open.retain(|at| asked.rewards[*at].is_none());
        Ok(true)
    }
}

/// Until the time is over or somebody wants to stop.
fn sleep(time: Duration, stop: &AtomicBool) {
    let begin = Instant::now();
    while begin.elapsed() < time && !stop.load(Ordering::Relaxed) {
        thread::sleep(Duration::from_millis(20).min(time));
    }
}

/// Each question once, and which of them each candidate is.
#[derive(Default)]
pub struct Questions {
    pub each: Vec<Owned>,
    pub places: Vec<usize>,
    by_pair: HashMap<(u32, u32), usize>,
}

impl Questions {
    /// Adds the candidate that this query's number and this row are.
    pub fn add(&mut self, query: u32, row: u32, question: impl FnOnce() -> Result<Owned>) -> Result<()> {
        let place = match self.by_pair.get(&(query, row)) {
            Some(place) => *place,
            None => {
                self.each.push(question()?);
                self.by_pair.insert((query, row), self.each.len() - 1);
                self.each.len() - 1
            }
        };
        self.places.push(place);
        Ok(())
    }
}
