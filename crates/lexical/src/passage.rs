//! Texts of an item that the index reads.

/// Text of an item, and its details: texts in other fields, such as brand and attributes, which count less.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Passage {
    pub text: String,
    pub details: String,
}

impl From<String> for Passage {
    fn from(text: String) -> Self {
        Self { text, details: String::new() }
    }
}

impl From<&str> for Passage {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}
