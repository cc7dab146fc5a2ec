//! Logs, metrics and traces: sets up their output, and defines every metric with its name.

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

/// Guard of the telemetry output; sends the last spans when dropped.
pub struct Telemetry {
    _traces: Option<Traces>,
}

/// Sends logs to standard error: text on a terminal, JSON otherwise. `RUST_LOG` sets the filter; the default is
/// warnings. Sends spans to `OTEL_EXPORTER_OTLP_ENDPOINT`. A second call has no effect.
#[must_use = "spans are collected until it is dropped"]
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
    // fails if an embedding program has set its own subscriber, which then stays
    drop(started);
    Telemetry { _traces: traces }
}

/// Metrics of a model's worker thread.
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
    tokens: counter("souk_encoder_tokens_total", "Tokens encoded, without padding"),
    batches: counter("souk_encoder_batches_total", "Batches run"),
    refused: counter("souk_encoder_refused_total", "Requests rejected because the queue was full"),
    cancelled: counter(
        "souk_encoder_cancelled_total",
        "Texts dropped before encoding because the request was cancelled",
    ),
    queued: gauge("souk_encoder_queued_texts", "Texts queued or being encoded"),
    seconds: histogram("souk_encoder_batch_seconds", "Time of one batch"),
});

pub static RELEVANCE: LazyLock<WorkerMetrics> = LazyLock::new(|| WorkerMetrics {
    texts: counter("souk_relevance_pairs_total", "Pairs judged"),
    tokens: counter("souk_relevance_tokens_total", "Tokens of judged pairs, without padding"),
    batches: counter("souk_relevance_batches_total", "Batches run"),
    refused: counter("souk_relevance_refused_total", "Requests rejected because the queue was full"),
    cancelled: counter(
        "souk_relevance_cancelled_total",
        "Pairs dropped before judging because the request was cancelled",
    ),
    queued: gauge("souk_relevance_queued_pairs", "Pairs queued or being judged"),
    seconds: histogram("souk_relevance_batch_seconds", "Time of one batch"),
});

/// Metrics of requests to a service.
pub struct RequestMetrics {
    answers: IntCounterVec,
    seconds: HistogramVec,
}

impl RequestMetrics {
    pub fn record(&self, route: &str, status: u16, seconds: f64) {
        self.answers.with_label_values(&[route, &status.to_string()]).inc();
        self.seconds.with_label_values(&[route]).observe(seconds);
    }
}

pub static RELEVANCE_REQUESTS: LazyLock<RequestMetrics> = LazyLock::new(|| requests("relevance"));
pub static SEARCH_REQUESTS: LazyLock<RequestMetrics> = LazyLock::new(|| requests("search"));
pub static TRAINER_REQUESTS: LazyLock<RequestMetrics> = LazyLock::new(|| requests("trainer"));

fn requests(service: &str) -> RequestMetrics {
    let (count, time) = (format!("souk_{service}_requests_total"), format!("souk_{service}_request_seconds"));
    let answers = Opts::new(count, format!("Requests to the {service} service by route and status"));
    let seconds = HistogramOpts::new(time, format!("Time of one request to the {service} service"));
    // exponential, for resolution at low latency
    let seconds = seconds.buckets(prometheus::exponential_buckets(0.0005, 2.0, 15).expect("bounds are constants"));
    RequestMetrics {
        answers: register(IntCounterVec::new(answers, &["route", "status"]).expect("metric names are constants")),
        seconds: register(HistogramVec::new(seconds, &["route"]).expect("metric names are constants")),
    }
}

/// Metrics of the search-log reader.
pub struct LogMetrics {
    /// Messages by outcome.
    pub events: IntCounterVec,
    pub waiting: IntGauge,
    pub lag: IntGauge,
}

