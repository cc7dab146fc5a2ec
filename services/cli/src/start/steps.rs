//! Steps of `souk start`. Each is one souk command, printed so that it can be repeated by hand, and skipped if its result exists.

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;

use crate::launch::LAUNCHER;

pub struct Steps {
    began: Instant,
}

impl Steps {
    pub fn begin() -> Self {
        Self { began: Instant::now() }
    }

    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// Runs a command to its end, unless `done` exists; false if it does. What it prints goes to standard error.
    pub fn run(&self, title: &str, done: Option<&Path>, arguments: Vec<OsString>) -> anyhow::Result<bool> {
        if done.is_some_and(Path::exists) {
            say(&format!("{title}: done before"));
            return Ok(false);
        }
        self.title(title, &arguments);
        let status = command(arguments)?.status().context("cannot start a step")?;
        if !status.success() {
            anyhow::bail!("the step `{title}` failed ({status}): see above; `souk start` again goes on from here");
        }
        Ok(true)
    }

    /// Starts a command that runs until this program ends.
    pub fn spawn(&self, title: &str, arguments: Vec<OsString>) -> anyhow::Result<Child> {
        self.title(title, &arguments);
        command(arguments)?.spawn().context("cannot start a step")
    }

    fn title(&self, title: &str, arguments: &[OsString]) {
        let seconds = self.elapsed().as_secs();
        let words: Vec<_> = arguments.iter().map(|argument| quoted(&argument.to_string_lossy())).collect();
        say(&format!("\n[{}:{:02}] {title}\n$ souk {}", seconds / 60, seconds % 60, words.join(" ")));
    }
}

/// A souk command that dies with this process.
fn command(arguments: Vec<OsString>) -> anyhow::Result<Command> {
    let engine = std::env::current_exe().context("cannot find the path of this program")?;
    let output = std::io::stderr().as_fd().try_clone_to_owned().context("cannot print a step's output")?;
    let mut command = Command::new(engine);
    command.args(arguments).env(LAUNCHER, std::process::id().to_string());
    command.stdin(Stdio::null()).stdout(Stdio::from(output));
    Ok(command)
}

fn quoted(word: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./=:,".contains(letter);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.into()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

#[expect(clippy::print_stderr, reason = "progress goes to standard error")]
pub fn say(line: &str) {
    eprintln!("{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_can_be_copied_into_a_shell() {
        assert_eq!(quoted("--set"), "--set");
        assert_eq!(quoted("my shop"), "'my shop'");
        assert_eq!(quoted("bob's"), "'bob'\\''s'");
        assert_eq!(quoted(""), "''");
    }
}
