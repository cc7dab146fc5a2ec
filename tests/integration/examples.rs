//! The examples run, and show what they say.

#[path = "../../examples/embed.rs"]
#[allow(dead_code, reason = "its main is not called")]
mod embed;
#[path = "../../examples/own_judge.rs"]
#[allow(dead_code, reason = "its main is not called")]
mod own_judge;
#[path = "../../examples/own_objective.rs"]
#[allow(dead_code, reason = "its main is not called")]
mod own_objective;
#[path = "../../examples/search.rs"]
#[allow(dead_code, reason = "its main is not called")]
mod search;

use souk::domain::Level;

#[test]
fn embed_prints_a_similarity_for_each_item() {
    let similarities = embed::run(&souk_testing::golden("st_mean_dense")).unwrap();
    assert_eq!(similarities.len(), 2);
    assert!(similarities.iter().all(|(_, similarity)| (-1.0..=1.001).contains(similarity)), "{similarities:?}");
}

#[test]
fn own_objective_trains_three_steps_and_leaves_a_model() {
    let home = tempfile::tempdir().unwrap();
    let mut losses = Vec::new();
    let summary =
        own_objective::run(&souk_testing::golden("st_mean_dense"), home.path(), |loss| losses.push(loss)).unwrap();
    assert!(summary.finished && summary.step == 3, "{summary:?}");
    assert!(losses.len() == 3 && losses.iter().all(|loss| *loss > 0.0), "{losses:?}");
    assert!(home.path().join("run/config.json").exists());
}

#[test]
fn own_judge_rewards_the_item_that_shares_more_words() {
    let rewards = own_judge::run().unwrap();
    let [desk, wardrobe, jacket] = rewards[..] else { panic!("{rewards:?}") };
    let [desk, wardrobe, jacket] = [desk, wardrobe, jacket].map(Option::unwrap);
    assert!(desk.total > wardrobe.total && wardrobe.total > jacket.total, "{rewards:?}");
    assert_eq!((desk.level, jacket.level), (Level::L4, Level::L1));
}

#[test]
fn search_finds_the_item_that_a_query_means() {
    for (query, title) in
        [("wooden furniture", "a desk made of solid oak"), ("wet weather clothes", "a red rain jacket")]
    {
        let home = tempfile::tempdir().unwrap();
        let hits = search::run(&souk_testing::minilm(), &home.path().join("index"), query).unwrap();
        assert_eq!((hits.len(), hits[0].item.load().unwrap().title.as_str()), (2, title));
        assert!(hits[0].score > hits[1].score, "{hits:?}");
    }
}
