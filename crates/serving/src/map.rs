//! Map of a catalogue: places vectors in the plane so that similar ones are close, with exact t-SNE (van der Maaten & Hinton 2008). It
//! begins at the two main directions of the vectors, so the same vectors give the same map.

use std::array;

/// Neighbors that each point attends to, on average.
const PERPLEXITY: f64 = 30.0;
const STEPS: usize = 400;
/// Steps in which similar points attract each other more, so that groups form.
const EARLY: usize = 120;
const EXAGGERATION: f32 = 12.0;
/// Halvings to find the width of each point's neighborhood.
const HALVINGS: usize = 50;
/// Multiplications that find a main direction.
const TURNS: usize = 30;

type Point = [f32; 2];

/// Positions from 0 to 1, one per vector. All vectors have the same length and are finite.
pub fn layout(vectors: &[Vec<f32>]) -> Vec<Point> {
    if vectors.len() < 3 {
        return (0..vectors.len()).map(|at| [at as f32, 0.5]).collect();
    }
    let mut places = main_directions(vectors);
    let affinities = affinities(vectors);
    descend(&mut places, &affinities);
    fit(&mut places);
    places
}

/// Coordinates along the two main directions, small enough that no point starts far out.
fn main_directions(vectors: &[Vec<f32>]) -> Vec<Point> {
    let (num, width) = (vectors.len(), vectors[0].len());
    let mean: Vec<f32> = (0..width).map(|at| vectors.iter().map(|row| row[at]).sum::<f32>() / num as f32).collect();
    let mut rows: Vec<Vec<f32>> =
        vectors.iter().map(|row| row.iter().zip(&mean).map(|(x, mean)| x - mean).collect()).collect();
    let coordinates: [Vec<f32>; 2] = array::from_fn(|axis| {
        // any start that is not orthogonal to the direction
        let mut direction: Vec<f32> = (0..width).map(|at| 1.0 + ((at * 7 + axis) % 11) as f32).collect();
        for _ in 0..TURNS {
            scale_to_unit(&mut direction);
            let along: Vec<f32> = rows.iter().map(|row| dot(row, &direction)).collect();
            direction = vec![0.0; width];
            for (row, along) in rows.iter().zip(along) {
                direction.iter_mut().zip(row).for_each(|(sum, x)| *sum += along * x);
            }
        }
        scale_to_unit(&mut direction);
        let along: Vec<f32> = rows.iter().map(|row| dot(row, &direction)).collect();
        for (row, along) in rows.iter_mut().zip(&along) {
            row.iter_mut().zip(&direction).for_each(|(x, direction)| *x -= along * direction);
        }
        along
    });
    let spread = (coordinates[0].iter().map(|x| x * x).sum::<f32>() / num as f32).sqrt().max(f32::MIN_POSITIVE);
    (0..num).map(|at| array::from_fn(|axis| 1e-2 * coordinates[axis][at] / spread)).collect()
}

