//! Reads a JSON object field by field and records which fields were read. Unknown fields may change what a model computes,
//! so they are errors, never ignored.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use souk_io::error::{Error, Result};

/// Fields of one object of a configuration file.
pub struct Fields {
    place: String,
    map: Map<String, Value>,
    known: RefCell<BTreeSet<String>>,
    /// Unknown fields to accept; `None` if the caller has no setting for them.
    ignored: Option<Vec<String>>,
}

/// Upper bound of a tensor's dimension and of a number of tensors.
const MAX_COUNT: i64 = 1 << 31;

/// Upper bound of a model's layers: checked before memory is allocated for them.
const MAX_LAYERS: i64 = 10_000;

/// Field that makes a decoder bidirectional if `false`, as in transformers.
pub(super) const CAUSAL: &str = "is_causal";

impl Fields {
    pub fn open(path: &Path, ignored: &[String]) -> Result<Self> {
        let text = fs::read(path).map_err(Error::store(path, "read it"))?;
        let value =
            serde_json::from_slice(&text).map_err(|e| Error::config(path.display(), "not valid JSON").because(e))?;
        Self::new(path.display().to_string(), value, Some(ignored))
    }

    pub fn new(place: String, value: Value, ignored: Option<&[String]>) -> Result<Self> {
        match value {
            Value::Object(map) => {
                Ok(Self { place, map, known: RefCell::default(), ignored: ignored.map(<[_]>::to_vec) })
            }
            _ => Err(Error::config(place, "expected a JSON object")),
        }
    }

    pub fn has(&self, name: &str) -> bool {
        self.map.contains_key(name)
    }

    /// Reads a field; `null` counts as absent.
    pub fn get<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>> {
        self.known.borrow_mut().insert(name.into());
        match self.map.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => serde_json::from_value(value.clone())
                .map(Some)
                .map_err(|e| self.error(name, &format!("cannot be {value}")).because(e)),
        }
    }

    /// Reads a required field.
    pub fn required<T: DeserializeOwned>(&self, name: &str) -> Result<T> {
        self.get(name)?.ok_or_else(|| self.error(name, "is missing"))
    }

    /// Reads a field with a default.
    pub fn or<T: DeserializeOwned>(&self, name: &str, default: T) -> Result<T> {
        Ok(self.get(name)?.unwrap_or(default))
    }

    /// Reads a required count between 1 and the upper bound of a tensor's dimension.
    pub fn count(&self, name: &str) -> Result<i64> {
        let value = self.required(name)?;
        self.check(name, (1..=MAX_COUNT).contains(&value), &format!("must be between 1 and {MAX_COUNT}"))?;
        Ok(value)
    }

    /// Number of layers of a model.
    pub(super) fn num_layers(&self) -> Result<i64> {
        let layers = self.count("num_hidden_layers")?;
        self.check("num_hidden_layers", layers <= MAX_LAYERS, &format!("must be at most {MAX_LAYERS}"))?;
        Ok(layers)
    }

    /// Reads a count with a default.
    pub fn count_or(&self, name: &str, default: i64) -> Result<i64> {
        if self.get::<Value>(name)?.is_some() { self.count(name) } else { Ok(default) }
    }

    /// Whether each layer attends to the whole text, by `layer_types`; without the field, `None`.
    pub(super) fn full_layers(&self, layers: i64) -> Result<Option<Vec<bool>>> {
        let name = "layer_types";
        let Some(types) = self.get::<Vec<String>>(name)? else { return Ok(None) };
        let is_known = |kind: &String| kind == "sliding_attention" || kind == "full_attention";
        let fits = types.len() as i64 == layers && types.iter().all(is_known);
        self.check(name, fits, "must name full_attention or sliding_attention for every layer")?;
        Ok(Some(types.iter().map(|kind| kind == "full_attention").collect()))
    }

    /// Reads a number above zero.
    pub fn positive(&self, name: &str, default: Option<f64>) -> Result<f64> {
        let value = match default {
            Some(default) => self.or(name, default)?,
            None => self.required(name)?,
        };
        self.check(name, value > 0.0 && value.is_finite(), "must be above zero")?;
        Ok(value)
    }

    /// Returns an error if the field is present with a value other than the supported one.
    pub fn expect(&self, name: &str, supported: impl Into<Value>) -> Result<()> {
        let supported = supported.into();
        match self.get::<Value>(name)? {
            Some(value) if value != supported => {
                Err(self.error(name, &format!("is {value}: Souk supports only {supported}")))
            }
            _ => Ok(()),
        }
    }

    pub fn check(&self, name: &str, is_valid: bool, problem: &str) -> Result<()> {
        if is_valid { Ok(()) } else { Err(self.error(name, problem)) }
    }

    pub fn error(&self, name: &str, problem: &str) -> Error {
        Error::config(&self.place, format!("field `{name}` {problem}"))
    }

    /// Reads the nested object `name`, if present.
    pub fn object(&self, name: &str) -> Result<Option<Self>> {
        self.get::<Value>(name)?
            .map(|value| Self::new(format!("{}, `{name}`", self.place), value, self.ignored.as_deref()))
            .transpose()
    }

    /// Returns an error if there are fields that were not read and are not among the words of `harmless`.
    pub fn finish(&self, harmless: &str) -> Result<()> {
        let known = self.known.borrow();
        let is_ignored = |name: &String| self.ignored.as_ref().is_some_and(|ignored| ignored.contains(name));
        for (name, value) in &self.map {
            let is_known =
                known.contains(name) || harmless.split_whitespace().any(|word| word == name) || is_ignored(name);
            if !is_known && !value.is_null() {
                let hint = match self.ignored {
                    Some(_) => "; if it does not, add it to `ignore_fields` in [model]",
                    None => "",
                };
                let problem = format!("is unknown and may change what the model computes{hint}");
                return Err(self.error(name, &problem));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(json: &str) -> Fields {
        fields_ignoring(json, &[])
    }

    fn fields_ignoring(json: &str, ignored: &[String]) -> Fields {
        Fields::new("config.json".into(), serde_json::from_str(json).unwrap(), Some(ignored)).unwrap()
    }

    #[test]
    fn rejects_unknown_fields_unless_ignored() {
        let json = r#"{"hidden_size": 4, "logit_softcap": 30.0, "note": null}"#;
        let fields = fields(json);
        assert_eq!(fields.count("hidden_size").unwrap(), 4);
        let error = fields.finish("").unwrap_err().to_string();
        assert!(error.contains("config.json: field `logit_softcap` is unknown"), "{error}");
        fields_ignoring(json, &["logit_softcap".into()]).finish("hidden_size").unwrap();
    }

    #[test]
    fn rejects_unsupported_values_and_wrong_types() {
        let fields = fields(r#"{"position_embedding_type": "alibi", "num_layers": "two", "width": -1}"#);
        let error = fields.expect("position_embedding_type", "absolute").unwrap_err().to_string();
        assert!(error.contains("is \"alibi\": Souk supports only \"absolute\""), "{error}");
        assert!(fields.required::<i64>("num_layers").unwrap_err().to_string().contains("cannot be \"two\""));
        assert!(fields.count("width").unwrap_err().to_string().contains("must be between 1"));
    }
}
