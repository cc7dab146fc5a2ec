//! The search service: text in, items out, over HTTP, with a console for people.
//!
//! `shapes` are what is asked and answered; `hits`, `embedding`, `items`, `models`, `voting`, `state` are what is done with
//! it, route by route; `routes` puts them together with the document that describes them (`openapi`). `registry` is what the
//! ledger knows of versions, `events` writes searches and clicks down, `chores` happen by themselves. What every HTTP
//! service needs comes from `souk_http`; model, index and journal are `souk::search`. The caller of `run` owns socket and
//! shutdown.

mod chores;
mod console;
mod embedding;
mod events;
mod hits;
mod items;
mod models;
mod openapi;
mod registry;
mod routes;
mod serve;
mod shapes;
mod state;
mod voting;

pub use self::chores::start;
pub use self::routes::router;
pub use self::serve::serve;
pub use self::state::Service;
