//! `souk --version`: versions of souk and libtorch, device and number of threads.

use tch::Device;

use crate::GlobalArgs;
use crate::output::print;

pub fn run(globals: &GlobalArgs) -> anyhow::Result<()> {
    let config = globals.load(Vec::new())?;
    let device = match config.model.open_device()? {
        Device::Cuda(index) => format!("cuda:{index}"),
        _ => "cpu".to_string(),
    };
    let (souk, libtorch) = (env!("CARGO_PKG_VERSION"), souk::libtorch_version());
    let threads = tch::get_num_threads();
    let json = serde_json::json!({"souk": souk, "libtorch": libtorch, "device": device, "threads": threads});
    print(globals, &json, &format!("souk {souk}, libtorch {libtorch}, device {device}, {threads} threads"))
}
