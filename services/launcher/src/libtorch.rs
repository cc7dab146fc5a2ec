//! Finds the libtorch to run with, from the environment, the folder that Souk is installed in, and the build folder, and checks its
//! version. Errors list the places searched and what to do. Reads files only; loads no library.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

pub type Environment = HashMap<OsString, OsString>;

const VERSION: &str = "2.11.0";
const PACKAGE: &str = "the Python environment of this program";
const ARCHIVE: &str = "the archive of this program";
const LIBRARY: &str = if cfg!(target_os = "macos") { "libtorch_cpu.dylib" } else { "libtorch_cpu.so" };

#[derive(Debug)]
pub enum Problem {
    Nowhere { looked_at: Vec<PathBuf> },
    NoLibrary { folder: PathBuf, named_by: &'static str },
    WrongVersion { folder: PathBuf, named_by: &'static str, version: String },
    Python { problem: io::Error },
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nowhere { looked_at } => {
                writeln!(f, "no libtorch found")?;
                writeln!(f, "  neither LIBTORCH nor LIBTORCH_USE_PYTORCH is set, and these folders do not exist:")?;
                for folder in looked_at {
                    writeln!(f, "    {}", folder.display())?;
                }
                writeln!(f, "  Installed with pip: run `pip install torch=={VERSION}` in the same environment.")?;
                write!(f, "  Otherwise run `make setup`, or set LIBTORCH to the folder of libtorch {VERSION}.")
            }
            Self::NoLibrary { folder, named_by } => {
                writeln!(f, "{} has no lib/{LIBRARY}, so it is no libtorch", folder.display())?;
                write!(f, "  The folder comes from {named_by}. {}", remedy(named_by))
            }
            Self::WrongVersion { folder, named_by, version } => {
                writeln!(f, "{} is libtorch {version}; this program needs {VERSION}", folder.display())?;
                write!(f, "  The folder comes from {named_by}. {}", remedy(named_by))
            }
            Self::Python { problem } => {
                writeln!(f, "LIBTORCH_USE_PYTORCH is set, but Python gives no torch: {problem}")?;
                write!(f, "  Activate an environment with torch {VERSION}, or unset LIBTORCH_USE_PYTORCH.")
            }
        }
    }
}

fn remedy(named_by: &str) -> String {
    if named_by == PACKAGE {
        format!("Run `pip install torch=={VERSION}` there, or set LIBTORCH to the folder of libtorch {VERSION}.")
    } else if named_by == ARCHIVE {
        "Unpack Souk's archive again.".to_owned()
    } else if named_by.starts_with("LIBTORCH") {
        format!("Let {named_by} lead to libtorch {VERSION}, or unset it and run `make setup`.")
    } else {
        format!("Delete it and run `make setup`, or set LIBTORCH to the folder of libtorch {VERSION}.")
    }
}

/// The user's setting, even if it is wrong; else the first folder that exists: beside `program`, the build's, the cache's. A Python's package
/// torch counts only if its version fits.
pub fn choose(
    environment: &Environment,
    program: Option<&Path>,
    built_with: Option<&str>,
    ask_python: impl FnOnce(bool) -> io::Result<PathBuf>,
) -> Result<PathBuf, Problem> {
    let variable = |name: &str| environment.get(&OsString::from(name)).filter(|value| !value.is_empty());
    let any_version = variable("LIBTORCH_BYPASS_VERSION_CHECK").is_some();
    if let Some(folder) = variable("LIBTORCH") {
        return checked(folder.into(), "LIBTORCH", any_version);
    }
    if variable("LIBTORCH_USE_PYTORCH").is_some() {
        let folder = ask_python(variable("VIRTUAL_ENV").is_some()).map_err(|problem| Problem::Python { problem })?;
        return checked(folder, "LIBTORCH_USE_PYTORCH", any_version);
    }
    let (mut looked_at, mut unfit) = (Vec::new(), None);
    let beside = program.map(beside).unwrap_or_default();
    let built_with = built_with.map(|folder| (PathBuf::from(folder), "the build of this program"));
    let cached = cache(environment).map(|cache| (cache.join(format!("libtorch-{VERSION}/torch")), "Souk's cache"));
    for (folder, named_by) in beside.into_iter().chain(built_with).chain(cached) {
        if !folder.exists() {
            looked_at.push(folder);
            continue;
        }
        match checked(folder, named_by, any_version) {
            // other programs' torch, as in /usr/local, which also holds several Pythons
            Err(problem) if named_by == PACKAGE => unfit = unfit.or(Some(problem)),
            chosen => return chosen,
        }
    }
    Err(unfit.unwrap_or(Problem::Nowhere { looked_at }))
}

