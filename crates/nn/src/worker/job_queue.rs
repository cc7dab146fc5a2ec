//! Requests that wait for a worker: urgent ones first, but of five rounds at least one is for the others.

use std::collections::VecDeque;

use tokio::sync::mpsc::UnboundedReceiver;

use super::{Job, Model, Urgency};

/// Rounds of urgent requests after which patient ones have one.
const MAX_OVERTAKING: usize = 4;

pub struct JobQueue<M: Model> {
    arriving: UnboundedReceiver<Job<M>>,
    urgent: VecDeque<Job<M>>,
    patient: VecDeque<Job<M>>,
    /// Rounds of urgent requests since the last one of patient ones, while some wait.
    overtaken: usize,
}

impl<M: Model> JobQueue<M> {
    pub fn new(arriving: UnboundedReceiver<Job<M>>) -> Self {
        Self { arriving, urgent: VecDeque::new(), patient: VecDeque::new(), overtaken: 0 }
    }

    /// First request of the next round, and whether it was there already. None once no more can come.
    pub fn next(&mut self) -> Option<(Job<M>, bool)> {
        self.receive();
        let waited = !self.urgent.is_empty() || !self.patient.is_empty();
        if !waited {
            let job = self.arriving.blocking_recv()?;
            self.push(job);
        }
        let is_turn = self.urgent.is_empty() || self.overtaken >= MAX_OVERTAKING;
        let patient = if is_turn { self.patient.pop_front() } else { None };
        if patient.is_some() || self.patient.is_empty() {
            self.overtaken = 0;
        } else {
            self.overtaken += 1;
        }
        let job = patient.or_else(|| self.urgent.pop_front())?;
        Some((job, waited))
    }

    /// Another request for this round.
    pub fn try_next(&mut self, urgency: Urgency) -> Option<Job<M>> {
        self.receive();
        match urgency {
            Urgency::Urgent => self.urgent.pop_front(),
            Urgency::Patient => self.patient.pop_front(),
        }
    }

    fn receive(&mut self) {
        while let Ok(job) = self.arriving.try_recv() {
            self.push(job);
        }
    }

    fn push(&mut self, job: Job<M>) {
        match job.urgency {
            Urgency::Urgent => self.urgent.push_back(job),
            Urgency::Patient => self.patient.push_back(job),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};
    use std::sync::{Arc, Mutex};

    use souk_io::error::Result;
    use souk_io::telemetry::{ENCODER, WorkerMetrics};
    use tch::Device;

    use super::super::{Limits, Worker};
    use super::*;

    /// Model that notes the first letter of each batch, and does not begin before the gate opens.
    struct Noting {
        notes: Arc<Mutex<String>>,
        gate: Receiver<()>,
    }

    impl Model for Noting {
        type Input = char;
        type Output = ();
        const NAME: &'static str = "noting";

        fn num_tokens(_: &char) -> usize {
            16
        }

        fn run(&self, inputs: &[&char]) -> Result<Vec<()>> {
            // closed once open
            assert!(self.gate.recv().is_err());
            self.notes.lock().unwrap().push(*inputs[0]);
            Ok(vec![(); inputs.len()])
        }

        fn metrics() -> &'static WorkerMetrics {
            &ENCODER
        }

        fn device(&self) -> Device {
            Device::Cpu
        }
    }

    #[test]
    fn urgent_requests_overtake_and_patient_ones_have_their_turn() {
        let (open, gate) = channel();
        let notes = Arc::<Mutex<String>>::default();
        let model = Noting { notes: notes.clone(), gate };
        // one text fills a batch, four make a round
        let worker = Worker::start(model, Limits { batch_tokens: Some(16), queue_texts: 100 }).unwrap();
        let submit = |letter: char, urgency: Urgency| {
            worker.submit_into(worker.reserve(1).unwrap(), vec![letter], urgency).unwrap()
        };
        let mut replies = vec![submit('-', Urgency::Urgent)];
        replies.extend((0..6).map(|_| submit('p', Urgency::Patient)));
        replies.extend((0..30).map(|_| submit('u', Urgency::Urgent)));
        drop(open);
        for reply in replies {
            reply.blocking_recv().unwrap().unwrap();
        }
        let order = notes.lock().unwrap().clone();
        let first = order.find('p').unwrap();
        assert!((16..=21).contains(&first), "after four rounds of four: {order}");
        assert!(order.rfind('u') < order.rfind('p'), "{order}");
        assert!(worker.since_success().is_some());
    }
}
