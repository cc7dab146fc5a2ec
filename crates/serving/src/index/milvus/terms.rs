//! Search by terms on the server (BM25). A field holds the terms of an item's text as Souk's own BM25 reads them, and the server
//! makes sparse vectors of it. Typos and other spellings are not found there.

use std::collections::HashMap;

use milvus::v2::FunctionType;
use milvus::v2::prelude::{DataType, FieldSchema, Function, IndexParam, IndexType, MetricType};

use souk_io::item_text::ItemText;
use souk_lexical::{Language, LexicalOptions};

/// Milvus' limit of a text field, in bytes.
pub const MAX_TEXT: usize = 65_535;
pub const TERMS: &str = "terms";
pub const SPARSE: &str = "terms_vector";
/// Smallest k1: some servers do not accept 0.
const MIN_K1: f32 = 0.001;

/// How items are searched by terms.
#[derive(Clone)]
pub struct TermSearch {
    pub item_text: ItemText,
    pub options: LexicalOptions,
}

impl TermSearch {
    /// Score without the constant factor of the server's formula, and without the sign that Milvus Lite gives it.
    pub fn own_score(&self, score: f32) -> f32 {
        score.abs() / (self.k1() + 1.0)
    }

    fn k1(&self) -> f32 {
        self.options.k1.max(MIN_K1)
    }

    /// Fields of the terms and of what the server makes of them.
    pub fn fields() -> [FieldSchema; 2] {
        let terms = FieldSchema::new().name(TERMS).data_type(DataType::VarChar).max_length(MAX_TEXT as u32);
        let analyzer = serde_json::json!({"tokenizer": "standard"});
        let terms = terms.enable_analyzer(true).analyzer_params(analyzer);
        [terms, FieldSchema::new().name(SPARSE).data_type(DataType::SparseFloatVector)]
    }

    pub fn function() -> Function {
        let function = Function::new().name("terms_bm25").function_type(FunctionType::Bm25);
        function.input_fields([TERMS]).output_fields([SPARSE])
    }

    pub fn index(&self) -> IndexParam {
        // as JSON, the form that Milvus Lite reads too
        let params = format!(r#"{{"bm25_k1": {}, "bm25_b": {}}}"#, self.k1(), self.options.b);
        let index = IndexParam::new().field_name(SPARSE).metric_type(MetricType::Bm25);
        index.index_type(IndexType::SparseInvertedIndex).extra_params(HashMap::from([("params".into(), params)]))
    }
}

/// Terms of a text, as many as the field takes. The server must not split a term, such as `3/4`: other characters than letters and
/// digits are written as their code.
pub fn joined_terms(language: Language, text: &str) -> String {
    let mut joined = String::new();
    for term in souk_lexical::terms_in(language, text) {
        let mut word = String::new();
        for letter in term.chars() {
            if letter.is_alphanumeric() {
                word.push(letter);
            } else {
                word += &format!("u{:x}u", u32::from(letter));
            }
        }
        if joined.len() + word.len() >= MAX_TEXT {
            break;
        }
        joined.push_str(if joined.is_empty() { "" } else { " " });
        joined.push_str(&word);
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_term_is_one_word_and_the_field_is_not_exceeded() {
        assert_eq!(joined_terms(Language::English, "Oak desks, 3/4 in. for the US"), "oak desk 3u2fu4 in us");
        let long = joined_terms(Language::English, &"desk lamp ".repeat(20_000));
        assert!(
            long.len() < MAX_TEXT && long.split(' ').all(|word| ["desk", "lamp"].contains(&word)),
            "{}",
            long.len()
        );
    }
}