/// PREFIX/bin/souk: the libtorch of Souk's archive, and the package torch of each Python below PREFIX.
fn beside(program: &Path) -> Vec<(PathBuf, &'static str)> {
    let Some(prefix) = program.parent().and_then(Path::parent) else { return Vec::new() };
    let mut folders = vec![(prefix.join("libtorch/torch"), ARCHIVE)];
    let pythons = fs::read_dir(prefix.join("lib")).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut pythons: Vec<_> = pythons.filter(|path| is_python(path)).collect();
    pythons.sort();
    for python in pythons {
        folders.extend(["site-packages/torch", "dist-packages/torch"].map(|torch| (python.join(torch), PACKAGE)));
    }
    folders
}

fn is_python(folder: &Path) -> bool {
    folder.file_name().is_some_and(|name| name.to_string_lossy().starts_with("python3"))
}

fn checked(folder: PathBuf, named_by: &'static str, any_version: bool) -> Result<PathBuf, Problem> {
    if !folder.join("lib").join(LIBRARY).exists() {
        return Err(Problem::NoLibrary { folder, named_by });
    }
    match version(&folder) {
        // `2.11.0+cu130` is 2.11.0, built for CUDA 13.0.
        Some(version) if !any_version && version.split('+').next() != Some(VERSION) => {
            Err(Problem::WrongVersion { folder, named_by, version })
        }
        _ => Ok(folder),
    }
}

/// Version file of a wheel, of libtorch's zip archive, or of its headers.
fn version(folder: &Path) -> Option<String> {
    let read = |file: &str| fs::read_to_string(folder.join(file)).ok();
    read("version.py")
        .and_then(|text| version_in_python(&text))
        .or_else(|| read("build-version").map(|text| text.trim().to_owned()))
        .or_else(|| read("include/torch/headeronly/version.h").and_then(|text| version_in_header(&text)))
}

fn version_in_python(text: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with("__version__"))?;
    line.split(['\'', '"']).nth(1).map(str::to_owned)
}

fn version_in_header(text: &str) -> Option<String> {
    let number = |name: &str| {
        text.lines().find_map(|line| line.strip_prefix("#define TORCH_VERSION_")?.strip_prefix(name)).map(str::trim)
    };
    Some(format!("{}.{}.{}", number("MAJOR ")?, number("MINOR ")?, number("PATCH ")?))
}

