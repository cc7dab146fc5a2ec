//! HTML page of a comparison, query by query: where the other engine became worse and where better, with the first hits of both
//! beside each other.

use super::compare::{ComparisonRow, RunComparison};
use super::html::{bdi, document, escape, table};
use super::metrics::names;
use super::page::{difference, first_hits, signed};
use super::plots::said;
use super::run::{EvaluationRun, OVERALL, QueryRow};

/// Queries shown that became worse, and that became better.
const NUM_WORSE: usize = 50;
const NUM_BETTER: usize = 20;

pub struct ComparePage<'a> {
    pub reference: &'a EvaluationRun,
    pub others: &'a [EvaluationRun],
    /// Comparison of the reference with each of the others.
    pub comparison: &'a RunComparison,
    /// Index of the metric that orders the queries.
    pub metric: usize,
}

/// A query under both engines.
struct Change<'a> {
    before: &'a QueryRow,
    after: &'a QueryRow,
    by: f64,
}

impl ComparePage<'_> {
    pub fn html(&self) -> String {
        let reference = &self.reference.metrics;
        let title = format!("Against {} on {} ({})", reference.model, reference.asked.data, reference.asked.split);
        let about = format!(
            "<p>{} queries of {}, split {}. p-values are corrected for {} tests (Holm); ★ marks differences that both tests \
             find significant at 0.05.</p>\n",
            reference.num_queries,
            bdi(&reference.asked.data),
            bdi(&reference.asked.split),
            self.comparison.num_tests
        );
        let sections = self.others.iter().enumerate().map(|(at, other)| {
            let rows: String = self.comparison.pairs[at].rows.iter().map(row).collect();
            (format!("run{at}"), other.metrics.model.clone(), self.summary(other, &rows) + &self.queries(other))
        });
        let sections: Vec<(String, String, String)> = sections.collect();
        document(&title, &format!("Compared with {}", bdi(&reference.model)), &about, &sections)
    }

    fn summary(&self, other: &EvaluationRun, rows: &str) -> String {
        let head = format!(
            "<th scope=\"col\">Metric</th><th scope=\"col\">{}</th><th scope=\"col\">{}</th>\
             <th scope=\"col\">Difference</th><th scope=\"col\">p (t, randomised)</th>",
            bdi(&self.reference.metrics.model),
            bdi(&other.metrics.model)
        );
        table("In percent, with 95 % intervals over queries", &head, rows)
    }

    fn queries(&self, other: &EvaluationRun) -> String {
        let pairs = self.reference.queries.iter().zip(&other.queries);
        let changes = pairs.filter_map(|(before, after)| {
            let by = after.values[self.metric]? - before.values[self.metric]?;
            Some(Change { before, after, by })
        });
        let mut changes: Vec<Change<'_>> = changes.collect();
        changes.sort_by(|a, b| a.by.total_cmp(&b.by));
        let num_worse = changes.iter().filter(|change| change.by < 0.0).count();
        let num_better = changes.iter().filter(|change| change.by > 0.0).count();
        let list = |changes: &mut dyn Iterator<Item = &Change<'_>>| -> String {
            changes.map(|change| self.change(change, other)).collect()
        };
        format!(
            "<p>By {}, {num_worse} queries became worse, {num_better} became better, and {} stayed the same. Open one to see \
             the first hits of both.</p>\n<h3>Worse</h3>\n{}<h3>Better</h3>\n{}",
            names(other.metrics.asked.depth)[self.metric],
            changes.len() - num_worse - num_better,
            list(&mut changes.iter().take(num_worse.min(NUM_WORSE))),
            list(&mut changes.iter().rev().take(num_better.min(NUM_BETTER))),
        )
    }

    fn change(&self, change: &Change<'_>, other: &EvaluationRun) -> String {
        let Change { before, after, by } = change;
        let slice = before.slice.as_ref().map(|slice| format!("{}, ", escape(slice))).unwrap_or_default();
        let value = |query: &QueryRow| said(query.values[self.metric], None);
        format!(
            "<details><summary><b>{}</b> <span class=\"dim\">{slice}{} Good, {} → {} ({})</span></summary>\n\
             <p class=\"dim\">query <code>{}</code></p>\n<div class=\"figures\">\n<div>{}</div>\n<div>{}</div>\n</div>\n</details>\n",
            bdi(&before.text),
            before.num_good,
            value(before),
            value(after),
            signed(*by),
            bdi(&before.id),
            first_hits(&self.reference.metrics.model, before),
            first_hits(&other.metrics.model, after),
        )
    }
}

fn row(row: &ComparisonRow) -> String {
    let name = if row.slice == OVERALL { row.metric.clone() } else { format!("{}, {}", row.metric, row.slice) };
    format!(
        "<tr><th scope=\"row\">{}</th><td>{}</td><td>{}</td>{}</tr>\n",
        bdi(&name),
        said(row.reference, None),
        said(row.other, None),
        difference(row)
    )
}
