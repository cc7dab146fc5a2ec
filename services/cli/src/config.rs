//! `souk config`: what the settings mean, and which are in effect.

use std::fmt::Write;

use clap::{Args, Subcommand};
use serde_json::json;
use souk::config::explain::{Section, Setting, schema, sections};
use souk::error::Error;

use crate::output::print;
use crate::{GlobalArgs, help};

const PAGE: &str = "# Configuration

Every setting, made by `souk config explain --markdown`. A configuration is one TOML file, given with `--config`; `--set NAME=VALUE`
overrides one setting. All have defaults except those marked \"required\". Unknown settings are errors.

- `souk config explain NAME` prints a setting or a section; `souk config show --config FILE` prints what is in effect, and why.
- `docs/configuration.schema.json` (`souk config schema`) is the JSON Schema. Editors that know TOML complete and check a file whose first
  line is `#:schema configuration.schema.json`, with the path to it.
- \"Reloaded\": a running trainer reads the setting again when its file changes, a running search service when it gets SIGHUP. Everything
  else takes effect at the next start. Files with keys (`key_file`) are always read again.
";

/// Explain settings, and show those in effect
#[derive(Args)]
pub struct ConfigCommand {
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Subcommand)]
enum Action {
    Explain(Explain),
    Schema(Schema),
    Show(Show),
}

/// Explain settings: type, default and meaning
///
/// Examples:
///
///   souk config explain                                  # all sections
///   souk config explain train.optimizer
///   souk config explain objective.beta
#[derive(Args)]
#[command(verbatim_doc_comment)]
struct Explain {
    /// A setting or a section, such as train.batch or trainer.gate
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// Print all settings as the page docs/configuration.md
    #[arg(long, conflicts_with = "name")]
    markdown: bool,
}

/// Print the JSON Schema of configuration files
///
/// Editors that know TOML then complete and check them.
#[derive(Args)]
struct Schema {}

/// Print all settings in effect, with their source
///
/// As TOML: the defaults, --config and --set together. Values that are not defaults name the file or
/// the flag that they come from. Passwords in addresses are left out.
///
/// Example:
///
///   souk config show --config configs/home-depot.toml --set train.batch=64
#[derive(Args)]
#[command(verbatim_doc_comment)]
struct Show {}

impl ConfigCommand {
    pub fn run(&self, globals: &GlobalArgs) -> anyhow::Result<()> {
        match &self.action {
            Some(Action::Explain(explain)) => explain.run(globals),
            Some(Action::Schema(_)) => {
                let schema = schema();
                print(globals, &schema, &serde_json::to_string_pretty(&schema)?)
            }
            Some(Action::Show(_)) => {
                let config = globals.load(Vec::new())?;
                let text = config.in_effect()?;
                print(globals, &serde_json::to_value(&config)?, text.trim_end())
            }
            None => help::of_group(globals, "config"),
        }
    }
}

impl Explain {
    fn run(&self, globals: &GlobalArgs) -> anyhow::Result<()> {
        let sections = sections();
        if self.markdown {
            let page = page(&sections);
            return print(globals, &json!({"markdown": page}), page.trim_end());
        }
        let Some(name) = &self.name else {
            let lines: Vec<String> =
                sections.iter().map(|section| format!("{}\n  {}", section.heading(), section.meaning)).collect();
            let json: Vec<_> = sections.iter().map(|section| json!({"section": section.heading()})).collect();
            return print(globals, &json!(json), &lines.join("\n"));
        };
        let found = matching(&sections, name);
        if found.is_empty() {
            return Err(unknown(&sections, name).into());
        }
        let text: Vec<String> = found.iter().map(describe).collect();
        let json: Vec<_> = found.iter().flat_map(|section| &section.settings).map(setting_json).collect();
        print(globals, &json!(json), text.join("\n").trim_end())
    }
}

/// The named sections, or those with the named setting, and nothing else in them.
fn matching(sections: &[Section], name: &str) -> Vec<Section> {
    let whole: Vec<Section> = sections.iter().filter(|section| section.name == name).cloned().collect();
    if !whole.is_empty() {
        return whole;
    }
    let with_it = sections.iter().filter_map(|section| {
        let settings: Vec<Setting> = section.settings.iter().filter(|setting| setting.name == name).cloned().collect();
        (!settings.is_empty()).then(|| Section { settings, ..section.clone() })
    });
    with_it.collect()
}

fn unknown(sections: &[Section], name: &str) -> Error {
    let last = name.rsplit('.').next().unwrap_or(name);
    let names = sections.iter().flat_map(|section| &section.settings).map(|setting| setting.name.as_str());
    let mut alike: Vec<&str> = names.filter(|known| known.rsplit('.').next().is_some_and(|end| end == last)).collect();
    alike.dedup();
    let hint = if alike.is_empty() {
        "`souk config explain` lists all sections".to_owned()
    } else {
        format!("did you mean {}?", alike.join(", "))
    };
    Error::input(format!("there is no setting or section `{name}`; {hint}"))
}

fn describe(section: &Section) -> String {
    let mut text = format!("{}\n  {}\n", section.heading(), section.meaning);
    for setting in &section.settings {
        let reloaded = if setting.is_reloaded { ", reloaded" } else { "" };
        let required = setting.is_required.then(|| ", required".to_owned());
        let default = setting.default.as_ref().map(|default| format!(", default {default}")).or(required);
        let default = default.unwrap_or_default();
        let _ = write!(text, "\n{} ({}{default}{reloaded})\n  {}\n", setting.name, setting.kind, setting.meaning);
        for (choice, meaning) in &setting.choices {
            let _ = writeln!(text, "    {choice:<16} {meaning}");
        }
    }
    text
}

fn setting_json(setting: &Setting) -> serde_json::Value {
    json!({
        "name": setting.name,
        "type": setting.kind,
        "default": setting.default,
        "required": setting.is_required,
        "meaning": setting.meaning,
        "choices": setting.choices.iter().map(|(name, _)| name).collect::<Vec<_>>(),
        "reloaded": setting.is_reloaded,
    })
}

fn page(sections: &[Section]) -> String {
    let mut text = PAGE.to_owned();
    for section in sections {
        let _ = write!(text, "\n## `{}`\n\n{}\n", section.heading(), section.meaning);
        if section.settings.is_empty() {
            continue;
        }
        text += "\n| setting | type | default | meaning |\n|---|---|---|---|\n";
        for setting in &section.settings {
            let required = setting.is_required.then(|| "required".to_owned());
            let default =
                setting.default.as_ref().map(|default| format!("`{default}`")).or(required).unwrap_or_default();
            let reloaded = if setting.is_reloaded { " Reloaded." } else { "" };
            let choices: Vec<String> =
                setting.choices.iter().map(|(name, meaning)| format!("<br>`{name}`: {meaning}")).collect();
            let meaning = format!("{}{reloaded}{}", setting.meaning, choices.concat()).replace('|', "\\|");
            let _ = writeln!(text, "| `{}` | {} | {default} | {meaning} |", setting.name, setting.kind);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_gives_a_section_a_setting_or_what_may_have_been_meant() {
        let sections = sections();
        assert!(matching(&sections, "train.optimizer")[0].settings.len() > 3);
        let beta = matching(&sections, "objective.beta");
        assert!(beta.iter().any(|section| section.variant.as_deref() == Some("r_grpo")));
        assert!(beta.iter().all(|section| section.settings.len() == 1));
        let error = unknown(&sections, "train.learning_rate").to_string();
        assert!(error.contains("train.optimizer.learning_rate"), "{error}");
        assert!(unknown(&sections, "nonsense").to_string().contains("souk config explain"));
    }
}
