//! `souk` and `souk --help`: all commands, grouped by task, one line each. The lines come from the commands themselves.

use clap::builder::styling::Style;
use clap::{Command, CommandFactory};

use crate::output::print;
use crate::{GlobalArgs, Souk};

/// Commands by task, in the order in which a newcomer needs them.
const GROUPS: [(&str, &[&str]); 7] = [
    ("Your shop", &["start"]),
    ("Data", &["import", "market", "ingest", "produce", "items sync", "db migrate"]),
    ("Models", &["init", "train", "relevance train", "average", "fit-fusion", "launch", "plan", "export"]),
    ("Vectors and search", &["embed", "index", "search", "export-vectors"]),
    ("Measuring", &["judgements", "rewrite", "evaluate", "compare", "experiment"]),
    ("Services", &["serve", "trainer", "relevance serve", "backup", "restore", "doctor"]),
    ("Settings", &["config explain", "config show", "config schema"]),
];

/// The command line with its grouped help.
pub fn command() -> Command {
    let souk = Souk::command();
    let header = *souk.get_styles().get_header();
    let groups = groups(&souk, header);
    // the program's file is souk-engine
    souk.bin_name("souk").help_template(format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{groups}{header}Options:{header:#}\n{{options}}{{after-help}}"
    ))
}

/// Prints the help, for `souk` without a command.
pub fn run(globals: &GlobalArgs) -> anyhow::Result<()> {
    let help = command().render_help().to_string();
    let text = help.trim_end();
    print(globals, &serde_json::json!({"help": text}), text)
}

/// Prints the help of a command that is nothing without a subcommand, such as `souk db`.
pub fn of_group(globals: &GlobalArgs, name: &str) -> anyhow::Result<()> {
    let mut souk = Souk::command();
    souk.build();
    let help = souk.find_subcommand_mut(name).map(|group| group.render_help().to_string()).unwrap_or_default();
    let text = help.trim_end();
    print(globals, &serde_json::json!({"help": text}), text)
}

fn groups(souk: &Command, header: Style) -> String {
    let width = GROUPS.iter().flat_map(|(_, names)| *names).map(|name| name.len()).max().unwrap_or_default();
    let mut text = String::new();
    for (task, names) in GROUPS {
        text += &format!("{header}{task}:{header:#}\n");
        for name in names {
            let about = find(souk, name).and_then(Command::get_about).map(ToString::to_string).unwrap_or_default();
            text += &format!("  {name:<width$}  {about}\n");
        }
        text.push('\n');
    }
    text
}

/// The subcommand named `relevance train`, for example.
fn find<'a>(souk: &'a Command, name: &str) -> Option<&'a Command> {
    name.split(' ').try_fold(souk, |command, part| command.find_subcommand(part))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_command_is_in_one_group_with_a_short_line() {
        let souk = Souk::command();
        let mut listed = BTreeSet::new();
        for name in GROUPS.iter().flat_map(|(_, names)| *names) {
            assert!(find(&souk, name).is_some_and(|found| found.get_about().is_some()), "no command `{name}`");
            assert!(listed.insert(*name), "`{name}` stands in two groups");
        }
        let verbs: BTreeSet<&str> = souk.get_subcommands().map(Command::get_name).collect();
        let first = |name: &'static str| name.split(' ').next().unwrap_or(name);
        assert_eq!(verbs, listed.into_iter().map(first).collect(), "add new commands to GROUPS");
        for line in groups(&souk, Style::new()).lines() {
            // two cells fewer than clap's own width of help
            assert!(line.len() <= 98, "too long for one line, shorten its doc comment: {line}");
        }
    }
}
