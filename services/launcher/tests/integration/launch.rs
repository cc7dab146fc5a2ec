//! The built command beside an engine made of two lines of shell: what the engine is given, and what is said when it or
//! libtorch is missing.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Mutex;

/// A program cannot start while another thread's child still holds it open for writing, as between fork and exec.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

const ENGINE: &str = "#!/bin/sh\necho \"$LD_LIBRARY_PATH|$DYLD_LIBRARY_PATH\"; printf '%s\\n' \"$@\"; exit 7\n";

fn installed(place: &Path) -> PathBuf {
    let launcher = place.join("souk");
    fs::copy(env!("CARGO_BIN_EXE_souk"), &launcher).unwrap();
    fs::write(place.join("souk-engine"), ENGINE).unwrap();
    fs::set_permissions(place.join("souk-engine"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir_all(place.join("torch/lib")).unwrap();
    for library in ["libtorch_cpu.so", "libtorch_cpu.dylib"] {
        fs::write(place.join("torch/lib").join(library), "").unwrap();
    }
    launcher
}

fn run(launcher: &Path, libtorch: &Path) -> Output {
    let mut command = Command::new(launcher);
    command.args(["search", "red shoes"]).env_remove("LIBTORCH_USE_PYTORCH").env("LIBTORCH", libtorch);
    command.env("LD_LIBRARY_PATH", "/before").env("DYLD_LIBRARY_PATH", "/before").output().unwrap()
}

#[test]
fn the_engine_gets_libtorch_first_and_the_arguments_as_they_were() {
    let _turn = ONE_AT_A_TIME.lock();
    let place = tempfile::tempdir().unwrap();
    let launcher = installed(place.path());
    let output = run(&launcher, &place.path().join("torch"));
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains(&format!("{}/torch/lib:/before", place.path().display())), "{said}");
    assert!(said.ends_with("\nsearch\nred shoes\n"), "{said}");
    assert_eq!(output.status.code(), Some(7), "the engine's exit code is the command's");
}

#[test]
fn what_is_missing_is_named_and_the_exit_code_is_that_of_configuration() {
    let _turn = ONE_AT_A_TIME.lock();
    let place = tempfile::tempdir().unwrap();
    let launcher = installed(place.path());
    let no_libtorch = run(&launcher, &place.path().join("elsewhere"));
    fs::remove_file(place.path().join("souk-engine")).unwrap();
    let no_engine = run(&launcher, &place.path().join("torch"));
    for (output, missing) in [(no_libtorch, "elsewhere"), (no_engine, "souk-engine is missing")] {
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.starts_with("souk: ") && said.contains(missing), "{said}");
        assert_eq!(output.status.code(), Some(2));
    }
}
