//! HTML report of measured runs in one self-contained file, without scripts, fonts or images. Text from data is escaped, and a
//! Content-Security-Policy forbids the browser to load anything.

use super::compare::{ComparisonRow, RunComparison};
use super::html::{bdi, document, escape, table};
use super::metrics::{DETAILS, NDCG, SHOWN, names};
use super::plots::{Bar, bars, curve, said};
use super::run::{EvaluationRun, MetricSummary, QueryRow, Slice, TopHit};
use super::training_log::TrainingLog;

/// Queries shown at each end.
const NUM_EXAMPLES: usize = 10;
/// Number of colours in the style sheet; further runs reuse them.
const NUM_COLOURS: usize = 6;
/// Metrics with charts by slice.
const DRAWN: [usize; 4] = [0, 1, 2, NDCG];

pub struct ReportPage<'a> {
    pub run: &'a EvaluationRun,
    pub baselines: &'a [EvaluationRun],
    /// Comparison of the run with each baseline.
    pub comparison: &'a RunComparison,
    pub training: Option<&'a TrainingLog>,
}

impl ReportPage<'_> {
    pub fn html(&self) -> String {
        let metrics = &self.run.metrics;
        let title = format!("{} on {} ({})", metrics.model, metrics.asked.data, metrics.asked.split);
        let slices = self.run.slices();
        let summaries: Vec<Vec<MetricSummary>> =
            self.runs().map(|run| slices.iter().map(|slice| run.summary(slice)).collect()).collect();
        let mut sections = vec![
            ("summary", "Summary", self.summary(&summaries)),
            ("slices", "By slice", self.slices(&slices, &summaries)),
        ];
        if let Some(training) = self.training {
            sections.push(("training", "Training", training_curves(training)));
        }
        sections.push(("worst", "Worst queries", self.examples(false)));
        sections.push(("best", "Best queries", self.examples(true)));
        sections.push(("reading", "How to read this", reading(metrics.asked.depth)));
        document(&title, &bdi(&metrics.model), &self.about(), &sections)
    }

    /// The run, then its baselines.
    fn runs(&self) -> impl Iterator<Item = &EvaluationRun> {
        std::iter::once(self.run).chain(self.baselines)
    }

    fn about(&self) -> String {
        let metrics = &self.run.metrics;
        let without = match metrics.num_queries_without_good {
            0 => String::new(),
            num => format!(", {num} of them without a Good item"),
        };
        let search = match metrics.pipeline.as_str() {
            "" => String::new(),
            pipeline => format!("<div><dt>Search</dt><dd>{}</dd></div>", bdi(pipeline)),
        };
        let judgements = match &metrics.asked.judgements {
            Some(note) => format!("<div><dt>Judgements</dt><dd>{}</dd></div>", bdi(note)),
            None => String::new(),
        };
        format!(
            "<dl class=\"about\"><div><dt>Data</dt><dd>{}</dd></div><div><dt>Split</dt><dd>{}</dd></div>{search}{judgements}\
             <div><dt>Queries</dt><dd>{}{without}</dd></div><div><dt>Judge of unjudged hits</dt><dd>{}</dd></div></dl>\n",
            bdi(&metrics.asked.data),
            bdi(&metrics.asked.split),
            metrics.num_queries,
            bdi(&metrics.asked.judge),
        )
    }

    fn summary(&self, summaries: &[Vec<MetricSummary>]) -> String {
        let mut head = String::from("<th scope=\"col\">Metric</th>");
        for (at, run) in self.runs().enumerate() {
            head += &format!("<th scope=\"col\">{} {}</th>", swatch(at), bdi(&run.metrics.model));
            if at > 0 {
                head += "<th scope=\"col\">Difference</th><th scope=\"col\">p (t, randomised)</th>";
            }
        }
        let mut rows = String::new();
        for (row, metric) in SHOWN.into_iter().enumerate() {
            rows += &format!("<tr><th scope=\"row\">{}</th>", names(self.run.metrics.asked.depth)[metric]);
            for (at, summaries) in summaries.iter().enumerate() {
                let MetricSummary { means, intervals } = &summaries[0];
                rows += &format!("<td>{}</td>", said(means[metric], intervals[metric]));
                if at > 0 {
                    rows += &difference(&self.comparison.pairs[at - 1].rows[row]);
                }
            }
            rows += "</tr>\n";
        }
        let note = match self.comparison.num_tests {
            0 => String::new(),
            num => format!(
                "<p>p-values are corrected for {num} tests (Holm); ★ marks differences that both tests find significant at 0.05.</p>\n"
            ),
        };
        let caption = "In percent, with 95 % intervals over queries";
        format!("{}{note}{}", table(caption, &head, &rows), self.details(summaries))
    }

    /// Metrics that say how much to trust the others. They are not tested: more tests would hide differences that matter.
    fn details(&self, summaries: &[Vec<MetricSummary>]) -> String {
        let mut head = String::from("<th scope=\"col\">Metric</th>");
        for (at, run) in self.runs().enumerate() {
            head += &format!("<th scope=\"col\">{} {}</th>", swatch(at), bdi(&run.metrics.model));
        }
        let names = names(self.run.metrics.asked.depth);
        let rows = DETAILS.map(|metric| {
            let cells = summaries.iter().map(|summaries| {
                let MetricSummary { means, intervals } = &summaries[0];
                format!("<td>{}</td>", said(means[metric], intervals[metric]))
            });
            format!("<tr><th scope=\"row\">{}</th>{}</tr>\n", names[metric], cells.collect::<String>())
        });
        table("Details, not tested", &head, &rows.concat())
    }

    fn slices(&self, slices: &[Slice], summaries: &[Vec<MetricSummary>]) -> String {
        let names = names(self.run.metrics.asked.depth);
        let drawn = DRAWN.map(|metric| {
            let group = |(at, slice): (usize, &Slice)| {
                (format!("{}, {} queries", slice.name, slice.queries.len()), self.bars(metric, at, summaries))
            };
            bars(&names[metric], &slices.iter().enumerate().map(group).collect::<Vec<_>>())
        });
        format!("{}<div class=\"figures\">\n{}</div>\n", self.legend(), drawn.concat())
    }

    fn bars(&self, metric: usize, slice: usize, summaries: &[Vec<MetricSummary>]) -> Vec<Bar<'_>> {
        let summaries = summaries.iter().map(|of_run| &of_run[slice]);
        let bars = self.runs().zip(summaries).enumerate().map(|(at, (run, summary))| Bar {
            name: &run.metrics.model,
            colour: at % NUM_COLOURS,
            value: summary.means[metric],
            interval: summary.intervals[metric],
        });
        bars.collect()
    }

    fn legend(&self) -> String {
        let entries =
            self.runs().enumerate().map(|(at, run)| format!("<li>{} {}</li>", swatch(at), bdi(&run.metrics.model)));
        format!("<ul class=\"legend\">{}</ul>\n", entries.collect::<String>())
    }

    /// By nDCG, then by hits within the depth; ties in task order.
    fn examples(&self, best: bool) -> String {
        let mut order: Vec<&QueryRow> = self.run.queries.iter().filter(|query| query.num_good > 0).collect();
        let key = |query: &QueryRow| [NDCG, 2, 0].map(|metric| query.values[metric].unwrap_or(0.0));
        order.sort_by(|a, b| {
            let (a, b) = if best { (key(b), key(a)) } else { (key(a), key(b)) };
            a.iter()
                .zip(&b)
                .map(|(a, b)| a.total_cmp(b))
                .find(|order| order.is_ne())
                .unwrap_or(std::cmp::Ordering::Equal)
        });
        let names = names(self.run.metrics.asked.depth);
        let shown: String = order.into_iter().take(NUM_EXAMPLES).map(|query| example(query, &names)).collect();
        if shown.is_empty() {
            return "<p>No query has a Good item.</p>\n".into();
        }
        format!("<p>Queries with a Good item, by {}. Open one to see its hits.</p>\n{shown}", names[NDCG])
    }
}

