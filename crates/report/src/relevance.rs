//! HTML report of a relevance model: agreement with the judged levels, and a reliability plot of its probabilities. One
//! self-contained file.

use super::html::{bdi, document, figure, table};
use souk_cross_encoder::{Bin, JudgeMeasurement, JudgeReport, Reliability};

/// Side of a plot, in user units.
const SIDE: f64 = 200.0;

pub fn relevance_page(name: &str, measured: &JudgeReport) -> String {
    let plots = [("As trained", &measured.all.before), ("Calibrated", &measured.all.after)];
    let plots: String = plots.into_iter().map(|(title, reliability)| reliability_plot(title, reliability)).collect();
    let sections = [
        ("summary", "Summary", summary(measured)),
        (
            "reliability",
            "Reliability of P(Good)",
            format!("<div class=\"figures\">\n{plots}</div>\n{}", bins(&measured.all.after)),
        ),
        ("confusion", "Levels", confusion(&measured.judged)),
        ("reading", "How to read this", READING.into()),
    ];
    document(&format!("{name}: relevance"), &bdi(name), &about(measured), &sections)
}

const READING: &str = "<dl class=\"reading\">\n\
    <dt>accuracy</dt><dd>Fraction of pairs with the judged level.</dd>\n\
    <dt>kappa</dt><dd>Cohen's kappa with quadratic weights: agreement beyond chance. An error of two levels counts four times as much as one.</dd>\n\
    <dt>AUC of Good</dt><dd>Probability that a pair of level 3 or 4 scores above one of level 1 or 2.</dd>\n\
    <dt>ECE</dt><dd>Expected calibration error: mean distance between the predicted probability of Good and the fraction of Good pairs (ten bins).</dd>\n\
    <dt>judged, with random items</dt><dd>Judged pairs; and the same with random catalogue items, which count as level 1.</dd>\n\
    </dl>\n<p>The model was trained on none of these queries; temperature and thresholds were fitted on other held-out queries.</p>\n";

fn about(measured: &JudgeReport) -> String {
    let entry = |name: &str, value: String| format!("<div><dt>{name}</dt><dd>{value}</dd></div>");
    format!(
        "<dl class=\"about\">{}{}{}{}{}</dl>\n",
        entry("Data", bdi(&measured.data)),
        entry("Split", bdi(&measured.split)),
        entry("Base model", bdi(&measured.base)),
        entry("Training pairs", measured.draws.to_string()),
        entry("Temperature", format!("{:.3}", measured.calibration.temperature)),
    )
}

fn summary(measured: &JudgeReport) -> String {
    let [judged, all] = [&measured.judged, &measured.all];
    let number = |value: Option<f64>| value.map_or("–".into(), |value| format!("{value:.4}"));
    let row = |name: &str, of: &dyn Fn(&JudgeMeasurement) -> String| {
        format!("<tr><th scope=\"row\">{name}</th><td>{}</td><td>{}</td></tr>\n", of(judged), of(all))
    };
    let rows = [
        row("pairs", &|m| m.agreement.pairs.to_string()),
        row("accuracy", &|m| number(m.agreement.accuracy)),
        row("kappa", &|m| number(m.agreement.kappa)),
        row("AUC of Good", &|m| number(m.agreement.auc_good)),
        row("ECE uncalibrated", &|m| number(m.before.ece)),
        row("ECE calibrated", &|m| number(m.after.ece)),
    ];
    let head = "<th scope=\"col\">Metric</th><th scope=\"col\">judged</th><th scope=\"col\">with random items</th>";
    let [second, third, fourth] = measured.calibration.thresholds;
    let levels = format!("<p>Minimum scores: {second:.3} for L2, {third:.3} for L3, {fourth:.3} for L4.</p>\n");
    format!("{}{levels}", table("On held-out queries", head, &rows.concat()))
}