fn scale_to_unit(direction: &mut [f32]) {
    let length = dot(direction, direction).sqrt().max(f32::MIN_POSITIVE);
    direction.iter_mut().for_each(|x| *x /= length);
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Symmetric matrix: how similar each two vectors are, as a distribution over all pairs.
fn affinities(vectors: &[Vec<f32>]) -> Vec<f32> {
    let num = vectors.len();
    let entropy = PERPLEXITY.min((num - 1) as f64 / 3.0).max(1.0).ln();
    let mut affinities = vec![0.0; num * num];
    for (at, row) in affinities.chunks_exact_mut(num).enumerate() {
        let distance =
            |other: &Vec<f32>| vectors[at].iter().zip(other).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>();
        neighborhood(at, &vectors.iter().map(distance).collect::<Vec<_>>(), entropy, row);
    }
    for at in 0..num {
        for other in 0..at {
            let both = (affinities[at * num + other] + affinities[other * num + at]) / (2 * num) as f32;
            (affinities[at * num + other], affinities[other * num + at]) = (both, both);
        }
    }
    affinities
}

/// Shares of the others in a point's neighborhood, as wide as its entropy asks.
fn neighborhood(at: usize, distances: &[f64], entropy: f64, shares: &mut [f32]) {
    let nearest = (0..distances.len()).filter(|other| *other != at).map(|other| distances[other]);
    let nearest = nearest.fold(f64::INFINITY, f64::min);
    let (mut low, mut high, mut narrowness) = (0.0, f64::INFINITY, 1.0);
    for _ in 0..HALVINGS {
        let (mut sum, mut weighted) = (0.0, 0.0);
        for (other, distance) in distances.iter().enumerate().filter(|(other, _)| *other != at) {
            let weight = (-(distance - nearest) * narrowness).exp();
            sum += weight;
            weighted += weight * (distance - nearest);
            shares[other] = weight as f32;
        }
        shares.iter_mut().for_each(|share| *share /= sum as f32);
        if sum.ln() + narrowness * weighted / sum > entropy {
            low = narrowness;
            narrowness = if high.is_finite() { f64::midpoint(low, high) } else { 2.0 * low };
        } else {
            high = narrowness;
            narrowness = f64::midpoint(low, high);
        }
    }
}

/// Gradient descent on the divergence between the similarities of the vectors and those in the plane.
fn descend(places: &mut [Point], affinities: &[f32]) {
    let num = places.len();
    let rate = (num as f32 / EXAGGERATION / 4.0).max(10.0);
    let (mut moves, mut gains) = (vec![[0.0; 2]; num], vec![[1.0_f32; 2]; num]);
    for step in 0..STEPS {
        let (attraction, momentum) = if step < EARLY { (EXAGGERATION, 0.5) } else { (1.0, 0.8) };
        let forces = forces(places, affinities, attraction);
        for (((place, of), gain), force) in places.iter_mut().zip(&mut moves).zip(&mut gains).zip(forces) {
            for axis in 0..2 {
                let is_steady = (force[axis] > 0.0) != (of[axis] > 0.0);
                gain[axis] = if is_steady { gain[axis] + 0.2 } else { (gain[axis] * 0.8).max(0.01) };
                of[axis] = momentum * of[axis] - rate * gain[axis] * force[axis];
                place[axis] += of[axis];
            }
        }
    }
}

/// Gradient of each point.
fn forces(places: &[Point], affinities: &[f32], attraction: f32) -> Vec<Point> {
    let num = places.len();
    let closeness = |a: &Point, b: &Point| 1.0 / (1.0 + (a[0] - b[0]).powi(2) + (a[1] - b[1]).powi(2));
    let mut total = 0.0_f64;
    let mut pulls = Vec::with_capacity(num);
    let mut pushes = Vec::with_capacity(num);
    for (place, row) in places.iter().zip(affinities.chunks_exact(num)) {
        let (mut pull, mut push, mut sum) = ([0.0; 2], [0.0; 2], 0.0_f32);
        for (other, affinity) in places.iter().zip(row) {
            let close = closeness(place, other);
            sum += close;
            for axis in 0..2 {
                let away = place[axis] - other[axis];
                pull[axis] += affinity * close * away;
                push[axis] += close * close * away;
            }
        }
        // without the point itself
        total += f64::from(sum - 1.0);
        pulls.push(pull);
        pushes.push(push);
    }
    let total = total as f32;
    let force =
        |(pull, push): (&Point, &Point)| array::from_fn(|axis| 4.0 * (attraction * pull[axis] - push[axis] / total));
    pulls.iter().zip(&pushes).map(force).collect()
}

/// Stretches the map to the unit square, the same way in both directions.
fn fit(places: &mut [Point]) {
    let ends = |axis: usize| {
        let values = places.iter().map(|place| place[axis]);
        (values.clone().fold(f32::INFINITY, f32::min), values.fold(f32::NEG_INFINITY, f32::max))
    };
    let (across, down) = (ends(0), ends(1));
    let size = (across.1 - across.0).max(down.1 - down.0).max(f32::MIN_POSITIVE);
    let middles = [f32::midpoint(across.0, across.1), f32::midpoint(down.0, down.1)];
    for place in places {
        *place = array::from_fn(|axis| (0.5 + (place[axis] - middles[axis]) / size).clamp(0.0, 1.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Vectors around `groups` directions, one after the other.
    fn vectors(num: usize, groups: usize) -> Vec<Vec<f32>> {
        let noise = |at: usize| ((at * 2_654_435_761 % 1000) as f32 / 1000.0 - 0.5) * 0.3;
        let entry = |row: usize, at: usize| if at == row % groups { 1.0 } else { noise(row * 31 + at) };
        (0..num).map(|row| (0..16).map(|at| entry(row, at)).collect()).collect()
    }

    fn distance(a: &Point, b: &Point) -> f32 {
        ((a[0] - b[0]).powi(2) + (a[1] - b[1]).powi(2)).sqrt()
    }

    #[test]
    fn neighbors_in_the_plane_are_of_one_group() {
        let places = layout(&vectors(200, 4));
        let nearest = |at: usize| {
            let others = (0..200).filter(|other| *other != at);
            others.min_by(|a, b| distance(&places[at], &places[*a]).total_cmp(&distance(&places[at], &places[*b])))
        };
        let right = (0..200).filter(|at| nearest(*at).unwrap() % 4 == at % 4).count();
        assert!(right >= 196, "{right} of 200");
        assert!(places.iter().flatten().all(|x| (0.0..=1.0).contains(x)));
        let width = places.iter().map(|place| place[0]).fold(0.0, f32::max);
        let height = places.iter().map(|place| place[1]).fold(0.0, f32::max);
        assert!(width.max(height) > 0.99, "it fills the square");
        assert_eq!(places, layout(&vectors(200, 4)), "the same vectors, the same map");
    }

    #[test]
    fn few_and_equal_vectors_have_places_too() {
        assert!(layout(&[]).is_empty());
        assert_eq!(layout(&vectors(2, 2)), [[0.0, 0.5], [1.0, 0.5]]);
        for num in [3, 4, 50] {
            let equal = vec![vec![0.5; 4]; num];
            assert!(layout(&equal).iter().flatten().all(|x| x.is_finite()), "{num}");
        }
    }

    #[test]
    fn a_neighborhood_has_the_entropy_asked_for() {
        let distances: Vec<f64> = (0..100).map(|at| f64::from(at) / 10.0).collect();
        let mut shares = vec![0.0; 100];
        neighborhood(0, &distances, 10.0_f64.ln(), &mut shares);
        let entropy: f64 = shares.iter().filter(|p| **p > 0.0).map(|p| f64::from(-p * p.ln())).sum();
        assert!((entropy.exp() - 10.0).abs() < 0.01, "{}", entropy.exp());
        assert_eq!(shares[0], 0.0);
    }
}