fn example(query: &QueryRow, names: &[String]) -> String {
    let value = |metric: usize| said(query.values[metric], None);
    let slice = query.slice.as_ref().map(|slice| format!("{}, ", escape(slice))).unwrap_or_default();
    format!(
        "<details><summary><b>{}</b> <span class=\"dim\">{slice}{} Good, {} {}, {} {}</span></summary>\n\
         <p class=\"dim\">query <code>{}</code></p>\n{}</details>\n",
        bdi(&query.text),
        query.num_good,
        names[NDCG],
        value(NDCG),
        names[2],
        value(2),
        bdi(&query.id),
        first_hits("First hits", query),
    )
}

/// Table of a query's first hits.
pub fn first_hits(caption: &str, query: &QueryRow) -> String {
    if query.top.is_empty() {
        return format!("<p>{}: no hits.</p>\n", escape(caption));
    }
    let hits: String = query.top.iter().enumerate().map(|(rank, hit)| hit_row(rank + 1, hit)).collect();
    let head = "<th scope=\"col\">Rank</th><th scope=\"col\">Level</th><th scope=\"col\">Item</th>\
                <th scope=\"col\">Title</th><th scope=\"col\">Score</th>";
    table(caption, head, &hits)
}

fn hit_row(rank: usize, hit: &TopHit) -> String {
    let level = match hit.level {
        Some(level) => format!("<span class=\"level l{0}\">L{0}</span>", level.number()),
        None => "<span class=\"level\">unjudged</span>".into(),
    };
    let (id, title) = (bdi(&hit.id), bdi(&hit.title));
    format!(
        "<tr><td>{rank}</td><td>{level}</td><td><code>{id}</code></td><td class=\"text\">{title}</td><td>{:.4}</td></tr>\n",
        hit.score
    )
}

