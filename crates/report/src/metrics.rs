//! Metrics of one query's hits, in percent.
//!
//! With G the query's Good items (L3, L4), as trec_eval and `ir_measures` count them:
//!
//! | metric | of the first k hits | `ir_measures` |
//! |---|---|---|
//! | `hitrate@k`, `recall@k` | Good ones / \|G\|; 0 where G is empty | `R(rel=3)@k` |
//! | `goodrate@k` | Good ones by judgement, else by the judge, / k | `P(rel=3)@k` where all are judged |
//! | `ndcg@k` | Σ gain / log₂(rank + 1), over the same of the best order; gain 2^(level − 1) − 1 | `nDCG(gains={1:0,2:1,3:3,4:7})@k` |
//! | `mrr@k` | 1 / rank of the first Good one, else 0 | `RR(rel=3)@k` |
//! | `judged@k` | judged ones / hits there are; 0 without hits | `Judged@k` |
//! | `quality@k` | mean quality of those that have one | |
//! | `overlap@k` | those among the lexical channel's first k / hits there are | |
//! | `ndcg_linear@k` | nDCG whose gain is the level, so that L1 counts more than an unjudged item | `nDCG@k` |
//! | `ndcg_judged@k` | nDCG after the unjudged hits are taken out | `nDCG(gains=..., judged_only=True)@k` |
//! | `ordered@k` | pairs of judged items of different levels with the better one first; those that were not found come last | |
//! | `hitrate_exclusive@k` | Good ones that the lexical channel's first k lack / such items in G | |
//!
//! Unjudged items gain nothing. A query without Good items counts as 0 and is reported separately, so it can be excluded.
//! Undefined values are `None` and do not enter means: without a pair of different levels there is no order, for example.

use souk_io::domain::Level;

/// Cutoffs of the shallow and the wide metrics.
pub const TOP: usize = 10;
pub const WIDE: usize = 100;
/// Default number of hits per query.
pub const DEPTH: usize = 6000;
pub const NUM_METRICS: usize = 14;

/// Values of one query, in the order of `names`.
pub type Values = [Option<f64>; NUM_METRICS];

/// Metric names.
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
        format!("ndcg_linear@{TOP}"),
        format!("ndcg_judged@{TOP}"),
        format!("ordered@{depth}"),
        format!("judged@{TOP}"),
        format!("hitrate_exclusive@{depth}"),
    ]
}

/// Indices of the metrics that are compared unless others are named; recall equals the hitrate.
pub const SHOWN: [usize; 8] = [0, 1, 2, 4, 5, 6, 7, 8];
/// Indices of those that say how much to trust the others.
pub const DETAILS: [usize; 5] = [9, 10, 11, 12, 13];
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
    /// Place among the lexical channel's hits, counted from 0, if it is within the depth.
    pub lexical: Option<usize>,
}

/// Judgements of one query.
pub struct QueryGrades<'a> {
    /// Levels of all judged items, found or not.
    pub judged: &'a [Level],
    /// Number of Good items that the lexical channel finds within the depth.
    pub num_good_lexical: usize,
}

/// `hits`: best first, cut at the depth.
pub fn measure(hits: &[HitGrades], query: &QueryGrades<'_>) -> Values {
    let num_good = query.judged.iter().filter(|level| level.is_good()).count();
    let (top, wide) = (&hits[..hits.len().min(TOP)], &hits[..hits.len().min(WIDE)]);
    let found = hitrate(wide, num_good);
    let gains: Vec<Option<Level>> = hits.iter().map(|seen| seen.judged).collect();
    let condensed: Vec<Option<Level>> = gains.iter().copied().filter(Option::is_some).collect();
    let judged_share =
        |hits: &[HitGrades]| percent(hits.iter().filter(|seen| seen.judged.is_some()).count(), hits.len().max(1));
    [
        Some(hitrate(hits, num_good)),
        Some(percent(wide.iter().filter(|seen| seen.graded.is_some_and(Level::is_good)).count(), WIDE)),
        Some(found),
        Some(found),
        Some(ndcg(&gains, query.judged, Level::gain)),
        Some(reciprocal_rank(hits)),
        Some(judged_share(wide)),
        quality(wide),
        (!wide.is_empty()).then(|| percent(wide.iter().filter(|seen| seen.is_lexical(WIDE)).count(), wide.len())),
        Some(ndcg(&gains, query.judged, linear)),
        Some(ndcg(&condensed, query.judged, Level::gain)),
        ordered(&gains, query.judged),
        Some(judged_share(top)),
        exclusive(hits, num_good.saturating_sub(query.num_good_lexical)),
    ]
}

impl HitGrades {
    fn is_lexical(&self, depth: usize) -> bool {
        self.lexical.is_some_and(|place| place < depth)
    }
}

fn percent(part: usize, whole: usize) -> f64 {
    100.0 * part as f64 / whole as f64
}

fn hitrate(hits: &[HitGrades], num_good: usize) -> f64 {
    percent(hits.iter().filter(|seen| seen.judged.is_some_and(Level::is_good)).count(), num_good.max(1))
}

/// `num`: Good items that the lexical channel does not find.
fn exclusive(hits: &[HitGrades], num: usize) -> Option<f64> {
    let is_new = |seen: &&HitGrades| seen.judged.is_some_and(Level::is_good) && seen.lexical.is_none();
    (num > 0).then(|| percent(hits.iter().filter(is_new).count(), num))
}

fn linear(level: Level) -> f64 {
    f64::from(level.number())
}