pub static LOG: LazyLock<LogMetrics> = LazyLock::new(|| {
    let events = Opts::new("souk_events_total", "Messages of the search log by outcome, counted once durable");
    LogMetrics {
        events: register(IntCounterVec::new(events, &["state"]).expect("metric names are constants")),
        waiting: gauge("souk_log_waiting_events", "Events waiting for their query"),
        lag: gauge("souk_log_lag", "Unread part of the log: messages of topics, bytes of files"),
    }
});

/// Metrics of training.
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
    /// Batches skipped because their loss was not finite.
    pub skipped: IntCounter,
}

/// Reward statistics of a training step.
pub struct StepRewards<'a> {
    /// Means of the total reward and its parts, by name.
    pub reward: &'a [(&'a str, f64)],
    /// Fractions of L1 to L4.
    pub levels: [f64; 4],
    pub kl: f64,
    pub entropy: f64,
    pub clip_share: f64,
    pub missing: u64,
}

impl TrainMetrics {
    /// Records the rewards of a step.
    pub fn record_rewards(&self, rewards: &StepRewards<'_>) {
        for (part, mean) in rewards.reward {
            self.reward.with_label_values(&[part]).set(*mean);
        }
        for (level, fraction) in ["L1", "L2", "L3", "L4"].iter().zip(rewards.levels) {
            self.levels.with_label_values(&[level]).set(fraction);
        }
        self.kl.set(rewards.kl);
        self.entropy.set(rewards.entropy);
        self.clip_share.set(rewards.clip_share);
        self.missing.inc_by(rewards.missing);
    }

    /// Records a step: seconds of each phase, loss and learning rate.
    pub fn record_step(&self, seconds: &[(&str, f64)], loss: f64, learning_rate: f64) {
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
        reward: floats("souk_reward", "Mean reward of the last step's candidates, total and by part", "part"),
        levels: floats("souk_level_share", "Fraction of each level among the last step's candidates", "level"),
        kl: float("souk_kl", "KL divergence of the policy from the reference"),
        entropy: float("souk_entropy", "Entropy of the policy"),
        clip_share: float("souk_clip_share", "Fraction of candidates whose ratio was clipped"),
        missing: counter("souk_reward_missing_total", "Candidates without a reward in training steps"),
        skipped: counter("souk_batches_skipped_total", "Batches skipped because their loss was not finite"),
        seconds: register(HistogramVec::new(seconds, &["phase"]).expect("metric names are constants")),
    }
});

/// Metrics of the rounds of a trainer.
pub struct TrainerMetrics {
    /// Finished rounds by outcome.
    pub rounds: IntCounterVec,
    /// 1 while an alarm is active.
    pub alarms: IntGaugeVec,
    /// Examples not yet used by a stage.
    pub fresh: IntGaugeVec,
    pub drift: GaugeVec,
    /// Time by phase.
    pub seconds: CounterVec,
}

pub static TRAINER: LazyLock<TrainerMetrics> = LazyLock::new(|| {
    let ints = |name: &str, help: &str, label: &str| {
        let gauge = IntGaugeVec::new(Opts::new(name, help), &[label]);
        register(gauge.expect("metric names are constants"))
    };
    let rounds = Opts::new("souk_trainer_rounds_total", "Finished rounds, by outcome");
    let drift = Opts::new("souk_drift", "Drift of a mix or of vectors since the previous round");
    let seconds = Opts::new("souk_trainer_seconds_total", "Time spent, by what the trainer did or waited for");
    TrainerMetrics {
        rounds: register(IntCounterVec::new(rounds, &["outcome"]).expect("metric names are constants")),
        alarms: ints("souk_alarm", "1 while an alarm is active, by alarm", "alarm"),
        fresh: ints("souk_trainer_fresh_examples", "Examples not yet used by a stage", "stage"),
        drift: register(GaugeVec::new(drift, &["of"]).expect("metric names are constants")),
        seconds: register(CounterVec::new(seconds, &["phase"]).expect("metric names are constants")),
    }
});

