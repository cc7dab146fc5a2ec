//! `/votes`: votes on two pages side by side, and their summary.

use std::sync::Arc;
use std::time::SystemTime;

use axum::extract::{Request, State};
use axum::response::Response;
use souk::search::Comparison;
use souk::store::{Grade, Grades, PairVotes, Side, Vote, VoteVerdict};
use souk_http::{Fault, json_body, read};

use crate::SearchService;
use crate::events::log_vote;
use crate::limits::{MAX_NAME, check_text};
use crate::shapes::{ErrorResponses, GradeShape, PairShape, VoteAnswer, VoteRequest, VotesAnswer};

const MAX_GRADES: usize = 2000;
/// Normal quantile of a 95 % interval.
const Z: f64 = 1.959_964;

/// Cast a vote
#[utoipa::path(post, path = "/votes", tag = "votes", request_body = VoteRequest,
    responses((status = 200, body = VoteAnswer), ErrorResponses), security(("key" = [])))]
pub async fn cast(State(service): State<Arc<SearchService>>, request: Request) -> Result<Response, Fault> {
    let request: VoteRequest = read(request).await?;
    let max_text = service.settings().bounds.max_text;
    let texts = [
        ("query", &request.query, 1, max_text),
        ("voter", &request.voter, 0, max_text),
        ("id", &request.id, 1, MAX_NAME),
        ("left", &request.left, 1, MAX_NAME),
        ("right", &request.right, 1, MAX_NAME),
    ];
    for (field, text, min, max) in texts {
        check_text(field, text, min, max)?;
        if text.contains('\0') {
            return Err(Fault::unprocessable(field, "contains a NUL character"));
        }
    }
    if request.grades.len() > MAX_GRADES {
        return Err(Fault::unprocessable("grades", format!("has more than {MAX_GRADES} grades")));
    }
    let (vote, is_swapped) = to_vote(request)?;
    let appended = async { Ok(service.registry.ledger().await?.append_votes(std::slice::from_ref(&vote)).await?) };
    let counted = service.in_time(appended).await? > 0;
    if counted {
        log_vote(&service, &vote);
    }
    let (left, right) = if is_swapped { (vote.right, vote.left) } else { (vote.left, vote.right) };
    Ok(json_body(&VoteAnswer { counted, left, right }))
}

/// Vote, and whether the requested left page was shown on the right. The comparison says what was compared.
fn to_vote(mut request: VoteRequest) -> Result<(Vote, bool), Fault> {
    let Some(name) = &request.comparison else { return Ok((vote(request, false), false)) };
    let unknown = || Fault::not_found("`comparison` is not one that /compare returned: send what its answer has");
    let comparison = Comparison::parse(name).ok_or_else(unknown)?;
    let is_swapped = comparison.is_swapped();
    (request.left, request.right) = (comparison.left, comparison.right);
    Ok((vote(request, is_swapped), is_swapped))
}

/// Vote for the ledger, with the sides as requested.
fn vote(request: VoteRequest, is_swapped: bool) -> Vote {
    let verdict = match (request.verdict, is_swapped) {
        (VoteVerdict::Good, true) => VoteVerdict::Bad,
        (VoteVerdict::Bad, true) => VoteVerdict::Good,
        (verdict, _) => verdict,
    };
    let side = |side| match (side, is_swapped) {
        (Side::Left, true) => Side::Right,
        (Side::Right, true) => Side::Left,
        (side, false) => side,
    };
    let grade = |GradeShape { side: shown, item, good }| Grade { side: side(shown), item, good };
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Vote {
        id: request.id,
        query: request.query,
        left: request.left,
        right: request.right,
        verdict,
        grades: request.grades.into_iter().map(grade).collect(),
        voter: request.voter,
        cast_at: since.as_millis() as i64,
    }
}

/// Summarize the votes for each pair of channels
#[utoipa::path(get, path = "/votes/summary", tag = "votes",
    responses((status = 200, body = VotesAnswer), ErrorResponses), security(("key" = [])))]
