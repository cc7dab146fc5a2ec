//! The search service: text in, items out, over HTTP, with a console for people.
//!
//! `shapes` are the request and response types; `hits`, `embedding`, `about`, `items`, `models`, `learning`, `catalogue_map`, `voting` are the
//! routes' handlers, and `state` is what they share; `routes` assembles them with the OpenAPI document (`openapi`). `registry`
//! reads and changes versions in the ledger, `webhook` tells another engine of them, `repeats` answers repeated writes, `events` logs searches and clicks, `background` runs periodic tasks.
//! `souk_http` has what every HTTP service needs; `souk::search` has model, index and journal. The caller of `run` owns
//! socket and shutdown.

mod about;
mod background;
mod catalogue_map;
mod console;
mod embedding;
mod events;
mod hits;
mod items;
mod learning;
mod limits;
mod models;
mod openapi;
mod registry;
mod repeats;
mod routes;
mod serve;
mod shapes;
mod state;
mod voting;
mod webhook;

pub use self::background::start;
pub use self::routes::router;
pub use self::serve::serve;
pub use self::state::SearchService;
