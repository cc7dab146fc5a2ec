//! Shared by Souk's HTTP services: error responses (`fault`), keys, their roles and origin checks (`keys`, `role`, `origin`), request middleware
//! (`front`), load shedding (`gate`), health checks (`probe`), request bodies (`body`) and JSON responses (`json`), the server
//! (`listen`, `deadlines`, `tls`, `starting`) and the process around it (`process`). Knows no route. No input over the wire causes a
//! panic or unlimited memory use.

mod body;
mod deadlines;
mod fault;
mod front;
mod gate;
mod json;
mod keys;
mod listen;
mod origin;
mod probe;
mod process;
mod role;
mod starting;
mod tls;

pub use self::body::{read, read_bytes, read_optional};
pub use self::fault::Fault;
pub use self::front::{Front, FrontLimits, admit, metrics, record};
pub use self::gate::{Gate, shed_load};
pub use self::json::json_body;
pub use self::keys::Keys;
pub use self::listen::run;
pub use self::probe::Probe;
pub use self::process::{Endpoint, Entrance, exit_code, serve, shutdown_signal};
pub use self::role::Role;
