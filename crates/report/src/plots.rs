//! Charts as inline SVG: bars with intervals, and curves. A chart scales to its container; labels are HTML text beside it, so
//! they keep their size on a phone.

use super::html::{escape, figure};
use super::significance::Interval;

/// Maximum points of a curve; more are averaged.
const MAX_POINTS: usize = 400;

/// Maximum columns of a stacked chart; more are averaged.
const MAX_COLUMNS: usize = 24;

/// Bar for a percentage.
pub struct Bar<'a> {
    pub name: &'a str,
    /// Index of the colour.
    pub colour: usize,
    pub value: Option<f64>,
    pub interval: Option<Interval>,
}

/// Groups of bars on a common scale from 0 to `most` percent.
pub fn bars(title: &str, groups: &[(String, Vec<Bar<'_>>)]) -> String {
    let highest =
        groups.iter().flat_map(|(_, bars)| bars).map(|bar| bar.interval.map_or(bar.value.unwrap_or(0.0), |i| i[1]));
    let most = round_up(highest.fold(0.0, f64::max));
    // one grid, so that all bars get the same width
    let mut html = String::from("<div class=\"bars\">\n");
    for (heading, bars) in groups {
        html += &format!("<h4>{}</h4>\n", escape(heading));
        bars.iter().for_each(|drawn| html += &bar(drawn, most));
    }
    html += &format!("<p class=\"scale\"><span>0</span><span>{most} %</span></p>\n</div>\n");
    figure(title, &html)
}

fn bar(bar: &Bar<'_>, most: f64) -> String {
    let share = |value: f64| format!("{:.2}%", 100.0 * value / most);
    let (name, colour) = (escape(bar.name), bar.colour);
    let said = said(bar.value, bar.interval);
    let mut svg = String::from("<rect class=\"ground\" x=\"0\" y=\"2\" width=\"100%\" height=\"14\" rx=\"2\"/>");
    if let Some(value) = bar.value {
        let width = share(value.max(0.0));
        svg += &format!("<rect class=\"c{colour}\" x=\"0\" y=\"2\" width=\"{width}\" height=\"14\" rx=\"2\"/>");
    }
    if let Some([low, high]) = bar.interval {
        let (low, high) = (share(low), share(high));
        svg += &format!("<line class=\"whisker\" x1=\"{low}\" x2=\"{high}\" y1=\"9\" y2=\"9\"/>");
        for end in [low, high] {
            svg += &format!("<line class=\"whisker\" x1=\"{end}\" x2=\"{end}\" y1=\"5\" y2=\"13\"/>");
        }
    }
    format!(
        "<span class=\"name\"><bdi>{name}</bdi></span>\
         <svg role=\"img\" aria-label=\"{name}: {said}\" width=\"100%\" height=\"18\">{svg}</svg>\
         <span class=\"number\">{said}</span>\n"
    )
}

/// Formats a value with its interval.
pub fn said(value: Option<f64>, interval: Option<Interval>) -> String {
    match (value, interval) {
        (Some(value), Some([low, high])) => format!("{value:.1} [{low:.1}, {high:.1}]"),
        (Some(value), None) => format!("{value:.1}"),
        _ => "–".into(),
    }
}

/// Upper end of a percentage scale.
fn round_up(most: f64) -> f64 {
    [5.0, 10.0, 20.0, 40.0, 60.0, 80.0].into_iter().find(|end| most <= *end).unwrap_or(100.0)
}

/// Curve over steps.
pub fn curve(title: &str, points: &[(f64, f64)]) -> String {
    let Some((begin, last)) = points.first().zip(points.last()) else { return String::new() };
    let (begin, last) = (begin.0, last.0);
    let points = thinned(points);
    let (first_value, last_value) = (points[0].1, points[points.len() - 1].1);
    let ends = |values: &mut dyn Iterator<Item = f64>| {
        values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)))
    };
    let (low, high) = ends(&mut points.iter().map(|(_, value)| *value));
    let part = |value: f64, low: f64, high: f64| if high > low { (value - low) / (high - low) } else { 0.5 };
    let place = |(step, value): &(f64, f64)| {
        format!("{:.2},{:.2}", 1000.0 * part(*step, begin, last), 190.0 - 180.0 * part(*value, low, high))
    };
    let line: Vec<String> = points.iter().map(place).collect();
    let grid: String =
        [10, 100, 190].map(|y| format!("<line class=\"grid\" x1=\"0\" x2=\"1000\" y1=\"{y}\" y2=\"{y}\"/>")).concat();
    let (at_begin, at_end) = (short(first_value), short(last_value));
    let label = format!("{}: from {at_begin} at step {begin} to {at_end} at step {last}", escape(title));
    // the round line ends draw a zero-length line as a point
    let line = if line.len() == 1 { vec![line[0].clone(); 2] } else { line };
    let body = format!(
        "<div class=\"curve\"><div class=\"ends\"><span>{}</span><span>{}</span></div>\
         <svg role=\"img\" aria-label=\"{label}\" viewBox=\"0 0 1000 200\" preserveAspectRatio=\"none\" width=\"100%\" height=\"160\">\
         {grid}<polyline class=\"line\" points=\"{}\"/></svg></div>\n\
         <p class=\"scale steps\"><span>step {}</span><span>step {}</span></p>\n",
        short(high),
        short(low),
        line.join(" "),
        begin,
        last
    );
    figure(&format!("{title}, {at_end} at the end"), &body)
}