/// Cells with the difference and its p-values.
pub fn difference(row: &ComparisonRow) -> String {
    let Some((paired, p)) = row.paired.zip(row.corrected) else { return "<td>–</td><td>–</td>".into() };
    let [low, high] = paired.interval;
    let star = if row.is_significant() { " ★" } else { "" };
    // for judged and overlap, more is neither better nor worse
    let is_neutral = row.metric.starts_with("judged") || row.metric.starts_with("overlap");
    let class = if !row.is_significant() || is_neutral {
        "plain"
    } else if paired.difference > 0.0 {
        "more"
    } else {
        "less"
    };
    format!(
        "<td class=\"{class}\">{} [{}, {}]{star}</td><td>{}, {}</td>",
        signed(paired.difference),
        signed(low),
        signed(high),
        probability(p.p_t),
        probability(p.p_randomised)
    )
}

pub fn signed(value: f64) -> String {
    format!("{value:+.1}").replace('-', "−")
}

fn probability(p: f64) -> String {
    if p < 0.0001 { "&lt;0.0001".into() } else { format!("{p:.4}") }
}

fn training_curves(training: &TrainingLog) -> String {
    let curves = [
        curve("Loss", &training.loss),
        curve("Learning rate", &training.learning_rate),
        curve("Texts per second", &training.texts_per_second),
    ];
    format!("<div class=\"figures\">\n{}</div>\n", curves.concat())
}

fn reading(depth: usize) -> String {
    format!(
        "<dl class=\"reading\">\n\
         <dt>hitrate@{depth}, hitrate@100</dt><dd>Fraction of a query's Good items (levels 3 and 4) among its first hits; a query without Good items counts as 0.</dd>\n\
         <dt>goodrate@100</dt><dd>Fraction of the first 100 ranks with a Good item, according to the data's judgements, else to the judge named above.</dd>\n\
         <dt>ndcg@10</dt><dd>Quality of the order of the first ten hits. Levels 1 to 4 gain 0, 1, 3 and 7; an unjudged item gains 0.</dd>\n\
         <dt>mrr@10</dt><dd>One over the rank of the first Good item, if it is among the first ten.</dd>\n\
         <dt>judged@100</dt><dd>Fraction of the first 100 hits with a judgement in the data. If it is low, the other metrics are unreliable.</dd>\n\
         <dt>quality@100</dt><dd>Mean quality of those of the first 100 hits that have one.</dd>\n\
         <dt>overlap@100</dt><dd>Fraction of the first 100 hits that are also among the lexical channel's first 100.</dd>\n\
         <dt>ndcg_linear@10</dt><dd>The same as ndcg@10, but the gain is the level: an item known to be irrelevant counts more than an unjudged one.</dd>\n\
         <dt>ndcg_judged@10</dt><dd>ndcg@10 after the unjudged hits are taken out.</dd>\n\
         <dt>ordered@{depth}</dt><dd>Fraction of the pairs of judged items with different levels whose better item comes first.</dd>\n\
         <dt>judged@10</dt><dd>Fraction of the first ten hits with a judgement in the data.</dd>\n\
         <dt>hitrate_exclusive@{depth}</dt><dd>Hitrate over the Good items that the lexical channel does not find among its first {depth}.</dd>\n\
         </dl>\n<p>Metrics that depend only on judgements equal <code>ir_measures</code> on <code>run.trec</code> and <code>qrels.trec</code> beside this page. \
         Intervals are percentile bootstraps over queries.</p>\n"
    )
}

fn swatch(run: usize) -> String {
    format!("<span class=\"swatch b{}\"></span>", run % NUM_COLOURS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::NUM_METRICS;

    #[test]
    fn nothing_from_data_is_read_as_html() {
        let query = QueryRow {
            id: "q\"1".into(),
            text: "</b><script>alert(1)</script>\u{0}".into(),
            slice: Some("<i>".into()),
            num_good: 1,
            values: [Some(50.0); NUM_METRICS],
            top: vec![TopHit { id: "<a>".into(), title: "1 < 2 & 'x'".into(), score: 0.5, level: None }],
        };
        let html = example(&query, &names(6000));
        assert!(html.contains("&lt;/b&gt;&lt;script&gt;alert(1)&lt;/script&gt;\u{fffd}"), "{html}");
        assert!(html.contains("1 &lt; 2 &amp; &#39;x&#39;") && html.contains("<code><bdi>&lt;a&gt;"), "{html}");
        assert!(!html.contains("<script") && !html.contains("<i>") && !html.contains("q\"1"), "{html}");
    }

    #[test]
    fn small_probabilities_are_not_zero() {
        assert_eq!((probability(0.00001).as_str(), probability(0.05).as_str()), ("&lt;0.0001", "0.0500"));
    }
}
