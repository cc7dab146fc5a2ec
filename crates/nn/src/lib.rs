//! Transformer encoders: token ids to hidden states ([`backbone`]), texts to vectors ([`encoder`]), a model on its own thread
//! ([`worker`]), AdamW ([`optimizer`]) and collective operations over processes ([`collective`]).

pub mod backbone;
pub mod collective;
pub mod encoder;
pub mod optimizer;
pub mod worker;
