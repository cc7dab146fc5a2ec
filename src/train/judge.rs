//! Asks the judge on a thread, so that the device works meanwhile. Candidates without a reward are asked for again. While too many
//! rewards are missing, training pauses, logs it, and resumes once the judge answers. Candidates that the judge refuses are left out at
//! once; if it refuses all of several steps, the stage ends.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use tch::Tensor;

use souk_io::backoff::Backoff;
use souk_io::error::{Error, Result};
use souk_nn::collective::Collective;
use souk_reward::{Blend, Candidate, Question, Reward};

/// Time without an answer after which a warning is logged.
const WARN_AFTER: Duration = Duration::from_secs(5);
const MAX_PAUSE: Duration = Duration::from_secs(60);
/// A stage ends after so many groups of candidates in a row that were all refused.
const MAX_REFUSED: usize = 8;

/// A question that owns its texts.
#[derive(Clone, Debug)]
pub struct OwnedQuestion {
    pub query_id: Arc<str>,
    pub query: Arc<str>,
    pub item_id: Arc<str>,
    pub item: Arc<str>,
    pub row: u32,
    pub quality: Option<f32>,
}

impl OwnedQuestion {
    fn candidate(&self) -> Candidate<'_> {
        let Self { query_id, query, item_id, item, row, quality } = self;
        Candidate { question: Question { query_id, query, item_id, item }, row: *row, quality: *quality }
    }
}

pub struct AsyncJudge {
    blend: Arc<Blend>,
    /// Whether it was logged that the judge refuses candidates.
    has_warned: AtomicBool,
    /// Groups of candidates in a row that were all refused.
    num_refused: AtomicUsize,
}

/// Rewards of candidates, in their order.
#[derive(Debug)]
pub struct JudgedCandidates {
    /// None where missing.
    pub rewards: Vec<Option<Reward>>,
    /// Candidates that the judge refuses to judge.
    pub refused: usize,
}

/// Rewards that the judge is working on.
pub struct PendingRewards {
    /// Without duplicates.
    questions: Arc<Vec<OwnedQuestion>>,
    /// The question of each candidate.
    places: Vec<usize>,
    rewards: Vec<Option<Reward>>,
    /// Questions without a reward yet.
    open: Vec<usize>,
    /// Questions that the judge refuses, and why the first one.
    refused: HashSet<usize>,
    why_refused: Option<String>,
    answers: Receiver<Result<Vec<Option<Reward>>>>,
    since: Instant,
}

impl AsyncJudge {
    pub fn new(blend: Blend) -> Self {
        Self { blend: Arc::new(blend), has_warned: AtomicBool::new(false), num_refused: AtomicUsize::new(0) }
    }

    pub fn blend(&self) -> &Blend {
        &self.blend
    }

    /// Starts to judge candidates.
    pub fn ask(&self, Questions { each, places, .. }: Questions) -> Result<PendingRewards> {
        let questions = Arc::new(each);
        let open: Vec<usize> = (0..questions.len()).collect();
        let answers = self.send(&questions, &open)?;
        let rewards = vec![None; questions.len()];
        let (refused, since) = (HashSet::new(), Instant::now());
        Ok(PendingRewards { questions, places, rewards, open, refused, why_refused: None, answers, since })
    }

    fn send(
        &self,
        questions: &Arc<Vec<OwnedQuestion>>,
        open: &[usize],
    ) -> Result<Receiver<Result<Vec<Option<Reward>>>>> {
        let (sender, receiver) = channel();
        let (blend, questions, open) = (self.blend.clone(), questions.clone(), open.to_vec());
        let work = move || {
            let candidates: Vec<Candidate<'_>> = open.iter().map(|at| questions[*at].candidate()).collect();
            // the stage may have ended meanwhile
            drop(sender.send(blend.reward(&candidates)));
        };
        let thread = thread::Builder::new().name("souk-judge".into()).spawn(work);
        thread.map_err(|e| Error::device("cannot start a thread that asks the judge").because(e))?;
        Ok(receiver)
    }

