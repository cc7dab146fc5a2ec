//! A retriever as a policy that picks an item for a query (Retrieval-GRPO, section 3), the clipped surrogate of GRPO, and the KL divergence
//! from a reference policy.
//!
//! ```text
//! log π(d|q) = s(q,d)/τ − log Σ_{d'∈S} exp(s(q,d')/τ)
//! ```
//!
//! Letters: b queries, n items of the support, g candidates.

use tch::{Kind, Tensor};

/// Log-probabilities `[b, n]` of scores `[b, n]`.
pub fn log_softmax(scores: &Tensor, temperature: f64) -> Tensor {
    (scores / temperature).log_softmax(1, Kind::Float)
}

/// `min(ρ A, clip(ρ, 1−ε, 1+ε) A)` for each candidate, with `ρ = exp(now − old)`; and where it was clipped.
pub fn clipped_surrogate(now: &Tensor, old: &Tensor, advantage: &Tensor, clip: f64) -> (Tensor, Tensor) {
    let ratio = (now - old).exp();
    let free = &ratio * advantage;
    let bound = ratio.clamp(1.0 - clip, 1.0 + clip) * advantage;
    let cut = bound.lt_tensor(&free);
    (free.minimum(&bound), cut)
}

/// `KL(π ‖ π_ref) = Σ π (log π − log π_ref)` over the support: `[b]`.
pub fn exact_kl(policy: &Tensor, reference: &Tensor) -> Tensor {
    (policy.exp() * (policy - reference)).sum_dim_intlist(1, false, Kind::Float)
}

/// Schulman's k3 estimate of the KL divergence from each candidate, never negative: `π_ref/π − log(π_ref/π) − 1`.
pub fn k3_kl(policy: &Tensor, reference: &Tensor) -> Tensor {
    let log_ratio = reference - policy;
    log_ratio.exp() - log_ratio - 1.0
}

/// Entropy `−Σ π log π`: `[b]`.
pub fn entropy(policy: &Tensor) -> Tensor {
    -(policy.exp() * policy).sum_dim_intlist(1, false, Kind::Float)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(x: &Tensor) -> Vec<f32> {
        Vec::try_from(x.view([-1])).unwrap()
    }

    #[test]
    fn the_clip_holds_back_what_went_far_enough_already() {
        let now = Tensor::from_slice(&[2.0_f32.ln(), 2.0_f32.ln(), 0.5_f32.ln(), 0.5_f32.ln(), 1.1_f32.ln()]);
        let advantage = Tensor::from_slice(&[1.0_f32, -1.0, 1.0, -1.0, 3.0]);
        let (value, cut) = clipped_surrogate(&now, &now.zeros_like(), &advantage, 0.2);
        let expected = [1.2, -2.0, 0.5, -0.8, 3.3];
        assert!(values(&value).iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-5), "{value}");
        assert_eq!(Vec::<bool>::try_from(&cut).unwrap(), [true, false, false, true, false]);
    }

    #[test]
    fn divergences_are_none_between_equals_and_those_of_the_formula_else() {
        let scores = Tensor::from_slice(&[0.3_f32, 0.1, -0.2]).unsqueeze(0);
        let policy = log_softmax(&scores, 0.5);
        assert!((policy.exp().sum(Kind::Float).double_value(&[]) - 1.0).abs() < 1e-6);
        assert_eq!(values(&exact_kl(&policy, &policy)), [0.0]);
        let other = log_softmax(&Tensor::from_slice(&[0.0_f32, 0.1, 0.4]).unsqueeze(0), 0.5);
        let (p, q) = (values(&policy.exp()), values(&other.exp()));
        let by_hand: f32 = p.iter().zip(&q).map(|(p, q)| p * (p / q).ln()).sum();
        assert!((values(&exact_kl(&policy, &other))[0] - by_hand).abs() < 1e-6);
        // its mean under the policy is the divergence
        let mean: f32 = values(&k3_kl(&policy, &other)).iter().zip(&p).map(|(k3, p)| k3 * p).sum();
        assert!((mean - by_hand).abs() < 1e-5 && values(&k3_kl(&policy, &other)).iter().all(|k3| *k3 >= 0.0));
        let by_hand: f32 = p.iter().map(|p| -p * p.ln()).sum();
        assert!((values(&entropy(&policy))[0] - by_hand).abs() < 1e-6);
    }
}
