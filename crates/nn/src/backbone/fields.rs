//! Reads a JSON object field by field and knows which fields nobody asked for.
//! A field that is unknown may change what a model computes, so it is refused by name rather than passed over.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use souk_io::error::{Error, Result};

/// The fields of one object of a configuration file.
pub struct Fields {
    place: String,
    map: Map<String, Value>,
    asked: RefCell<BTreeSet<String>>,
    /// Fields the user vouches for; `None` where there is no way to say so.
    ignored: Option<Vec<String>>,
}

/// No dimension of a tensor, and no number of them, is larger in any model.
const LARGEST: i64 = 1 << 31;

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
                Ok(Self { place, map, asked: RefCell::default(), ignored: ignored.map(<[_]>::to_vec) })
            }
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
        let value = self.need(name)?;
        self.check(name, (1..=LARGEST).contains(&value), &format!("must be between 1 and {LARGEST}"))?;
        Ok(value)
    }

    /// As `count`, with a default.
    pub fn count_or(&self, name: &str, default: i64) -> Result<i64> {
        if self.get::<Value>(name)?.is_some() { self.count(name) } else { Ok(default) }
    }

    /// A number that must be above zero for the computation to mean anything.
    pub fn positive(&self, name: &str, default: Option<f64>) -> Result<f64> {
        let value = match default {
            Some(default) => self.or(name, default)?,
            None => self.need(name)?,
        };
        self.check(name, value > 0.0 && value.is_finite(), "must be above zero")?;
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
        self.get::<Value>(name)?
            .map(|value| Self::new(format!("{}, `{name}`", self.place), value, self.ignored.as_deref()))
            .transpose()
    }

    /// Refuses fields that nobody asked for and that are not among the words of `harmless`.
    pub fn finish(&self, harmless: &str) -> Result<()> {
        let asked = self.asked.borrow();
        let vouched = |name: &String| self.ignored.as_ref().is_some_and(|ignored| ignored.contains(name));
        for (name, value) in &self.map {
            let known = asked.contains(name) || harmless.split_whitespace().any(|word| word == name) || vouched(name);
            if !known && !value.is_null() {
                let hint = match self.ignored {
                    Some(_) => "; if it does not, list it under `ignore_fields` of [model]",
                    None => "",
                };
                let problem = format!("is not known to Souk and may change what the model computes{hint}");
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
        vouched(json, &[])
    }

    fn vouched(json: &str, ignored: &[String]) -> Fields {
        Fields::new("config.json".into(), serde_json::from_str(json).unwrap(), Some(ignored)).unwrap()
    }

    #[test]
    fn an_unknown_field_is_refused_by_name_unless_listed() {
        let json = r#"{"hidden_size": 4, "logit_softcap": 30.0, "note": null}"#;
        let fields = fields(json);
        assert_eq!(fields.count("hidden_size").unwrap(), 4);
        let error = fields.finish("").unwrap_err().to_string();
        assert!(error.contains("config.json: field `logit_softcap` is not known"), "{error}");
        vouched(json, &["logit_softcap".into()]).finish("hidden_size").unwrap();
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
