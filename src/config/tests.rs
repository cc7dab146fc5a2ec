//! Configuration files, overrides and their errors.

use super::*;
fn load(sets: &[&str]) -> Result<Config> {
    let changes = sets.iter().map(|set| Change::parse(set)).collect::<Result<Vec<_>>>()?;
    Config::load(None, &changes)
}

#[test]
fn overrides_are_typed_and_reach_any_depth() {
    let config = load(&["model.path=models/a b", "encoder.dimensions=128", "model.precision=int8"]).unwrap();
    assert_eq!(config.model.path.as_deref(), Some("models/a b"));
    assert_eq!(config.encoder.dimensions, Some(128));
    assert_eq!(config.model.precision, Precision::Int8);
}

#[test]
fn a_name_with_dots_stands_in_quotes() {
    let config = load(&["log.properties.\"session.timeout.ms\"=\"1500\"", "log.follow=true"]).unwrap();
    assert_eq!(config.log.properties["session.timeout.ms"], "1500");
    assert!(config.log.follow);
}

#[test]
fn an_unknown_name_or_a_wrong_value_is_refused_by_name() {
    for (set, named) in [
        ("model.pth=x", "pth"),
        ("model.precision=f64", "f64"),
        ("model", "name.name=value"),
        ("worker.queue_texts=-1", "--set worker.queue_texts=-1: `worker.queue_texts`"),
        ("model=3", "--set model=3: `model`"),
        ("a..b=3", "name.name=value"),
    ] {
        let error = load(&[set]).unwrap_err().to_string();
        assert!(error.contains(named), "{set}: {error}");
    }
}

#[test]
fn an_old_name_is_rejected_with_the_new_one() {
    for (set, message) in [
        ("train.most_steps=3", "`train.most_steps` is now `train.max_steps`"),
        ("candidates.reach=3", "`candidates.reach` is now `candidates.num_neighbors`"),
        ("reward.asks=3", "`reward.asks` is now `reward.max_attempts`"),
        ("trainer.pace={least_examples=3}", "`trainer.pace.least_examples` is now `trainer.pace.min_examples`"),
        ("trainer.stage=[{pace={least_examples=3}}]", "is now `trainer.stage.pace.min_examples`"),
    ] {
        let error = load(&[set]).unwrap_err().to_string();
        assert!(error.contains(message) && error.contains(set), "{set}: {error}");
    }
}

#[test]
fn no_error_and_no_written_configuration_shows_a_password() {
    let url = "postgres://souk:secret@db/souk";
    let config = load(&[&format!("store.database={url}"), "store.cache=redis://:secret@cache/0"]).unwrap();
    assert!(!format!("{config:?}").contains("secret"));
    assert!(!toml::to_string(&config.store).unwrap().contains("secret"));
    for set in [format!("store={url}"), format!("store.cache_bytes={url}"), format!("store.database=[\"{url}\"]")] {
        let error = load(&[&set]).unwrap_err().to_string();
        assert!(error.contains("store") && !error.contains("secret"), "{error}");
    }
}

#[test]
fn a_flag_is_text_whatever_it_looks_like() {
    for name in ["1e5", "mode\u{301}le", "a \"b\"", "true"] {
        let config = Config::load(None, &[Change::text("model.path", "--model", name)]).unwrap();
        assert_eq!(config.model.path.as_deref(), Some(name));
    }
}

#[test]
fn a_stage_is_its_file_and_changes_on_top_of_the_trainers() {
    let home = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(home.path().join(name), text).unwrap();
    write("trainer.toml", "[model]\npath = \"a\"\nprecision = \"bf16\"\n[train]\nbatch = 8\nepochs = 3\n");
    write("sft.toml", "[model]\npath = \"b\"\n[train]\nbatch = 16\n");
    let changes = [Change::parse("train.seed=5").unwrap()];
    let config = Config::load(Some(&home.path().join("trainer.toml")), &changes).unwrap();
    let stage = |config: Option<&str>, set: &str| StageSettings {
        name: "x".into(),
        config: config.map(PathBuf::from),
        set: vec![set.into()],
        pace: None,
    };
    let sft = config.of_stage(&stage(Some("sft.toml"), "train.batch=32"), "served").unwrap();
    assert_eq!((sft.train.batch, sft.train.epochs, sft.train.seed), (32, 3.0, 5));
    assert_eq!((sft.model.path.as_deref(), sft.model.precision), (Some("served"), Precision::Bf16));
    let plain = config.of_stage(&stage(None, "train.epochs=1"), "served").unwrap();
    assert_eq!((plain.train.batch, plain.train.epochs), (8, 1.0));
    let error = config.of_stage(&stage(Some("gone.toml"), "train.epochs=1"), "m").unwrap_err().to_string();
    assert!(error.contains("gone.toml"), "{error}");
}

#[test]
fn more_threads_than_cores_are_refused() {
    let error = load(&["model.threads=100000"]).unwrap().model.open_device().unwrap_err().to_string();
    assert!(error.contains("cores"), "{error}");
}

#[test]
fn an_unknown_device_is_refused() {
    let config = load(&["model.device=tpu"]).unwrap();
    assert!(config.model.open_device().unwrap_err().to_string().contains("`tpu`"));
}