/// Metrics of the search service.
pub struct SearchMetrics {
    cache: IntCounterVec,
    pub swaps: IntCounter,
    pub rebuilds: IntCounter,
    pub items: IntGauge,
    pub changed: IntGauge,
    pub catalogue: IntGauge,
    pub stream_end: IntGauge,
    pub free_bytes: IntGauge,
    pub stream_lag: Gauge,
    pub changes_skipped: IntCounter,
    pub recall: Gauge,
    pub version_failing: IntGauge,
    pub events_dropped: IntCounter,
}

impl SearchMetrics {
    /// Records vectors found and not found in the cache.
    pub fn record_cache(&self, num_hits: usize, num_misses: usize) {
        self.cache.with_label_values(&["hit"]).inc_by(num_hits as u64);
        self.cache.with_label_values(&["miss"]).inc_by(num_misses as u64);
    }
}

pub static SEARCH: LazyLock<SearchMetrics> = LazyLock::new(|| {
    let cache = Opts::new("souk_search_cache_total", "Vectors looked up in the cache, by hit or miss");
    let recall = Gauge::new("souk_index_recall", "Recall of the nearest items at the last check");
    let lag = "Seconds since all changes of the catalogue stream were served; -1 if never since the start";
    let lag = Gauge::new("souk_catalogue_lag_seconds", lag);
    SearchMetrics {
        cache: register(IntCounterVec::new(cache, &["outcome"]).expect("metric names are constants")),
        swaps: counter("souk_search_swaps_total", "Generations swapped in"),
        rebuilds: counter("souk_index_rebuilds_total", "Snapshots built from changes"),
        items: gauge("souk_index_items", "Items in the index"),
        changed: gauge("souk_index_changed_items", "Changes since the served snapshot"),
        catalogue: gauge("souk_index_catalogue", "Position of the last catalogue change that is served"),
        free_bytes: gauge("souk_search_free_bytes", "Free bytes on the disk of the search service's state"),
        stream_end: gauge("souk_catalogue_end", "Position of the catalogue stream's last change, as far as known"),
        stream_lag: register(lag.expect("metric names are constants")),
        changes_skipped: counter("souk_catalogue_skipped_total", "Catalogue changes that the index does not accept"),
        recall: register(recall.expect("metric names are constants")),
        version_failing: gauge("souk_version_failing", "1 if the last version to be served here could not be"),
        events_dropped: counter("souk_search_events_dropped_total", "Searches and clicks that could not be logged"),
    }
});

/// Metrics of remote judges.
pub struct RewardMetrics {
    /// Requests by outcome.
    pub requests: IntCounterVec,
    pub seconds: Histogram,
    pub breaker_open: IntGauge,
    /// Verdicts looked up in the cache, by hit or miss.
    pub cached: IntCounterVec,
    pub audits_dropped: IntCounter,
}

pub static REWARD: LazyLock<RewardMetrics> = LazyLock::new(|| {
    let requests = Opts::new("souk_reward_requests_total", "Requests to judges by outcome; retries count");
    let cached = Opts::new("souk_reward_cache_total", "Verdicts looked up in the cache, by hit or miss");
    RewardMetrics {
        requests: register(IntCounterVec::new(requests, &["outcome"]).expect("metric names are constants")),
        seconds: histogram("souk_reward_seconds", "Time of one request to a judge"),
        breaker_open: gauge("souk_reward_breaker_open", "Judges with an open circuit breaker"),
        cached: register(IntCounterVec::new(cached, &["outcome"]).expect("metric names are constants")),
        audits_dropped: counter(
            "souk_reward_audits_dropped_total",
            "Audits dropped because the ledger was slow or unreachable",
        ),
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
    fn renders_metrics_by_name() {
        super::ENCODER.texts.inc();
        assert!(super::render().contains("\nsouk_encoder_texts_total "), "{}", super::render());
    }
}
