//! What a stage does beside its steps: TensorBoard's event files.

use std::fs;
use std::path::Path;

use crate::stage::{losses, run_ok, shop, stage};

/// Names of TensorBoard's event files in their order.
fn event_files(out: &Path) -> Vec<String> {
    let names = fs::read_dir(out).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name.starts_with("events.out.tfevents.")).collect();
    names.sort();
    names
}

/// Bytes of the events in a file, without their frames.
fn events(file: &Path) -> Vec<Vec<u8>> {
    let (bytes, mut at, mut found) = (fs::read(file).unwrap(), 0, Vec::new());
    while at < bytes.len() {
        let length = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
        found.push(bytes[at + 12..at + 12 + length].to_vec());
        at += 16 + length;
    }
    found
}

#[test]
fn event_files_have_every_step_and_a_resumed_stage_begins_one_of_its_own() {
    let home = tempfile::tempdir().unwrap();
    shop(home.path());
    let sets = ["train.tensorboard=true", "train.batch=12", "train.max_steps=6", "train.checkpoint_steps=2"];
    run_ok(&mut stage(home.path(), "run", &sets));
    let out = home.path().join("run");
    let has = |event: &[u8], name: &str| event.windows(name.len()).any(|part| part == name.as_bytes());
    let first = events(&out.join(&event_files(&out)[0]));
    // the version and the start come before the steps
    assert_eq!(first.len(), 2 + 6);
    assert!(has(&first[0], "brain.Event:2") && !has(&first[1], "train/"));
    let names = ["train/loss", "train/learning_rate", "train/grad_norm", "train/seconds/backward"];
    assert!(first[2..].iter().all(|event| names.iter().all(|name| has(event, name)) && !has(event, "train/step")));
    fs::remove_dir_all(out.join("checkpoints/step-000000006")).unwrap();
    run_ok(stage(home.path(), "run", &sets).arg("--resume"));
    let files = event_files(&out);
    assert_eq!(files.len(), 2, "{files:?}");
    let second = events(&out.join(&files[1]));
    assert_eq!(second.len(), 2 + 2, "steps 5 and 6 again");
    // after the time: step 5, session start
    assert_eq!(second[1][9..], [0x10, 5, 0x3a, 2, 8, 1]);
    run_ok(&mut stage(home.path(), "plain", &sets[1..]));
    let plain = home.path().join("plain");
    assert!(event_files(&plain).is_empty() && losses(&plain) == losses(&out));
}
