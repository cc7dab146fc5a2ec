//! Device table for plans: datasheet values, and the assumed fraction that real work reaches. Nothing is measured at run time;
//! the row `cpu` was fitted on one machine.

use serde::Serialize;

use souk_io::error::{Error, Result};

/// Link between two devices: latency of a ring step in seconds, and bytes per second.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Way {
    /// Latency in seconds.
    pub alpha: f64,
    /// Bandwidth in bytes per second.
    pub beta: f64,
}

/// Device in the table.
#[derive(Clone, Debug, Serialize)]
pub struct Device {
    /// Name for `--gpu`.
    pub name: &'static str,
    /// Memory in bytes; none for a CPU.
    pub memory: Option<f64>,
    /// Dense matrix products per second in bf16, TF32 and f32; libtorch uses f32 unless TF32 is allowed.
    pub bf16: f64,
    /// TF32 operations per second.
    pub tf32: f64,
    /// f32 operations per second.
    pub f32: f64,
    /// Memory bandwidth in bytes per second.
    pub bandwidth: f64,
    /// Devices per node.
    pub per_node: u64,
    /// Link between devices of one node.
    pub inside: Way,
    /// Link between nodes.
    pub between: Way,
    /// Assumed fraction of peak FLOPS of matrix products.
    pub mfu: f64,
    /// Assumed fraction of the memory bandwidth for everything else.
    pub bandwidth_share: f64,
    /// Seconds the host needs to launch one operation.
    pub launch: f64,
    /// True if the device runs asynchronously to the host.
    pub apart: bool,
    /// Seconds per score of the loss, beyond its memory traffic.
    pub score: f64,
    /// Memory of a process before it loads a model.
    pub context: f64,
    /// Number of processes that run at full speed; more share the cores.
    pub cores: Option<f64>,
    /// Source of the numbers.
    pub source: &'static str,
}

const GIB: f64 = (1_u64 << 30) as f64;
const DATASHEET: &str = "datasheet of the SXM form (HGX for b200), dense; mfu, bandwidth_share, launch, context and the ways' \
                         share are assumptions";
const FITTED: &str = "fitted on one virtual machine with 2 cores of an AMD EPYC with full-width AVX-512 (docs/scale.md); one process a core";

/// Latency of a ring step as in NCCL's tables for large messages (src/graph/tuning.cc: 3.4 us by NVLink, 14 us by network). One
/// 400 Gb/s network adapter per GPU. Links are taken at 80 % of their bandwidth.
const NVLINK_ALPHA: f64 = 3.4e-6;
const NETWORK: Way = Way { alpha: 14e-6, beta: 0.8 * 50e9 };
/// Gloo between processes of one machine.
const LOOPBACK: Way = Way { alpha: 120e-6, beta: 1.5e9 };

const fn gpu(name: &'static str, memory: f64, products: [f64; 3], bandwidth: f64, link: f64) -> Device {
    let [bf16, tf32, f32] = products;
    Device {
        name,
        memory: Some(memory * GIB),
        bf16: bf16 * 1e12,
        tf32: tf32 * 1e12,
        f32: f32 * 1e12,
        bandwidth: bandwidth * 1e12,
        per_node: 8,
        inside: Way { alpha: NVLINK_ALPHA, beta: 0.8 * link * 1e9 },
        between: NETWORK,
        mfu: 0.6,
        bandwidth_share: 0.8,
        launch: 5e-6,
        apart: true,
        score: 0.0,
        context: 1.5 * GIB,
        cores: None,
        source: DATASHEET,
    }
}

/// NVIDIA's datasheets: A100 80 GB SXM (2021), H100 SXM (2023), H200 SXM (2024), HGX B200 (2025). Memory in GiB as CUDA shows
/// it; TFLOPS without sparsity; TB/s; NVLink in GB/s per direction.
static DEVICES: [Device; 5] = [
    gpu("a100", 79.1, [312.0, 156.0, 19.5], 2.04, 300.0),
    gpu("h100", 79.1, [989.0, 494.0, 67.0], 3.35, 450.0),
    gpu("h200", 139.8, [989.0, 494.0, 67.0], 4.8, 450.0),
    gpu("b200", 178.0, [2250.0, 1125.0, 75.0], 7.7, 900.0),
    Device {
        name: "cpu",
        memory: None,
        bf16: 380e9,
        tf32: 255e9,
        f32: 255e9,
        bandwidth: 97e9,
        per_node: u64::MAX,
        inside: LOOPBACK,
        between: LOOPBACK,
        mfu: 0.88,
        bandwidth_share: 1.0,
        launch: 2e-6,
        apart: false,
        score: 20e-9,
        context: 0.22 * GIB,
        cores: Some(2.0),
        source: FITTED,
    },
];

impl Device {
    /// Finds a device by name; the error lists the known ones.
    pub fn named(name: &str) -> Result<Self> {
        let found = DEVICES.iter().find(|device| device.name == name.to_lowercase());
        found.cloned().ok_or_else(|| {
            let known: Vec<&str> = DEVICES.iter().map(|device| device.name).collect();
            Error::input(format!("no device `{name}` is known: use one of {}", known.join(", ")))
        })
    }

    /// Slowdown of each of `n` processes that share the cores.
    pub fn crowding(&self, devices: u64) -> f64 {
        self.cores.map_or(1.0, |cores| (devices as f64 / cores).max(1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_device_is_answered_with_the_known() {
        assert_eq!(Device::named("H200").unwrap().name, "h200");
        let error = Device::named("tpu").unwrap_err().to_string();
        assert!(error.contains("`tpu`") && error.contains("a100, h100, h200, b200, cpu"), "{error}");
    }

    #[test]
    fn more_processes_than_cores_share_them() {
        let cpu = Device { cores: Some(2.0), ..Device::named("cpu").unwrap() };
        assert_eq!([1, 2, 4].map(|n| cpu.crowding(n)), [1.0, 1.0, 2.0]);
        assert_eq!(Device::named("h200").unwrap().crowding(256), 1.0);
    }
}
