//! What Souk's HTTP services share. `fault` is every way to say no, `keys` and `origin` who may ask for what, `front` the
//! bounds around requests and what is noted of them, `gate` what keeps answers fast under overload, `probe` whether a service
//! works, `body` how a request is read, `listen`, `patience` and `tls` the socket and its connections, `opening` what is said before there is an answer, `process` the beginning and the
//! end. Knows no route. Nothing that comes over the wire panics or takes unbounded memory.

mod body;
mod fault;
mod front;
mod gate;
mod keys;
mod listen;
mod opening;
mod origin;
mod patience;
mod probe;
mod process;
mod tls;

pub use self::body::{json_body, read, read_optional};
pub use self::fault::Fault;
pub use self::front::{Front, admit, note};
pub use self::gate::{Gate, hurry};
pub use self::keys::{Keys, Role};
pub use self::listen::run;
pub use self::probe::Probe;
pub use self::process::{Endpoint, asked_to_end, exit_code, serve};
