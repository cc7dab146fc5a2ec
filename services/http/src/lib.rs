//! What Souk's HTTP services share. `fault` is every way to say no, `keys` who may ask for what, `front` the bounds around
//! requests and what is noted of them, `body` how a request is read, `tls` and `listen` the socket and its end. Knows no
//! route. Nothing that comes over the wire panics or takes unbounded memory.

mod body;
mod fault;
mod front;
mod keys;
mod listen;
mod tls;

pub use self::body::{json_body, read, read_optional};
pub use self::fault::Fault;
pub use self::front::{Front, admit, note};
pub use self::keys::{Keys, Role};
pub use self::listen::{run, serve};
