//! When a stage runs: counts and times in, a reason out.

use souk::config::Pace;

/// The last time that a stage ran.
#[derive(Clone, Copy, Debug)]
pub struct StageAttempt {
    /// New examples since then.
    pub fresh: u64,
    /// Seconds since then.
    pub seconds: u64,
}

/// Why a stage is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    Examples,
    Time,
}

pub fn due(pace: &Pace, tried: StageAttempt) -> Option<Due> {
    if tried.fresh >= pace.examples {
        return Some(Due::Examples);
    }
    let enough = tried.fresh >= pace.min_examples;
    (pace.seconds > 0 && tried.seconds >= pace.seconds && enough).then_some(Due::Time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn enough_examples_or_enough_time_with_a_few() {
        let pace = Pace { examples: 100, seconds: 60, min_examples: 10, look_back: 0.0 };
        let at = |fresh, seconds| due(&pace, StageAttempt { fresh, seconds });
        assert_eq!(at(99, 59), None);
        assert_eq!(at(100, 0), Some(Due::Examples));
        assert_eq!(at(10, 60), Some(Due::Time));
        assert_eq!(at(9, 1000), None, "too few to learn from, however long it has been");
        let never = Pace { seconds: 0, ..pace };
        assert_eq!(due(&never, StageAttempt { fresh: 99, seconds: 1 << 40 }), None);
    }
}
