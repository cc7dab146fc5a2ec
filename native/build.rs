//! Compiles the C++ shim against the libtorch found by torch-sys, and the row kernels once per instruction set.

use std::path::{Path, PathBuf};

/// The shim calls operators by signature, so it depends on the version of libtorch.
const VERSION: [u32; 3] = [2, 11, 0];
const ADVICE: &str =
    "run `make setup`, or set LIBTORCH to the folder of a libtorch 2.11.0 (the one that holds `include` and `lib`)";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=csrc");
    if let Err(message) = build() {
        println!("cargo::error={message}");
    }
}

fn build() -> Result<(), String> {
    let lib = std::env::var_os("DEP_TCH_LIBTORCH_LIB")
        .map(PathBuf::from)
        .ok_or_else(|| format!("torch-sys did not say where libtorch is: {ADVICE}"))?;
    let include = lib.with_file_name("include");
    check_version(&include)?;

    compile_kernels();
    let api = include.join("torch/csrc/api/include");
    let files = ["shim", "linear", "training_linear", "attention", "attention_cuda", "training"];
    shim(&include).include(&api).files(files.map(|name| format!("csrc/{name}.cpp"))).compile("souk_shim");
    // libtorch contains Gloo; these definitions make its header declare the class.
    shim(&include)
        .include("csrc/gloo_fwd")
        .include(&api)
        .define("USE_DISTRIBUTED", None)
        .define("USE_C10D_GLOO", None)
        .file("csrc/c10d.cpp")
        .compile("souk_c10d");

    println!("cargo:rustc-link-search=native={}", lib.display());
    for name in ["torch_cpu", "c10", "torch"] {
        println!("cargo:rustc-link-lib=dylib={name}");
    }
    // By file name: libtorch loads the copy beside it, and a second OpenMP pool would compete.
    match openmp_of(&lib) {
        Some(file) => println!("cargo:rustc-link-lib=dylib:+verbatim={file}"),
        None => println!("cargo:rustc-link-lib=dylib=gomp"),
    }
    println!("cargo:rustc-link-arg=-Wl,--enable-new-dtags,-rpath,{}", lib.display());
    Ok(())
}

fn shim(include: &Path) -> cc::Build {
    let mut build = cc::Build::new();
    build.cpp(true).std("c++17").opt_level(2).warnings(false).flag("-fopenmp").include(include);
    build
}

/// `libgomp.so.1`, or with a hash in its name if libtorch has its own.
fn openmp_of(lib: &Path) -> Option<String> {
    let files = std::fs::read_dir(lib).ok()?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    files.filter(|file| file.starts_with("libgomp") && file.contains(".so")).min()
}

fn check_version(include: &Path) -> Result<(), String> {
    let header = include.join("torch/headeronly/version.h");
    let text =
        std::fs::read_to_string(&header).map_err(|e| format!("cannot read {}: {e}; {ADVICE}", header.display()))?;
    let found = ["MAJOR", "MINOR", "PATCH"].map(|part| {
        let key = format!("#define TORCH_VERSION_{part} ");
        text.lines().find_map(|line| line.strip_prefix(&key)?.trim().parse::<u32>().ok())
    });
    if found != VERSION.map(Some) {
        return Err(format!("{} is not of libtorch 2.11.0: {ADVICE}", header.display()));
    }
    Ok(())
}

fn compile_kernels() {
    let wide = ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq"];
    kernels("baseline", &["kernels", "int8"], &[]);
    if std::env::var("CARGO_CFG_TARGET_ARCH").as_deref() == Ok("x86_64") {
        kernels("avx2", &["kernels", "int8"], &["-mavx2", "-mfma"]);
        kernels("avx512", &["kernels", "int8"], &wide);
        kernels("avx_vnni", &["int8"], &["-mavx2", "-mfma", "-mavxvnni"]);
        kernels("avx512_vnni", &["int8"], &[&wide[..], &["-mavx512vnni"]].concat());
        kernels("avx512_bf16", &["bf16"], &[&wide[..], &["-mavx512bf16"]].concat());
        kernels("amx_int8", &["int8"], &[&wide[..], &["-mavx512vnni", "-mamx-tile", "-mamx-int8"]].concat());
        kernels("amx_bf16", &["bf16"], &[&wide[..], &["-mavx512bf16", "-mamx-tile", "-mamx-bf16"]].concat());
    }
}

/// Compiles files of `csrc` for an instruction set.
fn kernels(isa: &str, files: &[&str], flags: &[&str]) {
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .opt_level(3)
        .define("SOUK_ISA", isa)
        .flags(flags)
        .flags(["-ffp-contract=fast", "-fno-math-errno", "-fno-exceptions", "-Wno-psabi"])
        .files(files.iter().map(|name| format!("csrc/{name}.cpp")))
        .compile(&format!("souk_kernels_{isa}"));
}