/// Reliability plot. The diagonal is perfect calibration; a dot's area shows how many pairs its bin has.
fn reliability_plot(title: &str, reliability: &Reliability) -> String {
    let most = reliability.bins.iter().map(|bin| bin.pairs).max().unwrap_or(0).max(1) as f64;
    let at = |bin: &Bin| Some((bin.pairs, bin.probability?, bin.good?));
    let points: Vec<(usize, f64, f64)> = reliability.bins.iter().filter_map(at).collect();
    let (x, y) = (|p: f64| SIDE * p, |good: f64| SIDE * (1.0 - good));
    let line: Vec<String> = points.iter().map(|(_, p, good)| format!("{:.1},{:.1}", x(*p), y(*good))).collect();
    let dots: String = points
        .iter()
        .map(|(pairs, p, good)| {
            let radius = 2.0 + 5.0 * (*pairs as f64 / most).sqrt();
            let label = format!("{pairs} pairs: predicted {:.1} %, observed {:.1} %", 100.0 * p, 100.0 * good);
            format!(
                "<circle class=\"c0\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"{radius:.1}\"><title>{label}</title></circle>",
                x(*p),
                y(*good)
            )
        })
        .collect();
    let ece = reliability.ece.map_or("–".into(), |ece| format!("{ece:.4}"));
    let body = format!(
        "<svg role=\"img\" aria-label=\"{title}: fraction of Good pairs against the predicted probability, ECE {ece}\" \
         viewBox=\"-10 -10 220 220\" width=\"100%\" height=\"320\">\
         <rect class=\"ground\" x=\"0\" y=\"0\" width=\"{SIDE}\" height=\"{SIDE}\"/>\
         <line class=\"whisker\" x1=\"0\" y1=\"{SIDE}\" x2=\"{SIDE}\" y2=\"0\"/>\
         <polyline class=\"line\" points=\"{}\"/>{dots}</svg>\n\
         <p class=\"scale steps\"><span>0</span><span>predicted P(Good), against the fraction of Good pairs</span><span>1</span></p>\n",
        line.join(" ")
    );
    figure(&format!("{title}, ECE {ece}"), &body)
}

fn bins(reliability: &Reliability) -> String {
    let percent = |value: Option<f64>| value.map_or("–".into(), |value| format!("{:.1} %", 100.0 * value));
    let width = 100 / reliability.bins.len().max(1);
    let row = |(at, bin): (usize, &Bin)| {
        format!(
            "<tr><th scope=\"row\">{} to {} %</th><td>{}</td><td>{}</td><td>{}</td></tr>\n",
            at * width,
            (at + 1) * width,
            bin.pairs,
            percent(bin.probability),
            percent(bin.good)
        )
    };
    let rows: String = reliability.bins.iter().enumerate().map(row).collect();
    let head = "<th scope=\"col\">Predicted</th><th scope=\"col\">Pairs</th><th scope=\"col\">Mean predicted</th>\
                <th scope=\"col\">Good</th>";
    table("Calibrated, by bin", head, &rows)
}

fn confusion(measurement: &JudgeMeasurement) -> String {
    let row = |(at, counts): (usize, &[u64; 4])| {
        let cells: String = counts.iter().map(|count| format!("<td>{count}</td>")).collect();
        format!("<tr><th scope=\"row\">judged L{}</th>{cells}</tr>\n", at + 1)
    };
    let rows: String = measurement.agreement.confusion.iter().enumerate().map(row).collect();
    let found: String = (1..=4).map(|level| format!("<th scope=\"col\">predicted L{level}</th>")).collect();
    table("Judged pairs", &format!("<th scope=\"col\">Level</th>{found}"), &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bin_is_drawn_where_it_lies_and_an_empty_one_is_not() {
        let pairs = [(0.25, false), (0.25, true), (0.9, true)];
        let html = reliability_plot("Calibrated", &Reliability::of(pairs.into_iter()));
        assert!(html.contains("points=\"50.0,100.0 180.0,0.0\""), "{html}");
        assert_eq!(html.matches("<circle").count(), 2);
        assert!(html.contains("2 pairs: predicted 25.0 %, observed 50.0 %"), "{html}");
        assert!(!reliability_plot("x", &Reliability::of(std::iter::empty())).contains("<circle"));
    }
}
