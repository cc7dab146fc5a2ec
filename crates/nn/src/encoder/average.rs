//! Averages the weights of encoders with one architecture and one tokenizer: a base model and models fine-tuned from it, or runs
//! with different seeds (model soups, Wortsman et al. 2022; robust fine-tuning, WiSE-FT).

use std::fs;

use tch::{Kind, Tensor};

use super::{Encoder, transformer_dir};
use souk_io::error::{Error, Result};

const TOKENIZER: &str = "tokenizer.json";

impl Encoder {
    /// Sets the weights to a weighted mean of this encoder's and the others'. Settings such as pooling and prompts stay this
    /// encoder's. The shares must be positive; they are divided by their sum.
    pub fn average(&mut self, own_share: f64, others: &mut [(Self, f64)]) -> Result<()> {
        let total = own_share + others.iter().map(|(_, share)| share).sum::<f64>();
        if [own_share].into_iter().chain(others.iter().map(|(_, share)| *share)).any(|share| share <= 0.0) {
            return Err(Error::input("shares must be greater than 0: leave out a model that has no share"));
        }
        let mine = self.trainable(None, true)?;
        for (other, _) in &*others {
            self.check_tokenizer(other)?;
        }
        let theirs = others.iter_mut().map(|(other, _)| other.trainable(None, true)).collect::<Result<Vec<_>>>()?;
        let _guard = tch::no_grad_guard();
        for (at, (name, weight)) in mine.iter().enumerate() {
            let mut sum = weight.to_kind(Kind::Double) * (own_share / total);
            for ((other, share), tensors) in others.iter().zip(&theirs) {
                // the order is that of the names, which differ at most in a prefix of all of them, such as `bert.`
                let fits = |(theirs, tensor): &&(String, Tensor)| {
                    tensors.len() == mine.len() && same_tensor(name, theirs) && tensor.size() == weight.size()
                };
                let (_, tensor) = tensors.get(at).filter(fits).ok_or_else(|| self.differs(other, name))?;
                sum += tensor.to_kind(Kind::Double) * (*share / total);
            }
            weight.shallow_clone().copy_(&sum);
        }
        Ok(())
    }

    fn check_tokenizer(&self, other: &Self) -> Result<()> {
        let read = |encoder: &Self| {
            let path = transformer_dir(&encoder.dir)?.join(TOKENIZER);
            fs::read(&path).map_err(Error::store(&path, "read it"))
        };
        if read(self)? == read(other)? {
            return Ok(());
        }
        let (own, other) = (self.dir.display(), other.dir.display());
        Err(Error::input(format!("{own} and {other} have different tokenizers: average models of one base")))
    }

    fn differs(&self, other: &Self, name: &str) -> Error {
        let (own, other) = (self.dir.display(), other.dir.display());
        Error::input(format!("{own} and {other} differ in their weights, at `{name}`: average models of one base"))
    }
}

fn same_tensor(a: &str, b: &str) -> bool {
    let (long, short) = if a.len() < b.len() { (b, a) } else { (a, b) };
    long.strip_suffix(short).is_some_and(|prefix| prefix.is_empty() || prefix.ends_with('.'))
}
