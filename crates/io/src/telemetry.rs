//! Logs, metrics and traces: one place for their names, one for how they leave the process.

#[cfg(feature = "otlp")]
mod traces;
#[cfg(not(feature = "otlp"))]
#[path = "telemetry/no_traces.rs"]
mod traces;

use std::io::IsTerminal;
use std::sync::LazyLock;

use prometheus::{
    CounterVec, Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry, TextEncoder,
};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::Layer;
use tracing_subscriber::fmt::layer;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use self::traces::Traces;
pub use self::traces::join;

/// Ends with the process, and takes the last spans along.
pub struct Telemetry {
    _traces: Option<Traces>,
}

/// Sends logs to standard error: lines for people on a terminal, JSON for machines elsewhere.
/// `RUST_LOG` chooses what is logged; warnings by default. Spans go where `OTEL_EXPORTER_OTLP_ENDPOINT` says. A second call
/// changes nothing.
#[must_use = "spans are collected while it lives"]
pub fn start() -> Telemetry {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    let (spans, traces) = traces::layer().unzip();
    let registry = tracing_subscriber::registry().with(spans);
    let terminal = std::io::stderr().is_terminal();
    let started = if terminal {
        registry.with(layer().with_writer(std::io::stderr).without_time().with_filter(filter)).try_init()
    } else {
        registry.with(layer().json().with_writer(std::io::stderr).with_filter(filter)).try_init()
    };
    // an embedding program may have its own subscriber; it is then the one that counts
    drop(started);
    Telemetry { _traces: traces }
}

/// What a model's worker does.
pub struct WorkerMetrics {
    pub texts: IntCounter,
    pub tokens: IntCounter,
    pub batches: IntCounter,
    pub refused: IntCounter,
    pub cancelled: IntCounter,
    pub queued: IntGauge,
    pub seconds: Histogram,
}

static REGISTRY: LazyLock<Registry> = LazyLock::new(Registry::new);

pub static ENCODER: LazyLock<WorkerMetrics> = LazyLock::new(|| WorkerMetrics {
    texts: counter("souk_encoder_texts_total", "Texts encoded"),
    tokens: counter("souk_encoder_tokens_total", "Tokens encoded; there is no padding among them"),
    batches: counter("souk_encoder_batches_total", "Batches run"),
    refused: counter("souk_encoder_refused_total", "Requests refused at once because the queue was full"),
    cancelled: counter("souk_encoder_cancelled_total", "Texts dropped unencoded because nobody waited any more"),
    queued: gauge("souk_encoder_queued_texts", "Texts waiting or being encoded"),
    seconds: histogram("souk_encoder_batch_seconds", "Time of one batch"),
});

pub static RELEVANCE: LazyLock<WorkerMetrics> = LazyLock::new(|| WorkerMetrics {
    texts: counter("souk_relevance_pairs_total", "Pairs judged"),
    tokens: counter("souk_relevance_tokens_total", "Tokens of the pairs judged; there is no padding among them"),
    batches: counter("souk_relevance_batches_total", "Batches run"),
    refused: counter("souk_relevance_refused_total", "Requests refused at once because the queue was full"),
    cancelled: counter("souk_relevance_cancelled_total", "Pairs dropped unjudged because nobody waited any more"),
    queued: gauge("souk_relevance_queued_pairs", "Pairs waiting or being judged"),
    seconds: histogram("souk_relevance_batch_seconds", "Time of one batch"),
});

/// Requests to a service.
pub struct RequestMetrics {
    answers: IntCounterVec,
    seconds: HistogramVec,
}

impl RequestMetrics {
    pub fn answered(&self, route: &str, status: u16, seconds: f64) {
        self.answers.with_label_values(&[route, &status.to_string()]).inc();
        self.seconds.with_label_values(&[route]).observe(seconds);
    }
}

pub static RELEVANCE_REQUESTS: LazyLock<RequestMetrics> = LazyLock::new(|| requests("relevance"));
pub static SEARCH_REQUESTS: LazyLock<RequestMetrics> = LazyLock::new(|| requests("search"));
pub static TRAINER_REQUESTS: LazyLock<RequestMetrics> = LazyLock::new(|| requests("trainer"));

fn requests(service: &str) -> RequestMetrics {
    let (count, time) = (format!("souk_{service}_requests_total"), format!("souk_{service}_request_seconds"));
    let answers = Opts::new(count, format!("Requests to the {service} service by what was answered"));
    let seconds = HistogramOpts::new(time, format!("Time of one request to the {service} service"));
    // fine where answers are fast
    let seconds = seconds.buckets(prometheus::exponential_buckets(0.0005, 2.0, 15).expect("bounds are constants"));
    RequestMetrics {
        answers: register(IntCounterVec::new(answers, &["route", "status"]).expect("metric names are constants")),
        seconds: register(HistogramVec::new(seconds, &["route"]).expect("metric names are constants")),
    }
}