pub async fn summary(State(service): State<Arc<SearchService>>) -> Result<Response, Fault> {
    let summarised = async { Ok(service.registry.ledger().await?.summarise_votes().await?) };
    let pairs = service.in_time(summarised).await?;
    Ok(json_body(&VotesAnswer { pairs: pairs.into_iter().map(pair_shape).collect() }))
}

fn pair_shape(votes: PairVotes) -> PairShape {
    let PairVotes { num_good, num_same, num_bad, .. } = votes;
    let all = num_good + num_same + num_bad;
    let gsb = gsb(num_good, num_same, num_bad);
    let (left, right) = (rate(num_good + num_same, all), rate(num_bad + num_same, all));
    let (left_items, right_items) = (item_rate(&votes.left_grades), item_rate(&votes.right_grades));
    PairShape {
        left: votes.left,
        right: votes.right,
        num_good,
        num_same,
        num_bad,
        gsb: gsb.map(|(value, _)| value),
        gsb_interval: gsb.map(|(_, interval)| interval),
        left_goodrate: left.map(|(value, _)| value),
        left_goodrate_interval: left.map(|(_, interval)| interval),
        right_goodrate: right.map(|(value, _)| value),
        right_goodrate_interval: right.map(|(_, interval)| interval),
        left_items: votes.left_grades.num_items,
        left_item_goodrate: left_items.map(|(value, _)| value),
        left_item_goodrate_interval: left_items.map(|(_, interval)| interval),
        right_items: votes.right_grades.num_items,
        right_item_goodrate: right_items.map(|(value, _)| value),
        right_item_goodrate_interval: right_items.map(|(_, interval)| interval),
    }
}

/// Rate in percent, with its interval.
fn rate(good: i64, all: i64) -> Option<(f64, [f64; 2])> {
    (all > 0).then(|| wilson(good as f64, all as f64))
}

/// Rate of graded items that are good. Ten grades of one page carry less information than ten votes, so the interval
/// uses the effective number of items: as many independent items as would give the observed variance between votes
/// (Korn and Graubard: Confidence intervals for proportions with small expected number of positive counts estimated
/// from survey data, 1998). If the votes do not differ, that variance is unknown, and each vote counts as one item.
fn item_rate(grades: &Grades) -> Option<(f64, [f64; 2])> {
    let Grades { num_items, num_good, num_votes, items_squared, good_squared, good_by_items } = *grades;
    if num_items == 0 {
        return None;
    }
    let (items, votes) = (num_items as f64, num_votes as f64);
    let p = num_good as f64 / items;
    // sum over votes of (good - p items)²: variance of a ratio estimator
    let residuals = good_squared as f64 - 2.0 * p * good_by_items as f64 + p * p * items_squared as f64;
    let variance = residuals * votes / (votes - 1.0) / (items * items);
    let are_alike = num_votes < 2 || residuals < 1e-9 * items_squared as f64;
    let effective = if are_alike { votes } else { (p * (1.0 - p) / variance).min(items) };
    Some(wilson(p * effective, effective))
}

/// Wilson score interval, in percent.
fn wilson(good: f64, all: f64) -> (f64, [f64; 2]) {
    let p = good / all;
    let spread = Z * (p * (1.0 - p) / all + Z * Z / (4.0 * all * all)).sqrt();
    let (middle, scale) = (p + Z * Z / (2.0 * all), 100.0 / (1.0 + Z * Z / all));
    (100.0 * p, [(middle - spread) * scale, (middle + spread) * scale])
}

