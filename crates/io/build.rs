//! Sets the run path of tests and benches to the libtorch they were built with; LD_LIBRARY_PATH takes precedence.

fn main() {
    if let Ok(lib) = std::env::var("DEP_TCH_LIBTORCH_LIB") {
        println!("cargo:rustc-link-arg=-Wl,--enable-new-dtags,-rpath,{lib}");
    }
    println!("cargo:rerun-if-changed=build.rs");
}
