//! `souk config`: the committed page and schema of the settings are current, and values in effect are shown with their source.

use std::fs;
use std::process::Command;

use souk_testing::repository;

fn souk(arguments: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_souk-engine"));
    let output = command.args(arguments).current_dir(repository()).output().unwrap();
    assert!(output.status.success(), "souk {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// `REGENERATE=1` writes both files.
#[test]
fn the_page_and_the_schema_are_current() {
    let made = [
        ("docs/configuration.md", souk(&["config", "explain", "--markdown"])),
        ("docs/configuration.schema.json", souk(&["config", "schema"])),
    ];
    for (file, text) in made {
        let path = repository().join(file);
        if std::env::var_os("REGENERATE").is_some() {
            fs::write(&path, &text).unwrap();
        }
        let is_current = fs::read_to_string(&path).is_ok_and(|written| written == text);
        assert!(is_current, "{file} is not current: run this test with REGENERATE=1, and commit the file");
    }
}

#[test]
fn a_setting_is_explained_and_its_source_is_shown() {
    let told = souk(&["config", "explain", "train.optimizer.learning_rate"]);
    assert!(told.contains("(number, default 0.00001)") && told.contains("Peak learning rate"), "{told}");
    let file = "configs/sft-market.toml";
    let shown = souk(&["config", "show", "--config", file, "--set", "train.batch=64"]);
    assert!(
        shown.contains("batch = 64    # --set train.batch=64\n") && shown.contains(&format!("# {file}\n")),
        "{shown}"
    );

    let mut command = Command::new(env!("CARGO_BIN_EXE_souk-engine"));
    let output = command.args(["config", "explain", "train.learning_rate"]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("did you mean") && said.contains("train.optimizer.learning_rate"), "{said}");
}

#[test]
fn passwords_are_not_shown() {
    let shown = souk(&["config", "show", "--set", "store.database=postgres://souk:secret@db/souk"]);
    assert!(shown.contains("postgres://souk:***@db/souk") && !shown.contains("secret"), "{shown}");
}
