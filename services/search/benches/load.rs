//! Load test of a running service: reports how it answered, at a number of connections and optionally at a fixed rate.
//!
//! `cargo bench -p souk-search --bench load -- ADDRESS ROUTE BODIES CONNECTIONS SECONDS [RATE]`, where BODIES is a file
//! with one request body per line.

#![expect(clippy::print_stdout, reason = "a bench prints its results")]

mod requests;

use std::sync::Arc;
use std::time::Duration;

use requests::{LoadPlan, run};

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let [address, route, bodies, connections, seconds, rest @ ..] = arguments.as_slice() else {
        println!("usage: ADDRESS ROUTE BODIES CONNECTIONS SECONDS [RATE]");
        return;
    };
    let bodies: Vec<String> =
        std::fs::read_to_string(bodies).expect("the file of bodies").lines().map(str::to_owned).collect();
    let plan = LoadPlan {
        address: address.parse().expect("an address"),
        route: format!("POST {route}"),
        bodies: Arc::new(bodies),
        connections: connections.parse().expect("a number of connections"),
        rate: rest.first().map(|rate| rate.parse().expect("requests a second")),
        time: Duration::from_secs_f64(seconds.parse().expect("seconds")),
    };
    println!("{}", run(&plan).await.summary());
}
