//! Overload: lets in only as many requests at a time as are answered about as fast as one alone; the others are told at
//! once to come back. How many those are is learned from the answers: it differs from machine to machine and from model to
//! model, and a queue of any fixed length is too short for one and too long for another.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio::task::yield_now;

use crate::body::bytes;
use crate::fault::Fault;
use crate::front::Front;

/// Weight of the newest answer that was alone.
const NEWEST: f64 = 0.05;
/// So many answers, or twice as many as are let in at a time, say whether those are too many.
const ANSWERS: usize = 64;
const SHRINK: f64 = 0.8;
/// How fast another idea of what one answer takes is come to, where none is ever alone.
const DRIFT: f64 = 1.05;

pub struct Gate {
    /// So many are always let in: what is slow may be so for other reasons than that they are many.
    least: f64,
    most: f64,
    /// Answers may take so many times what they take alone.
    slowdown: f64,
    state: Mutex<Learned>,
}

struct Learned {
    inside: usize,
    /// Requests that ever came, let in or not.
    came: u64,
    limit: f64,
    /// Seconds of an answer beside which nothing was asked.
    alone: Option<f64>,
    /// Of requests that came since the limit was what it is.
    answers: Answers,
}

#[derive(Default)]
struct Answers {
    /// The last request that came before.
    after: u64,
    num: usize,
    seconds: f64,
    /// Whether there was no room for one more.
    full: bool,
}

/// A request that was let in.
#[derive(Clone, Copy)]
struct Ticket {
    number: u64,
    found_nobody: bool,
}

struct Place {
    gate: Arc<Gate>,
    ticket: Ticket,
    /// How long a good answer took; others say nothing of how busy the service is.
    seconds: Option<f64>,
}

impl Gate {
    /// At least and at most so many at a time, whatever is learned.
    pub fn new((least, most): (usize, usize), slowdown: f64) -> Self {
        let most = (most as f64).max(1.0);
        let least = (least as f64).clamp(1.0, most);
        let limit = (2.0 * least).min(most);
        let learned = Learned { inside: 0, came: 0, limit, alone: None, answers: Answers::default() };
        Self { least, most, slowdown, state: Mutex::new(learned) }
    }

    fn learned(&self) -> MutexGuard<'_, Learned> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nothing where there is no place.
    fn enter(&self) -> Option<Ticket> {
        let mut learned = self.learned();
        learned.came += 1;
        if learned.inside as f64 >= learned.limit.floor() {
            learned.answers.full = true;
            return None;
        }
        let found_nobody = learned.inside == 0;
        learned.inside += 1;
        Some(Ticket { number: learned.came, found_nobody })
    }

    fn leave(&self, ticket: Ticket, seconds: Option<f64>) {
        let mut learned = self.learned();
        learned.inside -= 1;
        let Some(seconds) = seconds else { return };
        let stayed_alone = ticket.found_nobody && ticket.number == learned.came;
        if stayed_alone || learned.alone.is_none() {
            let before = learned.alone.unwrap_or(seconds);
            learned.alone = Some(before + NEWEST * (seconds - before));
        }
        if ticket.number > learned.answers.after {
            learned.answers.num += 1;
            learned.answers.seconds += seconds;
        }
        if learned.answers.num >= ANSWERS.max(2 * learned.limit as usize) {
            self.judge(&mut learned);
        }
    }

    fn judge(&self, learned: &mut Learned) {
        let Answers { num, seconds, full, .. } = learned.answers;
        let (usual, alone) = (seconds / num as f64, learned.alone.unwrap_or(f64::INFINITY));
        if usual <= self.slowdown * alone {
            let more = if full { 1.0 } else { 0.0 };
            learned.limit = (learned.limit + more).min(self.most);
        } else if learned.limit > self.least {
            learned.limit = (learned.limit * SHRINK).max(self.least);
        } else {
            // so slow with so few: it is the machine that has become slower, or refusing that takes its time
            learned.alone = Some((alone * DRIFT).min(usual / self.slowdown));
        }
        learned.answers = Answers { after: learned.came, ..Answers::default() };
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.gate.leave(self.ticket, self.seconds);
    }
}

/// Around requests that are to be answered fast or not at all. What counts begins when the body is there: one that dawdles
/// takes no place, and teaches nothing.
pub async fn hurry(State((front, gate)): State<(Arc<Front>, Arc<Gate>)>, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let body = match bytes(&front, Request::from_parts(parts.clone(), body)).await {
        Ok(body) => body,
        Err(fault) => return fault.into_response(),
    };
    let Some(ticket) = gate.enter() else {
        return Fault::busy("more is asked than can be answered fast: try again").into_response();
    };
    let mut place = Place { gate, ticket, seconds: None };
    let began = Instant::now();
    // what else has arrived comes to the gate first: a search that waits for nothing would keep it from being refused
    yield_now().await;
    let response = next.run(Request::from_parts(parts, Body::from(body))).await;
    if response.status().is_success() {
        place.seconds = Some(began.elapsed().as_secs_f64());
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two at a time are as fast as one; more wait for one another. All leave together.
    fn settle(gate: &Gate, wanted: usize, seconds: f64) -> usize {
        let mut inside = 0;
        for _ in 0..4000 {
            let entered: Vec<Ticket> = (0..wanted).map_while(|_| gate.enter()).collect();
            inside = entered.len();
            let time = seconds * (inside as f64 / 2.0).max(1.0);
            entered.into_iter().for_each(|ticket| gate.leave(ticket, Some(time)));
        }
        inside
    }

    #[test]
    fn as_many_are_let_in_as_stay_fast() {
        for seconds in [0.001, 0.5] {
            let gate = Gate::new((2, 64), 1.5);
            assert_eq!(settle(&gate, 1, seconds), 1);
            // 3 take 1.5 times as long as 2
            let inside = settle(&gate, 100, seconds);
            assert!((2..=4).contains(&inside), "{inside} at {seconds} s");
        }
        let small = Gate::new((2, 1), 1.5);
        assert_eq!(settle(&small, 100, 0.1), 1);
    }

    #[test]
    fn a_machine_that_is_idle_lets_more_in_again() {
        let gate = Gate::new((2, 64), 1.5);
        settle(&gate, 1, 0.001);
        settle(&gate, 100, 0.001);
        for _ in 0..20_000 {
            let entered: Vec<Ticket> = (0..32).map_while(|_| gate.enter()).collect();
            entered.into_iter().for_each(|ticket| gate.leave(ticket, Some(0.001)));
        }
        let entered: Vec<Ticket> = (0..100).map_while(|_| gate.enter()).collect();
        assert!(entered.len() >= 32, "{}", entered.len());
    }

    /// Under lasting overload even few take longer than one did alone, for refusing takes its time; that must not be
    /// taken for a reason to let in more and more.
    #[test]
    fn overload_that_lasts_opens_no_gate() {
        let gate = Gate::new((2, 64), 1.5);
        settle(&gate, 1, 0.001);
        assert!((2..=4).contains(&settle(&gate, 100, 0.003)));
        let inside = (0..20).map(|_| settle(&gate, 100, 0.003)).max();
        assert!(inside <= Some(4), "{inside:?}");
    }
}