    /// Waits until enough rewards are known over all processes. None if a process was asked to stop meanwhile.
    pub fn wait(
        &self,
        asked: &mut PendingRewards,
        collective: &dyn Collective,
        stop: &AtomicBool,
    ) -> Result<Option<JudgedCandidates>> {
        let settings = self.blend.settings();
        let mut backoff = Backoff::new(Duration::from_secs_f64(settings.pause_seconds), MAX_PAUSE);
        let mut is_paused = false;
        for round in 1.. {
            let stopped = !self.receive(asked, stop)?;
            let [missing, refused, all] =
                [asked.open.len(), asked.refused.len(), asked.questions.len()].map(|number| number as f64);
            let mut state = Tensor::from_slice(&[f64::from(stopped), missing, refused, all]);
            collective.all_reduce(&mut state)?;
            let [stopped, missing, refused, all] = [0, 1, 2, 3].map(|at| state.double_value(&[at]));
            if stopped > 0.0 {
                return Ok(None);
            }
            let fraction = missing / all.max(1.0);
            if missing == 0.0 || round >= settings.max_attempts && fraction <= settings.max_missing {
                if is_paused {
                    tracing::warn!("the judge `{}` answers again: training resumes", self.blend.source().id());
                }
                self.check_refused(asked, refused, all)?;
                break;
            }
            let pause = backoff.next_pause();
            if fraction > settings.max_missing {
                is_paused = true;
                let why = self.blend.source().trouble().map_or_else(String::new, |why| format!(" ({why})"));
                tracing::warn!(
                    "the judge `{}` gave no judgement of {missing} of {all} candidates{why}: training pauses and asks again in \
                     {:.1} s",
                    self.blend.source().id(),
                    pause.as_secs_f64()
                );
            }
            sleep(pause, stop);
            if !asked.open.is_empty() {
                asked.answers = self.send(&asked.questions, &asked.open)?;
                asked.since = Instant::now();
            }
        }
        let rewards = asked.places.iter().map(|place| asked.rewards[*place]).collect();
        let refused = asked.places.iter().filter(|place| asked.refused.contains(place)).count();
        Ok(Some(JudgedCandidates { rewards, refused }))
    }

    /// Logs the first refusals. An error if there was hardly anything else for a while. `refused` and `all` count over all processes.
    fn check_refused(&self, asked: &PendingRewards, refused: f64, all: f64) -> Result<()> {
        let why = asked.why_refused.as_ref().map_or_else(String::new, |why| format!(" ({why})"));
        let id = self.blend.source().id();
        if refused > 0.0 && !self.has_warned.swap(true, Ordering::Relaxed) {
            tracing::warn!("the judge `{id}` refuses {refused} of {all} candidates{why}: they are left out");
        }
        if refused < all || all == 0.0 {
            self.num_refused.store(0, Ordering::Relaxed);
            return Ok(());
        }
        if self.num_refused.fetch_add(1, Ordering::Relaxed) + 1 < MAX_REFUSED {
            return Ok(());
        }
        Err(Error::config(
            "judge",
            format!("the judge `{id}` has refused all candidates of {MAX_REFUSED} steps in a row{why}"),
        ))
    }

    /// Takes in the judge's answers; false if the stage was asked to stop first.
    fn receive(&self, asked: &mut PendingRewards, stop: &AtomicBool) -> Result<bool> {
        if asked.open.is_empty() {
            return Ok(!stop.load(Ordering::Relaxed));
        }
        let mut patience = WARN_AFTER;
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
                    patience = 2 * asked.since.elapsed();
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        };
        let source = self.blend.source();
        for (at, answer) in asked.open.iter().zip(answers) {
            asked.rewards[*at] = answer;
            let refusal =
                if answer.is_none() { source.refusal(&asked.questions[*at].candidate().question) } else { None };
            if let Some(why) = refusal {
                asked.refused.insert(*at);
                asked.why_refused.get_or_insert(why);
            }
        }
        asked.open.retain(|at| asked.rewards[*at].is_none() && !asked.refused.contains(at));
        // a judge that fails at once leaves no time to notice the stop while waiting
        Ok(asked.open.is_empty() || !stop.load(Ordering::Relaxed))
    }
}