/// GSB: Good minus Bad over all votes, in points. A Same counts as half a Good and half a Bad, which makes the interval
/// no narrower than it should be.
fn gsb(good: i64, same: i64, bad: i64) -> Option<(f64, [f64; 2])> {
    let all = good + same + bad;
    (all > 0).then(|| {
        let (percent, interval) = wilson(good as f64 + same as f64 / 2.0, all as f64);
        let points = |percent: f64| 2.0 * percent - 100.0;
        (points(percent), interval.map(points))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_intervals_match_the_formulas() {
        // Wilson, 8 of 10: 0.4901 to 0.9433 (Newcombe 1998, method 3)
        let (value, [low, high]) = rate(8, 10).unwrap();
        assert!(
            (value - 80.0).abs() < 1e-9 && (low - 49.02).abs() < 0.01 && (high - 94.33).abs() < 0.01,
            "{low} {high}"
        );
        assert_eq!(rate(0, 0), None);
        let (value, [low, high]) = gsb(30, 50, 20).unwrap();
        // Wilson, 55 of 100: 45.24 to 64.39
        assert!(
            (value - 10.0).abs() < 1e-9 && (low + 9.51).abs() < 0.01 && (high - 28.77).abs() < 0.01,
            "{low} {high}"
        );
        let (_, [low, _]) = gsb(1, 0, 0).unwrap();
        assert!(low < 0.0, "one vote proves nothing");
        assert_eq!(gsb(0, 0, 0), None);
    }

    #[test]
    fn item_rate_accounts_for_clustered_grades() {
        let grades = |votes: &[(i64, i64)]| {
            let sum = |of: fn(i64, i64) -> i64| votes.iter().map(|(good, items)| of(*good, *items)).sum();
            Grades {
                num_items: sum(|_, items| items),
                num_good: sum(|good, _| good),
                num_votes: votes.len() as i64,
                items_squared: sum(|_, items| items * items),
                good_squared: sum(|good, _| good * good),
                good_by_items: sum(|good, items| good * items),
            }
        };
        // all or nothing: ten votes of ten items carry the information of ten items
        let pages: Vec<(i64, i64)> = (0..10).map(|vote| (10 * (vote % 2), 10)).collect();
        let (value, [low, high]) = item_rate(&grades(&pages)).unwrap();
        // by hand: variance 10/9 · 10 · 25 / 100² = 1/36, so 0.25 · 36 = 9 items; Wilson of 4.5 of 9
        let (_, by_hand) = wilson(4.5, 9.0);
        assert!((value - 50.0).abs() < 1e-9 && (low - by_hand[0]).abs() < 1e-6 && (high - by_hand[1]).abs() < 1e-6);
        // one item per vote: wider than independent draws by 1 / (n - 1)
        let single: Vec<(i64, i64)> = (0..100).map(|vote| (i64::from(vote < 80), 1)).collect();
        let (_, [low, high]) = item_rate(&grades(&single)).unwrap();
        let (_, plain) = wilson(80.0, 100.0);
        assert!((low - plain[0]).abs() < 0.1 && (high - plain[1]).abs() < 0.1, "{low} {high}, not {plain:?}");
        // identical votes: as precise as the number of votes
        assert_eq!(item_rate(&grades(&[(10, 10); 3])), rate(3, 3));
        assert_eq!(item_rate(&grades(&[(7, 10)])).map(|(value, _)| value), Some(70.0));
        assert_eq!(item_rate(&Grades::default()), None);
    }

    #[test]
    fn vote_on_swapped_pages_is_mirrored() {
        let request = |verdict| VoteRequest {
            id: "1".into(),
            comparison: None,
            query: "desk".into(),
            left: "dense".into(),
            right: "lexical".into(),
            verdict,
            grades: vec![GradeShape { side: Side::Left, item: "a".into(), good: true }],
            voter: String::new(),
        };
        let turned = vote(request(VoteVerdict::Good), true);
        assert_eq!((turned.verdict, turned.grades[0].side), (VoteVerdict::Bad, Side::Right));
        assert_eq!(turned.left, "dense");
        assert_eq!(vote(request(VoteVerdict::Same), true).verdict, VoteVerdict::Same);
        assert_eq!(vote(request(VoteVerdict::Bad), false).verdict, VoteVerdict::Bad);
    }
}
