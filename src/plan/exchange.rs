//! Communication of a step and its time over a ring: `seconds = steps x alpha + bytes / beta`, with the bytes that one process
//! sends. If the ring crosses nodes, the slower link counts.

use serde::Serialize;

use super::device::Device;

/// One kind of communication, for a whole step of one process.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Exchange {
    /// Name of the exchange.
    pub name: &'static str,
    /// Number of calls in a step.
    pub times: f64,
    /// Bytes sent by one process.
    pub bytes: f64,
    /// Seconds in a step.
    pub seconds: f64,
}

/// Ring of devices of one kind.
pub struct Ring<'a> {
    pub device: &'a Device,
    pub devices: u64,
}

impl Ring<'_> {
    /// All-gather: every process sends so many bytes and receives those of all.
    pub fn gather(&self, name: &'static str, bytes: f64, times: f64) -> Exchange {
        self.exchange(name, (self.devices - 1) as f64 * bytes, 1.0, times)
    }

    /// Reduce-scatter: every process contributes all bytes and receives the sum of its part.
    pub fn scatter(&self, name: &'static str, bytes: f64, times: f64) -> Exchange {
        self.exchange(name, self.others() * bytes, 1.0, times)
    }

    /// All-reduce of so many bytes, in pieces.
    pub fn reduce(&self, name: &'static str, bytes: f64, pieces: f64) -> Exchange {
        self.exchange(name, 2.0 * self.others() * bytes / pieces, 2.0, pieces)
    }

    /// Fraction of the whole that belongs to other processes.
    fn others(&self) -> f64 {
        (self.devices - 1) as f64 / self.devices as f64
    }

    fn exchange(&self, name: &'static str, bytes: f64, rounds: f64, times: f64) -> Exchange {
        let (device, nodes) = (self.device, self.devices.div_ceil(self.device.per_node));
        let steps = rounds * (self.devices - 1) as f64;
        let across = if nodes > 1 { rounds * nodes as f64 } else { 0.0 };
        let alpha = across * device.between.alpha + (steps - across).max(0.0) * device.inside.alpha;
        let beta = if nodes > 1 { device.inside.beta.min(device.between.beta) } else { device.inside.beta };
        let once = if steps > 0.0 { (alpha + bytes / beta) * device.crowding(self.devices) } else { 0.0 };
        Exchange { name, times, bytes: times * bytes, seconds: times * once }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::device::Way;

    #[test]
    fn a_ring_sends_all_but_its_own_part() {
        let device = Device {
            per_node: 2,
            inside: Way { alpha: 1.0, beta: 100.0 },
            between: Way { alpha: 10.0, beta: 10.0 },
            ..Device::named("h200").unwrap()
        };
        let ring = |devices| Ring { device: &device, devices };
        // one node: 1 step, 60 bytes at 100 a second
        assert_eq!(ring(2).gather("", 60.0, 1.0), Exchange { name: "", times: 1.0, bytes: 60.0, seconds: 1.6 });
        assert_eq!(ring(2).scatter("", 60.0, 1.0).bytes, 30.0);
        // two nodes: 2 x 3 steps, 4 of them across; 2 x 3/4 of the bytes at 10 a second
        let sum = ring(4).reduce("", 80.0, 1.0);
        assert_eq!((sum.bytes, sum.seconds), (120.0, 2.0 * 1.0 + 4.0 * 10.0 + 12.0));
        // pieces have the same bytes and more steps
        let pieces = ring(4).reduce("", 80.0, 2.0);
        assert_eq!((pieces.bytes, pieces.seconds), (120.0, 2.0 * 42.0 + 12.0));
        assert_eq!(ring(1).reduce("", 80.0, 1.0).seconds, 0.0);
    }
}
