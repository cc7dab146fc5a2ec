//! Metrics of one query's hits, in percent.
//!
//! With G the query's Good items (L3, L4), as trec_eval and `ir_measures` count them:
//!
//! | metric | of the first k hits | `ir_measures` |
//! |---|---|---|
//! | `hitrate@k`, `recall@k` | Good ones / \|G\|; 0 where G is empty | `R(rel=3)@k` |
//! | `goodrate@k` | Good ones by judgement, else by the judge, / k | `P(rel=3)@k` where all are judged |
//! | `ndcg@k` | Σ level / log₂(rank + 1), over the same of the best order | `nDCG@k` |
//! | `mrr@k` | 1 / rank of the first Good one, else 0 | `RR(rel=3)@k` |
//! | `judged@k` | judged ones / hits there are; 0 without hits | `Judged@k` |
//! | `quality@k` | mean quality of those that have one | |
//! | `overlap@k` | those among the lexical channel's first k / hits there are | |
//!
//! The gain is the level, 1 to 4; unjudged items gain nothing. A query without Good items counts as 0 and is reported
//! separately, so it can be excluded. Undefined values are `None` and do not enter means.

use souk_io::domain::Level;

/// Cutoffs of the shallow and the wide metrics.
pub const TOP: usize = 10;
pub const WIDE: usize = 100;
/// Default number of hits per query.
pub const DEPTH: usize = 6000;
pub const NUM_METRICS: usize = 9;

/// Values of one query, in the order of `names`.
pub type Values = [Option<f64>; NUM_METRICS];

/// Metric names, deepest first.
pub fn names(depth: usize) -> [String; NUM_METRICS] {
    [
        format!("hitrate@{depth}"),
        format!("goodrate@{WIDE}"),
        format!("hitrate@{WIDE}"),
        format!("recall@{WIDE}"),
        format!("ndcg@{TOP}"),
        format!("mrr@{TOP}"),
        format!("judged@{WIDE}"),
        format!("quality@{WIDE}"),
        format!("overlap@{WIDE}"),
    ]
}

/// Indices of the metrics that are shown and compared; recall equals the hitrate.
pub const SHOWN: [usize; 8] = [0, 1, 2, 4, 5, 6, 7, 8];
/// Index of nDCG, which ranks queries from worst to best.
pub const NDCG: usize = 4;

/// Grades of the hit at one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HitGrades {
    /// From the data's judgements.
    pub judged: Option<Level>,
    /// From the judgements, else from the judge.
    pub graded: Option<Level>,
    /// 0 to 1.
    pub quality: Option<f32>,
    /// True if the item is among the first `WIDE` lexical hits.
    pub lexical: bool,
}

/// `hits`: best first, cut at the depth. `judged`: levels of all judged items of the query, found or not.
pub fn measure(hits: &[HitGrades], judged: &[Level]) -> Values {
    let num_good = judged.iter().filter(|level| level.is_good()).count();
    let wide = &hits[..hits.len().min(WIDE)];
    let found = hitrate(wide, num_good);
    [
        Some(hitrate(hits, num_good)),
        Some(percent(wide.iter().filter(|seen| seen.graded.is_some_and(Level::is_good)).count(), WIDE)),
        Some(found),
        Some(found),
        Some(ndcg(hits, judged)),
        Some(reciprocal_rank(hits)),
        Some(percent(wide.iter().filter(|seen| seen.judged.is_some()).count(), wide.len().max(1))),
        quality(wide),
        (!wide.is_empty()).then(|| percent(wide.iter().filter(|seen| seen.lexical).count(), wide.len())),
    ]
}

fn percent(part: usize, whole: usize) -> f64 {
    100.0 * part as f64 / whole as f64
}

fn hitrate(hits: &[HitGrades], num_good: usize) -> f64 {
    percent(hits.iter().filter(|seen| seen.judged.is_some_and(Level::is_good)).count(), num_good.max(1))
}

fn ndcg(hits: &[HitGrades], judged: &[Level]) -> f64 {
    let mut best: Vec<Level> = judged.to_vec();
    best.sort_unstable_by(|a, b| b.cmp(a));
    let ideal = gain(best.into_iter().map(Some));
    if ideal > 0.0 { 100.0 * gain(hits.iter().map(|seen| seen.judged)) / ideal } else { 0.0 }
}

