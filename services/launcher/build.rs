//! Takes the libtorch that the program is built with; gives its folder to the program, as the one to use by default.

#[path = "src/python.rs"]
mod python;

use std::path::PathBuf;

fn main() {
    for variable in ["LIBTORCH", "LIBTORCH_USE_PYTORCH", "VIRTUAL_ENV"] {
        println!("cargo:rerun-if-env-changed={variable}");
    }
    // The same choice as torch-sys makes for the engine. What is wrong with it, torch-sys reports.
    let folder = if std::env::var_os("LIBTORCH_USE_PYTORCH").is_some() {
        python::torch_folder(std::env::var_os("VIRTUAL_ENV").is_some()).ok()
    } else {
        std::env::var_os("LIBTORCH").map(PathBuf::from)
    };
    if let Some(folder) = folder.as_deref().and_then(|folder| folder.to_str()) {
        println!("cargo:rustc-env=SOUK_BUILT_WITH_LIBTORCH={folder}");
    }
}
