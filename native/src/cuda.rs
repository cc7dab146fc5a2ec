//! The loaded libtorch: its version, and its CUDA libraries, which are loaded at run time.

use crate::{NativeError, NativeResult};
use std::ffi::CStr;

const LIBRARY: &str = "libtorch_cuda.so";

/// Loads `libtorch_cuda.so`; an error if it, or a library it needs, is missing.
pub fn load_cuda() -> NativeResult<()> {
    // SAFETY: the name is zero-terminated; libtorch's own initialisers run, as they would had it been linked.
    let handle = unsafe { libc::dlopen(c"libtorch_cuda.so".as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    if !handle.is_null() {
        return Ok(());
    }
    // SAFETY: dlerror takes nothing.
    let message = unsafe { libc::dlerror() };
    let reason = if message.is_null() {
        String::from("no reason given")
    } else {
        // SAFETY: a message that is not null is zero-terminated and lives until this thread's next dl call.
        unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned()
    };
    let library = LIBRARY;
    Err(NativeError::Load { library, reason })
}

/// Version of the loaded libtorch, which may differ from the one compiled against; "unknown" if it has none.
pub fn torch_version() -> String {
    // SAFETY: the shim returns a zero-terminated string of this thread, which lives until this thread's next such call.
    let text = unsafe { CStr::from_ptr(crate::ffi::souk_show_config()) }.to_string_lossy();
    let version = text
        .split_once("TORCH_VERSION=")
        .and_then(|(_, rest)| rest.split([',', ' ', '\n']).next())
        .unwrap_or("unknown");
    version.to_owned()
}