fn ndcg(hits: &[Option<Level>], judged: &[Level], gain: fn(Level) -> f64) -> f64 {
    let discounted = |levels: &[Option<Level>]| -> f64 {
        let gains = levels.iter().take(TOP).map(|level| level.map_or(0.0, gain));
        gains.enumerate().map(|(rank, gain)| gain / (rank as f64 + 2.0).log2()).sum()
    };
    let mut best: Vec<Option<Level>> = judged.iter().copied().map(Some).collect();
    best.sort_unstable_by(|a, b| b.cmp(a));
    let ideal = discounted(&best);
    if ideal > 0.0 { 100.0 * discounted(hits) / ideal } else { 0.0 }
}

/// Share of the pairs of different levels whose better item comes first. A pair of which neither was found is half right.
fn ordered(hits: &[Option<Level>], judged: &[Level]) -> Option<f64> {
    let mut missing = count(judged.iter().copied());
    let all = missing;
    let (mut seen, mut right) = ([0_usize; 4], 0.0);
    for level in hits.iter().flatten() {
        let at = place(*level);
        right += seen[at + 1..].iter().sum::<usize>() as f64;
        seen[at] += 1;
        missing[at] -= 1;
    }
    for (at, num) in missing.into_iter().enumerate() {
        let (found, lost) = (seen[at + 1..].iter().sum::<usize>(), missing[at + 1..].iter().sum::<usize>());
        right += num as f64 * (found as f64 + lost as f64 / 2.0);
    }
    let num_pairs: usize = (0..4).map(|at| all[at] * all[at + 1..].iter().sum::<usize>()).sum();
    (num_pairs > 0).then(|| 100.0 * right / num_pairs as f64)
}

fn place(level: Level) -> usize {
    usize::from(level.number()) - 1
}

/// Number of items by level.
fn count(levels: impl Iterator<Item = Level>) -> [usize; 4] {
    let mut counts = [0; 4];
    levels.for_each(|level| counts[place(level)] += 1);
    counts
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

    fn measure(hits: &[HitGrades], judged: &[Level]) -> Values {
        super::measure(hits, &QueryGrades { judged, num_good_lexical: 0 })
    }

    #[test]
    fn values_by_hand() {
        // ranks 1 to 4: unjudged, L2, L4, and one that the judge grades L3; one judged L3 is never found
        let mut hits = vec![seen(None), seen(Some(L2)), seen(Some(L4)), seen(None)];
        hits[3].graded = Some(L3);
        hits[0].quality = Some(0.25);
        hits[1].quality = Some(0.5);
        hits[2].lexical = Some(99);
        hits[3].lexical = Some(100);
        let [
            deep,
            goodrate,
            hitrate,
            recall,
            ndcg,
            mrr,
            judged,
            quality,
            overlap,
            linear,
            condensed,
            ordered,
            top,
            new,
        ] = super::measure(&hits, &QueryGrades { judged: &[L4, L2, L3], num_good_lexical: 1 });
        for value in [deep, hitrate, recall] {
            close(value, 50.0);
        }
        close(goodrate, 2.0);
        let log3 = 3_f64.log2();
        close(ndcg, 100.0 * (1.0 / log3 + 7.0 / 2.0) / (7.0 + 3.0 / log3 + 1.0 / 2.0));
        close(linear, 100.0 * (2.0 / log3 + 4.0 / 2.0) / (4.0 + 3.0 / log3 + 2.0 / 2.0));
        close(condensed, 100.0 * (1.0 + 7.0 / log3) / (7.0 + 3.0 / log3 + 1.0 / 2.0));
        close(mrr, 100.0 / 3.0);
        close(judged, 50.0);
        close(top, 50.0);
        close(quality, 37.5);
        close(overlap, 25.0);
        // of L4 > L2, L4 > L3 and L3 > L2, the second: L4 was found and L3 was not
        close(ordered, 100.0 / 3.0);
        // the lexical channel lacks the L3 item, and nobody else found it
        close(new, 0.0);
    }

    #[test]
    fn pairs_that_nobody_found_are_half_right() {
        assert_eq!(measure(&[], &[L4, L1, L1])[11], Some(50.0));
        assert_eq!(measure(&[], &[L4, L4])[11], None);
        // L2 before L4 is wrong, either before the lost L1 is right, the lost L3 is below L4, and above L1 by half
        close(measure(&[seen(Some(L2)), seen(Some(L4))], &[L4, L3, L2, L1])[11], 100.0 * 3.5 / 6.0);
    }

    #[test]
    fn what_the_lexical_channel_finds_is_not_exclusive() {
        let mut hits = vec![seen(Some(L4)), seen(Some(L3)), seen(Some(L1))];
        hits[0].lexical = Some(7);
        let judged = [L4, L3, L3, L1];
        let exclusive =
            |num_good_lexical| super::measure(&hits, &QueryGrades { judged: &judged, num_good_lexical })[13];
        assert_eq!((exclusive(1), exclusive(3)), (Some(50.0), None));
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
        assert_eq!(nothing[7..9], [None, None]);
        let mut one = seen(Some(L1));
        one.quality = Some(0.5);
        let some = measure(&[one], &[L1]);
        assert_eq!(some[0], Some(0.0), "no Good item: counted as 0");
        close(some[NDCG], 0.0);
        close(some[9], 100.0);
        let means = means([nothing, some].iter());
        close(means[9], 50.0);
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
        let listed = SHOWN.iter().chain(&DETAILS);
        assert!(listed.clone().all(|at| !names[*at].starts_with("recall")) && listed.count() + 1 == names.len());
    }
}
