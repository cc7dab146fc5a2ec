//! The listwise loss: the model learns which items of a query come first, not only the level of each. A list is all pairs of a query
//! that are learned; its batch holds it whole.

use std::ops::Range;

use tch::{Kind, Tensor};

use super::head::{FAR, NUM_LEVELS};
use super::pairs::GradedPair;

/// Gains of the levels, as in nDCG.
const GAINS: [f32; NUM_LEVELS] = [0.0, 1.0, 3.0, 7.0];

/// Sorts pairs by query and returns the range of each query.
pub(super) fn by_query(pairs: &mut [GradedPair]) -> Vec<Range<usize>> {
    pairs.sort_by_key(|pair| pair.query);
    ranges(&pairs.iter().map(|pair| pair.query).collect::<Vec<_>>())
}

/// Ranges of equal queries that lie side by side.
fn ranges(queries: &[u32]) -> Vec<Range<usize>> {
    let mut from = 0;
    let lists = queries.chunk_by(|a, b| a == b).map(|list| {
        from += list.len();
        from - list.len()..from
    });
    lists.collect()
}

/// Lists cut into batches of up to `max_tokens` tokens; a longer list is a batch of its own.
pub(super) fn batches(lists: &[Range<usize>], tokens: impl Fn(usize) -> usize, max_tokens: usize) -> Vec<Vec<usize>> {
    let (mut batches, mut filled): (Vec<Vec<usize>>, usize) = (Vec::new(), 0);
    for list in lists {
        let more: usize = list.clone().map(&tokens).sum();
        match batches.last_mut().filter(|_| filled + more <= max_tokens) {
            Some(batch) => batch.extend(list.clone()),
            None => {
                batches.push(list.clone().collect());
                filled = 0;
            }
        }
        filled += more;
    }
    batches
}

/// Mean over the lists of −Σ gain_i / Σ gain · log softmax(s)_i. `outputs [b, 1]` are the scores of pairs, the pairs of a query side by
/// side; `queries` and `levels` (counted from 0) are theirs. A list without a gain teaches nothing; none if no list has one.
pub(super) fn loss(outputs: &Tensor, queries: &[u32], levels: &[i64]) -> Option<Tensor> {
    let mut lists = ranges(queries);
    lists.retain(|list| levels[list.clone()].iter().any(|level| *level > 0));
    let longest = lists.iter().map(ExactSizeIterator::len).max()?;
    let size = [lists.len() as i64, longest as i64];
    let num = lists.len() * longest;
    let (mut places, mut far, mut weights) = (vec![0_i64; num], vec![-FAR as f32; num], vec![0_f32; num]);
    for (row, list) in lists.iter().enumerate() {
        let total: f32 = levels[list.clone()].iter().map(|level| GAINS[*level as usize]).sum();
        for (column, place) in list.clone().enumerate() {
            let at = row * longest + column;
            (places[at], far[at]) = (place as i64, 0.0);
            weights[at] = GAINS[levels[place] as usize] / total / lists.len() as f32;
        }
    }
    let on_device = |tensor: Tensor| tensor.to_device(outputs.device());
    let scores = outputs.squeeze_dim(1).index_select(0, &on_device(Tensor::from_slice(&places))).view(size);
    let padded = scores + on_device(Tensor::from_slice(&far).view(size));
    let weights = on_device(Tensor::from_slice(&weights).view(size));
    Some(-(padded.log_softmax(1, Kind::Float) * weights).sum(Kind::Float))
}

#[cfg(test)]
mod tests {
    use super::*;
    use souk_io::domain::Level;

    #[test]
    fn the_loss_is_checked_by_hand() {
        // query 3: scores 1 and 0 with gains 7 and 3; query 5: no gain; query 4: scores 2, 0 and 1 with gains 0, 1 and 0
        let outputs = Tensor::from_slice(&[1.0_f32, 0.0, 9.0, 2.0, 0.0, 1.0]).unsqueeze(1).set_requires_grad(true);
        let (queries, levels) = ([3, 3, 5, 4, 4, 4], [3_i64, 2, 0, 0, 1, 0]);
        let found = loss(&outputs, &queries, &levels).unwrap();
        let first = (1.0_f64.exp() + 1.0).ln() - 0.7;
        let third = (2.0_f64.exp() + 1.0 + 1.0_f64.exp()).ln();
        assert!((found.double_value(&[]) - (first + third) / 2.0).abs() < 1e-6);
        found.backward();
        let gradient = Vec::<f32>::try_from(outputs.grad().squeeze_dim(1)).unwrap();
        let by_hand = 0.5 * (1.0_f32.exp() / (1.0_f32.exp() + 1.0) - 0.7);
        assert!((gradient[0] - by_hand).abs() < 1e-6 && gradient[2] == 0.0, "{gradient:?}");
        assert!(loss(&outputs, &queries, &[0; 6]).is_none());
    }

    #[test]
    fn lists_stay_whole() {
        let pair = |query, item| GradedPair { query, item, level: Level::L1, judged: true };
        let mut pairs = [pair(2, 0), pair(0, 1), pair(2, 2), pair(1, 3), pair(2, 4)];
        let lists = by_query(&mut pairs);
        assert_eq!(lists, [0..1, 1..2, 2..5]);
        assert_eq!(pairs.map(|pair| pair.item), [1, 3, 0, 2, 4]);
        assert_eq!(batches(&lists, |_| 10, 20), [vec![0, 1], vec![2, 3, 4]]);
        assert_eq!(batches(&lists, |_| 10, 40), [vec![0, 1], vec![2, 3, 4]]);
        assert_eq!(batches(&lists, |_| 10, 50), [vec![0, 1, 2, 3, 4]]);
    }
}
