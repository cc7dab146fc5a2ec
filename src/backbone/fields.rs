//! Reads a JSON object field by field and knows which fields nobody asked for.
//! A field that is unknown may change what a model computes, so it is refused by name rather than passed over.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::error::{Error, Result};

/// The fields of one object of a configuration file.
pub struct Fields {
    place: String,
    map: Map<String, Value>,
    asked: RefCell<BTreeSet<String>>,
}

impl Fields {
    pub fn open(path: &Path) -> Result<Self> {
        let text = fs::read(path).map_err(Error::store(path, "read it"))?;
        let value =
            serde_json::from_slice(&text).map_err(|e| Error::config(path.display(), "not valid JSON").because(e))?;
        Self::new(path.display().to_string(), value)
    }

    pub fn new(place: String, value: Value) -> Result<Self> {
        match value {
            Value::Object(map) => Ok(Self { place, map, asked: RefCell::default() }),
            _ => Err(Error::config(place, "expected a JSON object")),
        }
    }

    pub fn has(&self, name: &str) -> bool {
        self.map.contains_key(name)
    }

    /// Reads a field; `null` counts as absent.
    pub fn get<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>> {
        self.asked.borrow_mut().insert(name.into());
        match self.map.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => serde_json::from_value(value.clone())
                .map(Some)
                .map_err(|e| self.error(name, &format!("cannot be {value}")).because(e)),
        }
    }

    pub fn need<T: DeserializeOwned>(&self, name: &str) -> Result<T> {
        self.get(name)?.ok_or_else(|| self.error(name, "is missing"))
    }

    pub fn or<T: DeserializeOwned>(&self, name: &str, default: T) -> Result<T> {
        Ok(self.get(name)?.unwrap_or(default))
    }

    /// Reads a count and checks that it can be a tensor's dimension.
    pub fn count(&self, name: &str) -> Result<i64> {
        let value: i64 = self.need(name)?;
        self.check(name, (1..=1 << 32).contains(&value), "must be between 1 and 4294967296")?;
        Ok(value)
    }

    /// Accepts the field only when it is absent or says what Souk computes anyway.
    pub fn only(&self, name: &str, supported: impl Into<Value>) -> Result<()> {
        let supported = supported.into();
        match self.get::<Value>(name)? {
            Some(value) if value != supported => {
                Err(self.error(name, &format!("is {value}: Souk computes only {supported}")))
            }
            _ => Ok(()),
        }
    }

    pub fn check(&self, name: &str, holds: bool, problem: &str) -> Result<()> {
        if holds { Ok(()) } else { Err(self.error(name, problem)) }
    }

    pub fn error(&self, name: &str, problem: &str) -> Error {
        Error::config(&self.place, format!("field `{name}` {problem}"))
    }

    /// The object below `name`, if there is one.
    pub fn object(&self, name: &str) -> Result<Option<Self>> {
        self.get::<Value>(name)?.map(|value| Self::new(format!("{}, `{name}`", self.place), value)).transpose()
    }

    /// Refuses fields that nobody asked for and that are not among the words of `harmless`.
    pub fn finish(&self, harmless: &str, ignored: &[String]) -> Result<()> {
        let asked = self.asked.borrow();
        for (name, value) in &self.map {
            let known =
                asked.contains(name) || harmless.split_whitespace().any(|word| word == name) || ignored.contains(name);
            if !known && !value.is_null() {
                let hint = "is not known to Souk and may change what the model computes; if it does not, \
                            list it under `ignore_fields` of [model]";
                return Err(self.error(name, hint));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(json: &str) -> Fields {
        Fields::new("config.json".into(), serde_json::from_str(json).unwrap()).unwrap()
    }

    #[test]
    fn an_unknown_field_is_refused_by_name_unless_listed() {
        let fields = fields(r#"{"hidden_size": 4, "logit_softcap": 30.0, "note": null}"#);
        assert_eq!(fields.count("hidden_size").unwrap(), 4);
        let error = fields.finish("", &[]).unwrap_err().to_string();
        assert!(error.contains("config.json: field `logit_softcap` is not known"), "{error}");
        fields.finish("", &["logit_softcap".into()]).unwrap();
    }

    #[test]
    fn an_unsupported_value_and_a_wrong_type_are_refused() {
        let fields = fields(r#"{"position_embedding_type": "alibi", "num_layers": "two", "width": -1}"#);
        let error = fields.only("position_embedding_type", "absolute").unwrap_err().to_string();
        assert!(error.contains("is \"alibi\": Souk computes only \"absolute\""), "{error}");
        assert!(fields.need::<i64>("num_layers").unwrap_err().to_string().contains("cannot be \"two\""));
        assert!(fields.count("width").unwrap_err().to_string().contains("must be between 1"));
    }
}
