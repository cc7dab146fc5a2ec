//! Length checks of texts in requests. A text that is too short or too long is a 422 that names its field.

use souk_http::Fault;

/// Maximum characters of an id or a name.
pub const MAX_NAME: usize = 256;

/// Checks that a text is not shorter than `min` bytes nor longer than `max` characters.
pub fn check_text(field: &str, text: &str, min: usize, max: usize) -> Result<(), Fault> {
    if text.len() < min {
        return Err(Fault::unprocessable(field, "is empty"));
    }
    if is_longer(text, max) {
        return Err(Fault::unprocessable(field, format!("has more than {max} characters")));
    }
    Ok(())
}

pub fn is_longer(text: &str, max: usize) -> bool {
    // count characters only if there may be too many
    text.len() > max && text.chars().count() > max
}