/// What comes in from the search log.
pub struct LogMetrics {
    /// By what became of them.
    pub events: IntCounterVec,
    pub waiting: IntGauge,
    pub lag: IntGauge,
}

pub static LOG: LazyLock<LogMetrics> = LazyLock::new(|| {
    let events = Opts::new("souk_events_total", "Messages of the search log by what became of them, once durable");
    LogMetrics {
        events: register(IntCounterVec::new(events, &["state"]).expect("metric names are constants")),
        waiting: gauge("souk_log_waiting_events", "Events that wait for their query"),
        lag: gauge("souk_log_lag", "What lies unread in the log: messages of topics, bytes of files"),
    }
});

/// How training goes.
pub struct TrainMetrics {
    loss: Gauge,
    learning_rate: Gauge,
    seconds: HistogramVec,
    reward: GaugeVec,
    levels: GaugeVec,
    kl: Gauge,
    entropy: Gauge,
    clip_share: Gauge,
    missing: IntCounter,
    /// Batches that were passed over because their loss was no number.
    pub skipped: IntCounter,
}

/// What a step learned from rewards.
pub struct Rewarded<'a> {
    /// Means of the whole reward and its parts, by name.
    pub reward: &'a [(&'a str, f64)],
    /// Shares of L1 to L4.
    pub levels: [f64; 4],
    pub kl: f64,
    pub entropy: f64,
    pub clip_share: f64,
    pub missing: u64,
}

impl TrainMetrics {
    /// Notes the rewards of a step.
    pub fn rewarded(&self, rewarded: &Rewarded<'_>) {
        for (part, mean) in rewarded.reward {
            self.reward.with_label_values(&[part]).set(*mean);
        }
        for (level, share) in ["L1", "L2", "L3", "L4"].iter().zip(rewarded.levels) {
            self.levels.with_label_values(&[level]).set(share);
        }
        self.kl.set(rewarded.kl);
        self.entropy.set(rewarded.entropy);
        self.clip_share.set(rewarded.clip_share);
        self.missing.inc_by(rewarded.missing);
    }

    /// Notes a step: the seconds of each of its phases, its loss and its learning rate.
    pub fn step(&self, seconds: &[(&str, f64)], loss: f64, learning_rate: f64) {
        self.loss.set(loss);
        self.learning_rate.set(learning_rate);
        for (phase, seconds) in seconds {
            self.seconds.with_label_values(&[phase]).observe(*seconds);
        }
    }
}

pub static TRAIN: LazyLock<TrainMetrics> = LazyLock::new(|| {
    let float = |name: &str, help: &str| register(Gauge::new(name, help).expect("metric names are constants"));
    let floats = |name: &str, help: &str, label: &str| {
        register(GaugeVec::new(Opts::new(name, help), &[label]).expect("metric names are constants"))
    };
    let seconds = HistogramOpts::new("souk_step_seconds", "Time of one training step by phase");
    TrainMetrics {
        loss: float("souk_loss", "Loss of the last training step"),
        learning_rate: float("souk_learning_rate", "Learning rate of the last training step"),
        reward: floats("souk_reward", "Mean reward of the last step's candidates, whole and by part", "part"),
        levels: floats("souk_level_share", "Share of each level among the last step's candidates", "level"),
        kl: float("souk_kl", "Divergence of the policy from the reference"),
        entropy: float("souk_entropy", "Entropy of the policy"),
        clip_share: float("souk_clip_share", "Share of candidates where the clip decided"),
        missing: counter("souk_reward_missing_total", "Candidates that steps were taken without a reward for"),
        skipped: counter("souk_batches_skipped_total", "Batches passed over because their loss was no finite number"),
        seconds: register(HistogramVec::new(seconds, &["phase"]).expect("metric names are constants")),
    }
});

/// How the rounds of a trainer go.
pub struct TrainerMetrics {
    /// Ended ones, by outcome.
    pub rounds: IntCounterVec,
    /// 1 while something is wrong.
    pub alarms: IntGaugeVec,
    /// Examples that a stage has not been given yet.
    pub fresh: IntGaugeVec,
    pub drift: GaugeVec,
    /// Where the time went.
    pub seconds: CounterVec,
}