fn cache(environment: &Environment) -> Option<PathBuf> {
    let variable = |name: &str| environment.get(&OsString::from(name)).filter(|value| !value.is_empty());
    variable("SOUK_CACHE")
        .map(PathBuf::from)
        .or_else(|| variable("XDG_CACHE_HOME").map(|folder| Path::new(folder).join("souk")))
        .or_else(|| variable("HOME").map(|folder| Path::new(folder).join(".cache/souk")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PYTHON_WHEEL: (&str, &str) = ("version.py", "__all__ = ['__version__']\n__version__ = '2.11.0+cu130'\n");
    const OLD_WHEEL: (&str, &str) = ("version.py", "__version__ = '2.10.1'\n");

    fn install(folder: &Path, wheel: (&str, &str)) -> String {
        let (file, text) = wheel;
        let file = folder.join(file);
        fs::create_dir_all(folder.join("lib")).unwrap();
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(folder.join("lib").join(LIBRARY), "").unwrap();
        fs::write(file, text).unwrap();
        folder.to_str().unwrap().to_owned()
    }

    fn environment(variables: &[(&str, &str)]) -> Environment {
        variables.iter().map(|(name, value)| (name.into(), value.into())).collect()
    }

    fn no_python(_: bool) -> io::Result<PathBuf> {
        panic!("Python is asked only when LIBTORCH_USE_PYTORCH is set")
    }

    #[test]
    fn what_the_user_names_stands_above_build_and_cache() {
        let place = tempfile::tempdir().unwrap();
        let folder = |name: &str| install(&place.path().join(name), PYTHON_WHEEL);
        let (own, python, built) = (folder("own"), folder("python"), folder("built"));
        let cached = folder("souk/libtorch-2.11.0/torch");
        let cache = ("XDG_CACHE_HOME", place.path().to_str().unwrap());

        let chosen = |variables: &[_], built_with| {
            choose(&environment(variables), None, built_with, |_| Ok(python.clone().into())).unwrap()
        };
        let all = [("LIBTORCH", own.as_str()), ("LIBTORCH_USE_PYTORCH", "1"), cache];
        assert_eq!(chosen(&all, Some(&built)), Path::new(&own));
        assert_eq!(chosen(&all[1..], Some(&built)), Path::new(&python));
        assert_eq!(chosen(&all[2..], Some(&built)), Path::new(&built));
        assert_eq!(chosen(&all[2..], Some("/gone")), Path::new(&cached));
        assert_eq!(chosen(&all[2..], None), Path::new(&cached));
    }

    #[test]
    fn a_program_that_is_installed_uses_the_libtorch_of_its_environment() {
        let place = tempfile::tempdir().unwrap();
        let (env, built) = (place.path().join("env"), install(&place.path().join("built"), PYTHON_WHEEL));
        let program = env.join("bin/souk");
        let chosen = || choose(&environment(&[]), Some(&program), Some(&built), no_python);
        assert_eq!(chosen().unwrap(), Path::new(&built));
        let package = install(&env.join("lib/python3.11/site-packages/torch"), PYTHON_WHEEL);
        assert_eq!(chosen().unwrap(), Path::new(&package));
        let archive = install(&env.join("libtorch/torch"), PYTHON_WHEEL);
        assert_eq!(chosen().unwrap(), Path::new(&archive));

        fs::remove_dir_all(env.join("libtorch")).unwrap();
        install(&env.join("lib/python3.11/site-packages/torch"), OLD_WHEEL);
        assert_eq!(chosen().unwrap(), Path::new(&built));
        let newer = install(&env.join("lib/python3.12/dist-packages/torch"), PYTHON_WHEEL);
        assert_eq!(chosen().unwrap(), Path::new(&newer));
        fs::remove_dir_all(newer).unwrap();
        let message = choose(&environment(&[]), Some(&program), None, no_python).unwrap_err().to_string();
        assert!(message.contains("2.10.1") && message.contains("pip install torch==2.11.0"), "{message}");
    }

    #[test]
    fn a_wrong_version_is_named_with_its_folder_and_the_needed_one() {
        let place = tempfile::tempdir().unwrap();
        let folder = install(place.path(), OLD_WHEEL);
        let message = choose(&environment(&[("LIBTORCH", &folder)]), None, None, no_python).unwrap_err().to_string();
        for part in [&folder, "2.10.1", "2.11.0", "LIBTORCH"] {
            assert!(message.contains(part), "{part} is missing in: {message}");
        }
        let bypass = environment(&[("LIBTORCH", &folder), ("LIBTORCH_BYPASS_VERSION_CHECK", "1")]);
        assert!(choose(&bypass, None, None, no_python).is_ok());
    }

    #[test]
    fn the_version_is_read_from_every_kind_of_install() {
        let header = "#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR 11\n#define TORCH_VERSION_PATCH 0\n";
        let installs = [
            (PYTHON_WHEEL, true),
            (OLD_WHEEL, false),
            (("build-version", "2.11.0+cpu\n"), true),
            (("build-version", "2.11.1+cpu\n"), false),
            (("include/torch/headeronly/version.h", header), true),
            (("include/torch/headeronly/version.h", &header.replace("11", "12")), false),
            (("unversioned", ""), true),
        ];
        for (files, fits) in installs {
            let place = tempfile::tempdir().unwrap();
            let folder = install(place.path(), files);
            let chosen = choose(&environment(&[("LIBTORCH", &folder)]), None, None, no_python);
            assert_eq!(chosen.is_ok(), fits, "{files:?} gave {chosen:?}");
        }
    }

    #[test]
    fn a_folder_without_the_library_is_an_error_even_when_the_cache_has_one() {
        let place = tempfile::tempdir().unwrap();
        install(&place.path().join("libtorch-2.11.0/torch"), PYTHON_WHEEL);
        let variables = [("LIBTORCH", "/nowhere"), ("SOUK_CACHE", place.path().to_str().unwrap())];
        let problem = choose(&environment(&variables), None, None, no_python).unwrap_err();
        assert!(matches!(problem, Problem::NoLibrary { named_by: "LIBTORCH", .. }), "{problem}");
    }

    #[test]
    fn nothing_found_says_where_it_looked() {
        let message = choose(&environment(&[("HOME", "/h")]), None, Some("/gone"), no_python).unwrap_err().to_string();
        for part in ["/gone", "/h/.cache/souk/libtorch-2.11.0/torch", "make setup"] {
            assert!(message.contains(part), "{part} is missing in: {message}");
        }
    }
}
