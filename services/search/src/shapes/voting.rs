//! Votes on two pages side by side, and what they come to.

use serde::{Deserialize, Serialize};
use souk::store::{Side, Verdict};
use utoipa::ToSchema;

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VoteRequest {
    /// Chosen by whoever casts it; one that is sent twice counts once.
    #[schema(min_length = 1, max_length = 256, pattern = "^[^\\x00]*$")]
    pub id: String,
    /// Of the pages that were compared, and what the vote counts for; without it, left and right are, and were shown so.
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
    pub verdict: Verdict,
    #[serde(default)]
    #[schema(max_items = 2000)]
    pub grades: Vec<GradeShape>,
    #[serde(default)]
    #[schema(pattern = "^[^\\x00]*$")]
    pub voter: String,
}

#[derive(ToSchema)]
#[schema(as = Verdict, rename_all = "snake_case")]
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

/// What was shown on which side.
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

/// The votes on one pair of channels, by name, however it was asked for. Rates in percent with 95 % intervals, those of
/// items over the votes that graded them; nothing where nothing was counted.
#[derive(Serialize, ToSchema)]
pub struct PairShape {
    pub left: String,
    pub right: String,
    pub num_good: i64,
    pub num_same: i64,
    pub num_bad: i64,
    /// Good less Bad of all votes, from -100 to 100.
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
