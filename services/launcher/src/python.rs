//! Finds the torch folder of the environment's Python. Does not import torch, which would take seconds.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::process::Command;

const WHERE_IS_TORCH: &str = "
import importlib.util
spec = importlib.util.find_spec('torch')
print(spec.submodule_search_locations[0] if spec else '')
";

pub fn torch_folder(in_virtual_env: bool) -> io::Result<PathBuf> {
    let python = if in_virtual_env { "python" } else { "python3" };
    let output = Command::new(python).args(["-c", WHERE_IS_TORCH]).output()?;
    let folder = output.stdout.trim_ascii();
    if output.status.success() && !folder.is_empty() {
        return Ok(OsString::from_vec(folder.to_vec()).into());
    }
    let problem = String::from_utf8_lossy(&output.stderr);
    let problem = problem.lines().last().unwrap_or("it has no torch");
    Err(io::Error::other(format!("`{python}`: {problem}")))
}
