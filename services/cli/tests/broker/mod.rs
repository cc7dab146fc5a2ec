//! Kafka topics for tests on a real broker.

use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;

/// Creates a topic with a name unique to this process.
pub fn topic(brokers: &str, name: &str, partitions: i32) -> String {
    let topic = format!("souk-{name}-{}", std::process::id());
    assert!(make(brokers, &topic, partitions));
    topic
}

/// Creates a topic. False while a topic of that name is still being deleted.
pub fn make(brokers: &str, topic: &str, partitions: i32) -> bool {
    let admin: AdminClient<DefaultClientContext> = client(brokers).create().unwrap();
    let new = NewTopic::new(topic, partitions, TopicReplication::Fixed(1));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let made = runtime.block_on(admin.create_topics(&[new], &AdminOptions::new())).unwrap();
    made.into_iter().all(|made| made.is_ok())
}

pub fn client(brokers: &str) -> ClientConfig {
    let mut client = ClientConfig::new();
    client.set("bootstrap.servers", brokers);
    client
}