pub static TRAINER: LazyLock<TrainerMetrics> = LazyLock::new(|| {
    let ints = |name: &str, help: &str, label: &str| {
        let gauge = IntGaugeVec::new(Opts::new(name, help), &[label]);
        register(gauge.expect("metric names are constants"))
    };
    let rounds = Opts::new("souk_trainer_rounds_total", "Rounds that have ended, by outcome");
    let drift = Opts::new("souk_drift", "How far a mix, or vectors, are from what they were a round before");
    let seconds = Opts::new("souk_trainer_seconds_total", "Time spent, by what the trainer did or waited for");
    TrainerMetrics {
        rounds: register(IntCounterVec::new(rounds, &["outcome"]).expect("metric names are constants")),
        alarms: ints("souk_alarm", "1 while something is wrong, by what it is", "alarm"),
        fresh: ints("souk_trainer_fresh_examples", "Examples that a stage has not been given yet", "stage"),
        drift: register(GaugeVec::new(drift, &["of"]).expect("metric names are constants")),
        seconds: register(CounterVec::new(seconds, &["phase"]).expect("metric names are constants")),
    }
});

/// What is served, and how it holds up.
pub struct SearchMetrics {
    cache: IntCounterVec,
    pub swaps: IntCounter,
    pub rebuilds: IntCounter,
    pub items: IntGauge,
    pub changed: IntGauge,
    pub catalogue: IntGauge,
    pub recall: Gauge,
    pub events_dropped: IntCounter,
}

impl SearchMetrics {
    /// Vectors that the cache had, and had not.
    pub fn cached(&self, known: usize, made: usize) {
        self.cache.with_label_values(&["hit"]).inc_by(known as u64);
        self.cache.with_label_values(&["miss"]).inc_by(made as u64);
    }
}

pub static SEARCH: LazyLock<SearchMetrics> = LazyLock::new(|| {
    let cache = Opts::new("souk_search_cache_total", "Vectors looked up in the cache, by whether it had them");
    let recall = Gauge::new("souk_index_recall", "Share of the nearest items that a search finds, at the last look");
    SearchMetrics {
        cache: register(IntCounterVec::new(cache, &["outcome"]).expect("metric names are constants")),
        swaps: counter("souk_search_swaps_total", "Generations that took the place of another"),
        rebuilds: counter("souk_index_rebuilds_total", "Snapshots made of what had changed"),
        items: gauge("souk_index_items", "Items that can be found"),
        changed: gauge("souk_index_changed_items", "Changes since the snapshot that is served"),
        catalogue: gauge("souk_index_catalogue", "The number of the last change to the catalogue that is served"),
        recall: register(recall.expect("metric names are constants")),
        events_dropped: counter(
            "souk_search_events_dropped_total",
            "Searches and clicks that could not be written down",
        ),
    }
});

/// What judges behind a wire do.
pub struct RewardMetrics {
    /// By outcome.
    pub requests: IntCounterVec,
    pub seconds: Histogram,
    pub breaker_open: IntGauge,
    /// Verdicts asked of the cache, by whether it had them.
    pub cached: IntCounterVec,
    pub audits_dropped: IntCounter,
}

pub static REWARD: LazyLock<RewardMetrics> = LazyLock::new(|| {
    let requests = Opts::new("souk_reward_requests_total", "Requests to judges by outcome; a retry is one more");
    let cached = Opts::new("souk_reward_cache_total", "Verdicts looked up in the cache, by whether it had them");
    RewardMetrics {
        requests: register(IntCounterVec::new(requests, &["outcome"]).expect("metric names are constants")),
        seconds: histogram("souk_reward_seconds", "Time of one request to a judge"),
        breaker_open: gauge("souk_reward_breaker_open", "Judges that are not asked for a while because they failed"),
        cached: register(IntCounterVec::new(cached, &["outcome"]).expect("metric names are constants")),
        audits_dropped: counter("souk_reward_audits_dropped_total", "Audits that the ledger was too slow for, or away"),
    }
});

/// All metrics in Prometheus' text format.
pub fn render() -> String {
    TextEncoder::new().encode_to_string(&REGISTRY.gather()).unwrap_or_default()
}

fn counter(name: &str, help: &str) -> IntCounter {
    register(IntCounter::new(name, help).expect("metric names are constants"))
}

fn gauge(name: &str, help: &str) -> IntGauge {
    register(IntGauge::new(name, help).expect("metric names are constants"))
}

fn histogram(name: &str, help: &str) -> Histogram {
    register(Histogram::with_opts(HistogramOpts::new(name, help)).expect("metric names are constants"))
}

fn register<M: prometheus::core::Collector + Clone + 'static>(metric: M) -> M {
    REGISTRY.register(Box::new(metric.clone())).expect("each metric is registered once");
    metric
}

#[cfg(test)]
mod tests {
    #[test]
    fn metrics_are_rendered_under_their_names() {
        super::ENCODER.texts.inc();
        assert!(super::render().contains("\nsouk_encoder_texts_total "), "{}", super::render());
    }
}
