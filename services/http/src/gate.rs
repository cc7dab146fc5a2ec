//! Load shedding: admits only as many concurrent requests as are answered about as fast as one alone, and rejects the others at
//! once. The limit adapts to measured latencies, because it differs between machines and models, and no fixed queue length fits
//! all.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio::task::yield_now;

use crate::fault::Fault;

/// Weight of the newest latency without concurrency.
const NEWEST: f64 = 0.05;
/// The limit is adjusted after this many responses, or twice the limit if that is more.
const ANSWERS: usize = 64;
const SHRINK: f64 = 0.8;
/// Growth of the estimated latency without concurrency, if no request is ever alone.
const DRIFT: f64 = 1.05;

pub struct Gate {
    /// Always admitted: slow responses may have other reasons than concurrency.
    min: f64,
    max: f64,
    /// Accepted latency, as a multiple of the latency without concurrency.
    slowdown: f64,
    state: Mutex<Load>,
}

struct Load {
    inside: usize,
    /// Requests so far, admitted or not.
    came: u64,
    limit: f64,
    /// Estimated seconds of a response without concurrency.
    alone: Option<f64>,
    /// Responses since the last change of the limit.
    responses: ResponseStats,
}

#[derive(Default)]
struct ResponseStats {
    /// Number of the last request before that change.
    after: u64,
    num: usize,
    seconds: f64,
    /// Whether a request was rejected.
    full: bool,
}

/// An admitted request.
#[derive(Clone, Copy)]
struct Ticket {
    number: u64,
    was_alone: bool,
}

struct Slot {
    gate: Arc<Gate>,
    ticket: Ticket,
    /// Seconds of a successful response; others say nothing about the load.
    seconds: Option<f64>,
}

impl Gate {
    /// Admits at least `min` and at most `max` concurrent requests.
    pub fn new(min: usize, max: usize, slowdown: f64) -> Self {
        let max = (max as f64).max(1.0);
        let min = (min as f64).clamp(1.0, max);
        let limit = (2.0 * min).min(max);
        let load = Load { inside: 0, came: 0, limit, alone: None, responses: ResponseStats::default() };
        Self { min, max, slowdown, state: Mutex::new(load) }
    }

    fn load(&self) -> MutexGuard<'_, Load> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// None if the limit is reached.
    fn enter(&self) -> Option<Ticket> {
        let mut load = self.load();
        load.came += 1;
        if load.inside as f64 >= load.limit.floor() {
            load.responses.full = true;
            return None;
        }
        let was_alone = load.inside == 0;
        load.inside += 1;
        Some(Ticket { number: load.came, was_alone })
    }

    fn leave(&self, ticket: Ticket, seconds: Option<f64>) {
        let mut load = self.load();
        load.inside -= 1;
        let Some(seconds) = seconds else { return };
        let stayed_alone = ticket.was_alone && ticket.number == load.came;
        if stayed_alone || load.alone.is_none() {
            let before = load.alone.unwrap_or(seconds);
            load.alone = Some(before + NEWEST * (seconds - before));
        }
        if ticket.number > load.responses.after {
            load.responses.num += 1;
            load.responses.seconds += seconds;
        }
        if load.responses.num >= ANSWERS.max(2 * load.limit as usize) {
            self.adjust(&mut load);
        }
    }

    fn adjust(&self, load: &mut Load) {
        let ResponseStats { num, seconds, full, .. } = load.responses;
        let (usual, alone) = (seconds / num as f64, load.alone.unwrap_or(f64::INFINITY));
        if usual <= self.slowdown * alone {
            let more = if full { 1.0 } else { 0.0 };
            load.limit = (load.limit + more).min(self.max);
        } else if load.limit > self.min {
            load.limit = (load.limit * SHRINK).max(self.min);
        } else {
            // slow at the minimum: the machine has become slower, or rejecting takes the time
            load.alone = Some((alone * DRIFT).min(usual / self.slowdown));
        }
        load.responses = ResponseStats { after: load.came, ..ResponseStats::default() };
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.gate.leave(self.ticket, self.seconds);
    }
}

/// Middleware that answers fast or rejects, inside of `admit`: a slow upload takes no slot and is not measured.
pub async fn shed_load(State(gate): State<Arc<Gate>>, request: Request, next: Next) -> Response {
    let Some(ticket) = gate.enter() else {
        return Fault::busy("the service is overloaded: try again").into_response();
    };
    let mut slot = Slot { gate, ticket, seconds: None };
    let began = Instant::now();
    // lets other arrived requests reach the gate first: a search that never waits would delay their rejection
    yield_now().await;
    let response = next.run(request).await;
    if response.status().is_success() {
        slot.seconds = Some(began.elapsed().as_secs_f64());
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates a server in which two requests are as fast as one, and more wait for each other.
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
    fn admits_as_many_as_stay_fast() {
        for seconds in [0.001, 0.5] {
            let gate = Gate::new(2, 64, 1.5);
            assert_eq!(settle(&gate, 1, seconds), 1);
            // 3 take 1.5 times as long as 2
            let inside = settle(&gate, 100, seconds);
            assert!((2..=4).contains(&inside), "{inside} at {seconds} s");
        }
        let small = Gate::new(2, 1, 1.5);
        assert_eq!(settle(&small, 100, 0.1), 1);
    }

    #[test]
    fn the_limit_recovers_on_an_idle_machine() {
        let gate = Gate::new(2, 64, 1.5);
        settle(&gate, 1, 0.001);
        settle(&gate, 100, 0.001);
        for _ in 0..20_000 {
            let entered: Vec<Ticket> = (0..32).map_while(|_| gate.enter()).collect();
            entered.into_iter().for_each(|ticket| gate.leave(ticket, Some(0.001)));
        }
        let entered: Vec<Ticket> = (0..100).map_while(|_| gate.enter()).collect();
        assert!(entered.len() >= 32, "{}", entered.len());
    }

    /// Under lasting overload even a few requests are slow, because rejecting takes time. That must not raise the limit.
    #[test]
    fn lasting_overload_does_not_raise_the_limit() {
        let gate = Gate::new(2, 64, 1.5);
        settle(&gate, 1, 0.001);
        assert!((2..=4).contains(&settle(&gate, 100, 0.003)));
        let inside = (0..20).map(|_| settle(&gate, 100, 0.003)).max();
        assert!(inside <= Some(4), "{inside:?}");
    }
}
