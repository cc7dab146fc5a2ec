//! The command `souk`: finds libtorch, checks its version, and executes `souk-engine`, the program beside it that links
//! libtorch. A missing or wrong libtorch is then a clear message instead of a linker error.

mod libtorch;
mod python;

use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

const ENGINE: &str = "souk-engine";
const LIBRARY_PATH: &str = if cfg!(target_os = "macos") { "DYLD_LIBRARY_PATH" } else { "LD_LIBRARY_PATH" };
/// Exit code for wrong configuration or installation.
const CONFIGURATION: u8 = 2;

fn main() -> ExitCode {
    let environment = std::env::vars_os().collect();
    let program = std::env::current_exe().ok();
    let built_with = option_env!("SOUK_BUILT_WITH_LIBTORCH");
    let problem = match libtorch::choose(&environment, program.as_deref(), built_with, python::torch_folder) {
        Ok(folder) => become_engine(&folder, environment.get(OsStr::new(LIBRARY_PATH))),
        Err(problem) => problem.to_string(),
    };
    complain(problem);
    ExitCode::from(CONFIGURATION)
}

/// Returns only on failure, with the reason.
fn become_engine(libtorch: &Path, library_path: Option<&OsString>) -> String {
    let launcher = match std::env::current_exe() {
        Ok(launcher) => launcher,
        Err(problem) => return format!("cannot tell where this program lies: {problem}"),
    };
    let engine = launcher.with_file_name(ENGINE);
    if !engine.exists() {
        let engine = engine.display();
        return format!("{engine} is missing\n  It belongs beside `souk`. Run `cargo build --release --workspace`.");
    }
    let mut path = libtorch.join("lib").into_os_string();
    if let Some(rest) = library_path.filter(|rest| !rest.is_empty()) {
        path.push(":");
        path.push(rest);
    }
    let arguments = std::env::args_os().skip(1);
    let problem = Command::new(&engine).arg0("souk").args(arguments).env(LIBRARY_PATH, path).exec();
    format!("cannot run {}: {problem}", engine.display())
}

fn complain(problem: impl Display) {
    // if nobody reads the message, the exit code remains
    let _ = writeln!(std::io::stderr(), "souk: {problem}");
}
