//! Chat prompts: renders the folder's chat template (`chat_template.jinja`, or the field of `tokenizer_config.json`) as
//! transformers does. A model without a template gets the instruction, the text and a newline.

use std::path::Path;

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, ErrorKind, context};
use serde_json::{Map, Value};

use super::tokenizer::{Frame, Tokenizer};
use souk_io::error::{Error, Result};

const SETTINGS: &str = "tokenizer_config.json";
const TEMPLATE: &str = "chat_template.jinja";
/// Placeholder for the text while the template is rendered: private-use characters that no template touches.
const PLACEHOLDER: &str = "\u{e000}\u{e001}";

/// Prompt around every text, and the tokens that end an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chat {
    pub before: String,
    pub after: String,
    /// Whether the template writes the special tokens itself.
    pub complete: bool,
    pub ends: Vec<u32>,
}

impl Chat {
    /// Renders the template of a model folder with an instruction for all texts.
    pub fn open(dir: &Path, tokenizer: &Tokenizer, instruction: &str) -> Result<Self> {
        let settings = read(&dir.join(SETTINGS))?;
        let ends = ends(dir, &settings, tokenizer)?;
        let file = dir.join(TEMPLATE);
        let template = if file.exists() {
            Some(std::fs::read_to_string(&file).map_err(Error::store(&file, "read it"))?)
        } else {
            template_in(&settings)
        };
        let Some(template) = template else {
            return Ok(Self { before: instruction.into(), after: "\n".into(), complete: false, ends });
        };
        let source = if file.exists() { file } else { dir.join(SETTINGS) };
        let whole = render(&template, instruction, &settings)
            .map_err(|e| Error::config(source.display(), "the chat template cannot be rendered").because(e))?;
        let problem = "the chat template does not contain the user's message";
        let (before, after) = whole.split_once(PLACEHOLDER).ok_or_else(|| Error::config(source.display(), problem))?;
        Ok(Self { before: before.into(), after: after.into(), complete: true, ends })
    }

    /// Frame to encode a text with.
    pub fn frame(&self) -> Frame<'_> {
        Frame { before: &self.before, after: &self.after, complete: self.complete }
    }
}

fn read(path: &Path) -> Result<Map<String, Value>> {
    if !path.exists() {
        return Ok(Map::new());
    }
    let text = std::fs::read(path).map_err(Error::store(path, "read it"))?;
    serde_json::from_slice(&text).map_err(|e| Error::config(path.display(), "not a JSON object").because(e))
}

/// Chat template of the settings: a single one, or the default of several named ones.
fn template_in(settings: &Map<String, Value>) -> Option<String> {
    match settings.get("chat_template")? {
        Value::String(template) => Some(template.clone()),
        Value::Array(named) => {
            let default = named.iter().find(|one| one["name"] == "default").or_else(|| named.first())?;
            default["template"].as_str().map(str::to_owned)
        }
        _ => None,
    }
}

/// Special token of the tokenizer's settings: a string, or an object with `content`.
fn special<'a>(settings: &'a Map<String, Value>, name: &str) -> Option<&'a str> {
    let token = settings.get(name)?;
    token.as_str().or_else(|| token["content"].as_str())
}

fn render(
    template: &str,
    instruction: &str,
    settings: &Map<String, Value>,
) -> std::result::Result<String, minijinja::Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_function("raise_exception", |message: String| -> std::result::Result<String, minijinja::Error> {
        Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
    });
    // empty: a template with the date would give a different vector each day
    environment.add_function("strftime_now", |_: String| String::new());
    let mut messages = vec![context! { role => "user", content => PLACEHOLDER }];
    if !instruction.is_empty() {
        messages.insert(0, context! { role => "system", content => instruction });
    }
    environment.render_str(
        template,
        context! {
            messages => messages,
            add_generation_prompt => true,
            enable_thinking => false,
            bos_token => special(settings, "bos_token").unwrap_or_default(),
            eos_token => special(settings, "eos_token").unwrap_or_default(),
        },
    )
}

/// End-of-answer tokens from `generation_config.json`, `config.json` and the tokenizer's settings together.
fn ends(dir: &Path, settings: &Map<String, Value>, tokenizer: &Tokenizer) -> Result<Vec<u32>> {
    let mut ends: Vec<u32> =
        special(settings, "eos_token").and_then(|token| tokenizer.id_of(token)).into_iter().collect();
    for file in ["generation_config.json", "config.json"] {
        let config = read(&dir.join(file))?;
        let ids = match config.get("eos_token_id") {
            Some(Value::Array(ids)) => ids.iter().filter_map(Value::as_u64).collect(),
            Some(id) => id.as_u64().into_iter().collect::<Vec<_>>(),
            None => Vec::new(),
        };
        ends.extend(ids.into_iter().filter_map(|id| u32::try_from(id).ok()));
    }
    ends.sort_unstable();
    ends.dedup();
    Ok(ends)
}
