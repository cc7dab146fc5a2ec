//! Types of votes on two pages side by side, and of their summary.

use serde::{Deserialize, Serialize};
use souk::store::{Side, VoteVerdict};
use utoipa::ToSchema;

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VoteRequest {
    /// Chosen by the client; a vote sent twice counts once.
    #[schema(min_length = 1, max_length = 256, pattern = "^[^\\x00]*$")]
    pub id: String,
    /// Comparison that the vote is about. Without it, the vote counts for `left` and `right`, shown on those sides.
    #[schema(min_length = 1)]
    pub comparison: Option<String>,
    #[schema(min_length = 1, pattern = "^[^\\x00]*$")]
    pub query: String,
    #[schema(min_length = 1, max_length = 256, pattern = "^[^\\x00]*$")]
    pub left: String,
    #[schema(min_length = 1, max_length = 256, pattern = "^[^\\x00]*$")]
    pub right: String,
    /// Whether the page shown on the left is better, the same, or worse.
    #[schema(value_type = VerdictShape)]
    pub verdict: VoteVerdict,
    #[serde(default)]
    #[schema(max_items = 2000)]
    pub grades: Vec<GradeShape>,
    #[serde(default)]
    #[schema(pattern = "^[^\\x00]*$")]
    pub voter: String,
}

#[derive(ToSchema)]
#[schema(as = VoteVerdict, rename_all = "snake_case")]
#[expect(dead_code, reason = "describes what the library reads")]
pub enum VerdictShape {
    Good,
    Same,
    Bad,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GradeShape {
    #[schema(value_type = SideShape)]
    pub side: Side,
    pub item: String,
    pub good: bool,
}

#[derive(ToSchema)]
#[schema(as = Side, rename_all = "snake_case")]
#[expect(dead_code, reason = "describes what the library reads")]
pub enum SideShape {
    Left,
    Right,
}

/// Channel shown on each side.
#[derive(Serialize, ToSchema)]
pub struct VoteAnswer {
    pub counted: bool,
    pub left: String,
    pub right: String,
}

#[derive(Serialize, ToSchema)]
pub struct VotesAnswer {
    pub pairs: Vec<PairShape>,
}

/// Votes on one pair of channels, sorted by name. Rates are in percent with 95 % intervals; item rates use the votes
/// with grades. Values are null if nothing was counted.
#[derive(Serialize, ToSchema)]
pub struct PairShape {
    pub left: String,
    pub right: String,
    pub num_good: i64,
    pub num_same: i64,
    pub num_bad: i64,
    /// GSB: Good minus Bad over all votes, from -100 to 100.
    pub gsb: Option<f64>,
    pub gsb_interval: Option<[f64; 2]>,
    /// Votes that found the page at least as good as the other.
    pub left_goodrate: Option<f64>,
    pub left_goodrate_interval: Option<[f64; 2]>,
    pub right_goodrate: Option<f64>,
    pub right_goodrate_interval: Option<[f64; 2]>,
    pub left_items: i64,
    pub left_item_goodrate: Option<f64>,
    pub left_item_goodrate_interval: Option<[f64; 2]>,
    pub right_items: i64,
    pub right_item_goodrate: Option<f64>,
    pub right_item_goodrate_interval: Option<[f64; 2]>,
}