fn gain(levels: impl Iterator<Item = Option<Level>>) -> f64 {
    let gains = levels.take(TOP).map(|level| level.map_or(0.0, |level| f64::from(level.number())));
    gains.enumerate().map(|(rank, gain)| gain / (rank as f64 + 2.0).log2()).sum()
}

fn reciprocal_rank(hits: &[HitGrades]) -> f64 {
    let first = hits.iter().take(TOP).position(|seen| seen.judged.is_some_and(Level::is_good));
    first.map_or(0.0, |rank| 100.0 / (rank as f64 + 1.0))
}

fn quality(wide: &[HitGrades]) -> Option<f64> {
    let known: Vec<f64> = wide.iter().filter_map(|seen| seen.quality.map(f64::from)).collect();
    (!known.is_empty()).then(|| 100.0 * known.iter().sum::<f64>() / known.len() as f64)
}

/// Mean of each metric over the queries that have a value, summed in query order.
pub fn means<'a>(rows: impl Iterator<Item = &'a Values>) -> Values {
    let (mut sums, mut counts) = ([0.0; NUM_METRICS], [0_usize; NUM_METRICS]);
    for values in rows {
        for (at, value) in values.iter().enumerate() {
            sums[at] += value.unwrap_or(0.0);
            counts[at] += usize::from(value.is_some());
        }
    }
    std::array::from_fn(|at| (counts[at] > 0).then(|| sums[at] / counts[at] as f64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use Level::{L1, L2, L3, L4};

    fn seen(level: Option<Level>) -> HitGrades {
        HitGrades { judged: level, graded: level, ..HitGrades::default() }
    }

    fn close(found: Option<f64>, expected: f64) {
        assert!((found.unwrap() - expected).abs() < 1e-9, "{found:?} is not {expected}");
    }

    #[test]
    fn values_by_hand() {
        // ranks 1 to 4: unjudged, L2, L4, and one that the judge grades L3; one judged L3 is never found
        let mut hits = vec![seen(None), seen(Some(L2)), seen(Some(L4)), seen(None)];
        hits[3].graded = Some(L3);
        hits[0].quality = Some(0.25);
        hits[1].quality = Some(0.5);
        hits[2].lexical = true;
        let [deep, goodrate, hitrate, recall, ndcg, mrr, judged, quality, overlap] = measure(&hits, &[L4, L2, L3]);
        for value in [deep, hitrate, recall] {
            close(value, 50.0);
        }
        close(goodrate, 2.0);
        let ideal = 4.0 + 3.0 / 3_f64.log2() + 2.0 / 2.0;
        close(ndcg, 100.0 * (2.0 / 3_f64.log2() + 4.0 / 2.0) / ideal);
        close(mrr, 100.0 / 3.0);
        close(judged, 50.0);
        close(quality, 37.5);
        close(overlap, 25.0);
    }

    #[test]
    fn each_metric_is_cut_where_its_name_says() {
        let mut hits = vec![seen(None); 200];
        hits[10] = seen(Some(L4));
        hits[100] = seen(Some(L4));
        let [deep, goodrate, hitrate, _, ndcg, mrr, judged, ..] = measure(&hits, &[L4, L4]);
        close(deep, 100.0);
        close(goodrate, 1.0);
        close(hitrate, 50.0);
        close(ndcg, 0.0);
        close(mrr, 0.0);
        close(judged, 1.0);
    }

    #[test]
    fn what_cannot_be_said_is_missing_and_left_out_of_means() {
        let nothing = measure(&[], &[L1]);
        assert_eq!(nothing[..7], [Some(0.0); 7]);
        assert_eq!(nothing[7..], [None, None]);
        let mut one = seen(Some(L1));
        one.quality = Some(0.5);
        let some = measure(&[one], &[L1]);
        assert_eq!(some[0], Some(0.0), "no Good item: counted as 0");
        close(some[4], 100.0);
        let means = means([nothing, some].iter());
        close(means[4], 50.0);
        close(means[7], 50.0);
        assert_eq!(super::means([nothing].iter())[7], None);
    }

    #[test]
    fn names_follow_the_order_of_values() {
        let names = names(DEPTH);
        assert_eq!(
            (names[0].as_str(), names[NDCG].as_str(), names[8].as_str()),
            ("hitrate@6000", "ndcg@10", "overlap@100")
        );
        assert!(SHOWN.iter().all(|at| !names[*at].starts_with("recall")) && SHOWN.len() + 1 == names.len());
    }
}
