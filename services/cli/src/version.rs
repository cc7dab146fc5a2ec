//! `souk --version`: what runs here.

use tch::Device;

use crate::Shared;

#[expect(clippy::print_stdout, reason = "the result of the verb")]
pub fn run(shared: &Shared) -> anyhow::Result<()> {
    let config = shared.load(&[])?;
    let device = match config.model.open_device()? {
        Device::Cuda(index) => format!("cuda:{index}"),
        _ => "cpu".to_string(),
    };
    let (souk, libtorch) = (env!("CARGO_PKG_VERSION"), souk::libtorch_version());
    let threads = tch::get_num_threads();
    match shared.json {
        true => println!(
            "{}",
            serde_json::json!({"souk": souk, "libtorch": libtorch, "device": device, "threads": threads})
        ),
        false => println!("souk {souk}, libtorch {libtorch}, device {device}, {threads} threads"),
    }
    Ok(())
}