/// Sleeps, or returns early once `stop` is set.
fn sleep(time: Duration, stop: &AtomicBool) {
    let begin = Instant::now();
    while begin.elapsed() < time && !stop.load(Ordering::Relaxed) {
        thread::sleep(Duration::from_millis(20).min(time));
    }
}

/// Questions without duplicates, and the question of each candidate.
#[derive(Default)]
pub struct Questions {
    pub each: Vec<OwnedQuestion>,
    pub places: Vec<usize>,
    by_pair: HashMap<(u32, u32), usize>,
}

impl Questions {
    /// Adds a candidate: the query's number and the item's row.
    pub fn add(&mut self, query: u32, row: u32, question: impl FnOnce() -> Result<OwnedQuestion>) -> Result<()> {
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

#[cfg(test)]
mod tests {
    use souk_io::domain::Level;
    use souk_nn::collective::Solo;
    use souk_reward::{RewardSettings, RewardSource, Verdict};

    use super::*;

    /// A judge that is down, and says so at once.
    struct Down;

    impl RewardSource for Down {
        fn id(&self) -> &str {
            "down"
        }

        fn judge(&self, questions: &[Question<'_>]) -> Result<Vec<Option<Verdict>>> {
            Ok(vec![None; questions.len()])
        }
    }

    /// A judge that works, and refuses items whose id is `refused`.
    struct Choosy;

    impl RewardSource for Choosy {
        fn id(&self) -> &str {
            "choosy"
        }

        fn judge(&self, questions: &[Question<'_>]) -> Result<Vec<Option<Verdict>>> {
            let verdict = |question: &Question<'_>| (question.item_id != "refused").then_some(Verdict::of(Level::L4));
            Ok(questions.iter().map(verdict).collect())
        }

        fn refusal(&self, asked: &Question<'_>) -> Option<String> {
            (asked.item_id == "refused").then(|| "not my kind".into())
        }
    }

    fn judge_of(source: impl RewardSource + 'static) -> AsyncJudge {
        let settings = RewardSettings { max_missing: 0.0, exclusivity: 0.0, ..RewardSettings::default() };
        AsyncJudge::new(Blend::build(&settings, Arc::new(source), || unreachable!("not asked for")).unwrap())
    }

    fn questions(items: &[&str]) -> Questions {
        let mut questions = Questions::default();
        for (row, item) in (0..).zip(items) {
            let (text, item_id) = (Arc::<str>::from("desk"), Arc::from(*item));
            let (query_id, query, item) = (text.clone(), text.clone(), text);
            let question = OwnedQuestion { query_id, query, item_id, item, row, quality: None };
            questions.add(0, row, || Ok(question)).unwrap();
        }
        questions
    }

    #[test]
    fn what_a_judge_refuses_is_left_out_at_once_and_ends_the_stage_if_it_is_all() {
        let judge = judge_of(Choosy);
        let wait =
            |items: &[&str]| judge.wait(&mut judge.ask(questions(items)).unwrap(), &Solo, &AtomicBool::new(false));
        let found = wait(&["good", "refused"]).unwrap().unwrap();
        assert_eq!(
            (found.rewards.iter().map(Option::is_some).collect::<Vec<_>>(), found.refused),
            (vec![true, false], 1)
        );
        for _ in 0..2 {
            for _ in 1..MAX_REFUSED {
                let found = wait(&["refused"]).unwrap().unwrap();
                assert_eq!((found.rewards.as_slice(), found.refused), (&[None][..], 1));
            }
            // one that is judged begins the count anew
            assert_eq!(wait(&["good"]).unwrap().unwrap().refused, 0);
        }
        let error = (0..MAX_REFUSED).find_map(|_| wait(&["refused"]).err()).unwrap().to_string();
        assert!(error.contains("`choosy` has refused all") && error.contains("(not my kind)"), "{error}");
    }

    #[test]
    fn a_stop_ends_the_pause_of_a_judge_that_fails_at_once() {
        let judge = judge_of(Down);
        let mut asked = judge.ask(questions(&["desk"])).unwrap();
        let ended = judge.wait(&mut asked, &Solo, &AtomicBool::new(true)).unwrap();
        assert!(ended.is_none(), "{ended:?}");
    }
}
