//! Error type of the library. Each variant says who must act; causes are kept as sources, never flattened into text.

use std::path::{Path, PathBuf};
use std::pin::Pin;

/// Underlying error.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;
pub type Result<T> = std::result::Result<T, Error>;
/// Boxed future of a fallible call, which keeps its trait usable as `dyn`.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Wrong configuration or model `config.json`; its author must act.
    #[error("{place}: {problem}")]
    Config { place: String, problem: String, source: Option<Cause> },
    /// Invalid request; the caller must act.
    #[error("{problem}")]
    Input { problem: String, source: Option<Cause> },
    /// Queue is full; retry later.
    #[error("busy: {problem}")]
    Busy { problem: String },
    /// Invalid data file.
    #[error("{}: {problem}", location(file, *line))]
    Data { file: PathBuf, line: Option<u64>, problem: String, source: Option<Cause> },
    /// Model weights or tokenizer do not match the model's configuration.
    #[error("{}: {problem}", file.display())]
    Weights { file: PathBuf, problem: String, source: Option<Cause> },
    /// Failure of another service.
    #[error("{service}: {problem}")]
    Upstream { service: String, problem: String, retryable: bool, source: Option<Cause> },
    /// Training diverged; the batch of that step is in the file.
    #[error("step {step}: {problem}; its batch is in {}", file.display())]
    Diverged { step: u64, problem: String, file: PathBuf },
    /// File could not be read or written.
    #[error("{}: cannot {action}", file.display())]
    Store { file: PathBuf, action: &'static str, source: std::io::Error },
    /// libtorch failed: out of memory, a lost device, or a bug in Souk.
    #[error("libtorch: {problem}")]
    Device { problem: String, source: Option<Cause> },
}

impl Error {
    /// The message with those of its causes.
    pub fn with_causes(&self) -> String {
        let mut text = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            text += &format!(": {error}");
            cause = error.source();
        }
        text
    }

    pub fn config(place: impl ToString, problem: impl Into<String>) -> Self {
        Self::Config { place: place.to_string(), problem: problem.into(), source: None }
    }

    pub fn input(problem: impl Into<String>) -> Self {
        Self::Input { problem: problem.into(), source: None }
    }

    pub fn data(file: &Path, line: Option<u64>, problem: impl Into<String>) -> Self {
        Self::Data { file: file.into(), line, problem: problem.into(), source: None }
    }

    pub fn weights(file: &Path, problem: impl Into<String>) -> Self {
        Self::Weights { file: file.into(), problem: problem.into(), source: None }
    }

    pub fn device(problem: impl Into<String>) -> Self {
        Self::Device { problem: problem.into(), source: None }
    }

    /// For `map_err`: adds the file and the attempted action.
    pub fn store(file: &Path, action: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        let file = file.to_path_buf();
        move |source| Self::Store { file, action, source }
    }

    /// Attaches the cause.
    pub fn because(mut self, cause: impl Into<Cause>) -> Self {
        match &mut self {
            Self::Config { source, .. }
            | Self::Input { source, .. }
            | Self::Data { source, .. }
            | Self::Weights { source, .. }
            | Self::Upstream { source, .. }
            | Self::Device { source, .. } => *source = Some(cause.into()),
            Self::Busy { .. } | Self::Diverged { .. } | Self::Store { .. } => {}
        }
        self
    }
}

impl From<souk_native::NativeError> for Error {
    fn from(error: souk_native::NativeError) -> Self {
        match error {
            // its text names the missing feature and what to use instead
            souk_native::NativeError::Unsupported(problem) => Self::config("precision", problem),
            souk_native::NativeError::Setting { name, problem } => Self::config(name, problem),
            error => Self::device("a native kernel rejected its input").because(error),
        }
    }
}

impl From<tch::TchError> for Error {
    fn from(error: tch::TchError) -> Self {
        Self::device(without_frames(&error.to_string()))
    }
}

/// Message of libtorch without its C++ stack frames.
pub fn without_frames(text: &str) -> String {
    text.lines().take_while(|line| !line.starts_with("frame #")).collect::<Vec<_>>().join(" ")
}

fn location(file: &Path, line: Option<u64>) -> String {
    match line {
        Some(line) => format!("{}, line {line}", file.display()),
        None => file.display().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libtorch_stack_frames_are_removed() {
        let error = Error::from(tch::TchError::Torch("out of memory\nframe #0: c10::f()\n".into()));
        assert_eq!(error.to_string(), "libtorch: Internal torch error: out of memory");
    }

    #[test]
    fn a_missing_feature_of_the_processor_is_named_with_what_to_use_instead() {
        let error = Error::from(souk_native::NativeError::Unsupported("bf16 needs AMX; use f32"));
        assert_eq!(error.to_string(), "precision: bf16 needs AMX; use f32");
    }

    #[test]
    fn data_errors_name_file_and_line_and_keep_the_cause() {
        let error = Error::data(Path::new("corpus.jsonl"), Some(7), "not JSON").because("expected `{`");
        assert_eq!(error.to_string(), "corpus.jsonl, line 7: not JSON");
        assert_eq!(std::error::Error::source(&error).map(ToString::to_string), Some("expected `{`".into()));
    }
}