/// Stacked chart of the fractions of L1 to L4 over steps.
pub fn levels(title: &str, points: &[(f64, [f64; 4])]) -> String {
    const COLOURS: [usize; 4] = [1, 4, 0, 2];
    let Some((begin, last)) = points.first().zip(points.last()) else { return String::new() };
    let together = points.len().div_ceil(MAX_COLUMNS).max(1);
    let columns: Vec<[f64; 4]> = points
        .chunks(together)
        .map(|part| std::array::from_fn(|l| part.iter().map(|(_, shares)| shares[l]).sum::<f64>() / part.len() as f64))
        .collect();
    let width = 1000.0 / columns.len() as f64;
    let (mut svg, mut legend) = (String::new(), String::new());
    for (at, shares) in columns.iter().enumerate() {
        let mut top = 200.0;
        for (share, colour) in shares.iter().zip(COLOURS) {
            top -= 200.0 * share;
            let (x, width, height) = (at as f64 * width, width * 0.92, 200.0 * share);
            svg += &format!(
                "<rect class=\"c{colour}\" x=\"{x:.2}\" y=\"{top:.2}\" width=\"{width:.2}\" height=\"{height:.2}\"/>"
            );
        }
    }
    for (level, colour) in COLOURS.iter().enumerate() {
        let (from, to) = (100.0 * columns[0][level], 100.0 * columns[columns.len() - 1][level]);
        let number = level + 1;
        legend += &format!("<li><span class=\"swatch b{colour}\"></span> L{number}: {from:.0} % to {to:.0} %</li>\n");
    }
    let body = format!(
        "<ul class=\"legend\">\n{legend}</ul>\n<div class=\"curve\"><div class=\"ends\"><span>100 %</span><span>0</span></div>\
         <svg role=\"img\" aria-label=\"{}\" viewBox=\"0 0 1000 200\" preserveAspectRatio=\"none\" width=\"100%\" \
         height=\"160\">{svg}</svg></div>\n<p class=\"scale steps\"><span>step {}</span><span>step {}</span></p>\n",
        escape(title),
        begin.0,
        last.0
    );
    figure(title, &body)
}

/// Averages neighbours if there are more points than can be shown.
fn thinned(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let together = points.len().div_ceil(MAX_POINTS).max(1);
    let mean = |part: &[(f64, f64)]| {
        let num = part.len() as f64;
        (part[part.len() - 1].0, part.iter().map(|(_, value)| value).sum::<f64>() / num)
    };
    points.chunks(together).map(mean).collect()
}

/// Formats a number with four significant digits.
fn short(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        size if !(1e-3..1e5).contains(&size) => format!("{value:.2e}"),
        size if size < 1.0 => format!("{value:.4}"),
        size if size < 100.0 => format!("{value:.2}"),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_as_long_as_its_share_of_the_scale() {
        let bar = Bar { name: "a<b", colour: 1, value: Some(20.0), interval: Some([10.0, 30.0]) };
        let html = bars("hitrate", &[("all".into(), vec![bar])]);
        assert!(html.contains("class=\"c1\" x=\"0\" y=\"2\" width=\"50.00%\""), "a scale to 40: {html}");
        assert!(html.contains("x1=\"25.00%\" x2=\"75.00%\"") && html.contains("a&lt;b: 20.0 [10.0, 30.0]"), "{html}");
        let missing = Bar { name: "a", colour: 0, value: None, interval: None };
        assert!(bars("quality", &[("all".into(), vec![missing])]).contains("–"));
    }

    #[test]
    fn a_curve_goes_from_corner_to_corner() {
        let html = curve("Loss", &[(1.0, 4.0), (2.0, 3.0), (3.0, 2.0)]);
        assert!(html.contains("points=\"0.00,10.00 500.00,100.00 1000.00,190.00\""), "{html}");
        assert!(html.contains("from 4.00 at step 1 to 2.00 at step 3"), "{html}");
        assert!(curve("Loss", &[]).is_empty());
        assert!(curve("Loss", &[(1.0, 4.0)]).contains("points=\"500.00,100.00 500.00,100.00\""));
        let many: Vec<(f64, f64)> = (0..1000).map(|step| (f64::from(step), 1.0)).collect();
        assert_eq!(thinned(&many).len(), 334);
        assert_eq!(thinned(&many)[0], (2.0, 1.0));
    }

    #[test]
    fn shares_stand_on_each_other() {
        let html = levels("Levels", &[(1.0, [0.5, 0.25, 0.25, 0.0]), (2.0, [0.0, 0.0, 0.0, 1.0])]);
        assert!(html.contains("x=\"0.00\" y=\"100.00\" width=\"460.00\" height=\"100.00\""), "{html}");
        assert!(html.contains("L4: 0 % to 100 %") && levels("Levels", &[]).is_empty());
    }

    #[test]
    fn numbers_are_short() {
        let said: Vec<String> = [0.0, 1e-5, 0.5, 2.345, 812.3, 2e6].into_iter().map(short).collect();
        assert_eq!(said, ["0", "1.00e-5", "0.5000", "2.35", "812", "2.00e6"]);
    }
}
