//! A TensorBoard event file: TFRecord frames with a masked CRC-32C, each with a protobuf `Event`. Holds scalars only. A resumed stage
//! writes a new file, which begins with a session start at its first step: TensorBoard then drops what an earlier file has from that step
//! on.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;

use souk_io::error::{Error, Result};

const PREFIX: &str = "events.out.tfevents.";
/// First record, as TensorBoard's own writer writes it.
const VERSION: &str = "brain.Event:2";

pub struct EventFile {
    path: PathBuf,
    file: File,
}

impl EventFile {
    /// Creates the next event file of a folder, for steps from `first` on.
    pub fn create(folder: &Path, first: u64) -> Result<Self> {
        let entries = fs::read_dir(folder).map_err(Error::store(folder, "list it"))?;
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let num_before = names.filter(|name| name.starts_with(PREFIX)).count();
        let now = now();
        // TensorBoard reads the files in the order of their names
        let path = folder.join(format!("{PREFIX}{:010}.souk.{num_before:05}", now as u64));
        let file =
            File::options().create_new(true).append(true).open(&path).map_err(Error::store(&path, "create it"))?;
        let mut events = Self { path, file };
        events.write(&[frame(&version(now)), frame(&session_start(now, first))].concat())?;
        Ok(events)
    }

    /// Adds the values of a step.
    pub fn scalars(&mut self, step: u64, values: &[(String, f64)]) -> Result<()> {
        self.write(&frame(&scalars(now(), step, values)))
    }

    pub fn sync(&self) -> Result<()> {
        self.file.sync_data().map_err(Error::store(&self.path, "write it to disk"))
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(Error::store(&self.path, "write to it"))
    }
}

/// All numbers of an object by their path, such as `train/seconds/backward`; places in a list count from 1.
pub fn numbers(prefix: &str, value: &Value) -> Vec<(String, f64)> {
    let below = |name: String, value: &Value| numbers(&format!("{prefix}/{name}"), value);
    match value {
        Value::Object(fields) => fields.iter().flat_map(|(name, value)| below(name.clone(), value)).collect(),
        Value::Array(values) => {
            let places = (1..=values.len()).map(|at| at.to_string());
            places.zip(values).flat_map(|(place, value)| below(place, value)).collect()
        }
        other => other.as_f64().map(|number| (prefix.to_owned(), number)).into_iter().collect(),
    }
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// `Event { wall_time = 1, file_version = 3 }`
fn version(time: f64) -> Vec<u8> {
    [double(1, time), bytes(3, VERSION.as_bytes())].concat()
}

/// `Event { wall_time = 1, step = 2, session_log = 7 }` with `SessionLog { status = 1 }`, which is START.
fn session_start(time: f64, step: u64) -> Vec<u8> {
    [double(1, time), number(2, step), bytes(7, &number(1, 1))].concat()
}

/// `Event { wall_time = 1, step = 2, summary = 5 }` with a `Summary { value = 1 }` of `Value { tag = 1, simple_value = 2 }`.
fn scalars(time: f64, step: u64, values: &[(String, f64)]) -> Vec<u8> {
    let value = |(tag, value): &(String, f64)| {
        let value = [vec![key(2, 5)], (*value as f32).to_le_bytes().to_vec()].concat();
        bytes(1, &[bytes(1, tag.as_bytes()), value].concat())
    };
    let values: Vec<u8> = values.iter().flat_map(value).collect();
    [double(1, time), number(2, step), bytes(5, &values)].concat()
}

/// Key of a protobuf field below 16.
fn key(field: u8, wire_type: u8) -> u8 {
    field << 3 | wire_type
}

fn double(field: u8, value: f64) -> Vec<u8> {
    [vec![key(field, 1)], value.to_le_bytes().to_vec()].concat()
}

/// A number; none if it is 0, the default.
fn number(field: u8, value: u64) -> Vec<u8> {
    if value == 0 { Vec::new() } else { [vec![key(field, 0)], varint(value)].concat() }
}

fn bytes(field: u8, value: &[u8]) -> Vec<u8> {
    [vec![key(field, 2)], varint(value.len() as u64), value.to_vec()].concat()
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value > 0x7f {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

/// A TFRecord: length, its checksum, the event, its checksum.
fn frame(event: &[u8]) -> Vec<u8> {
    let length = (event.len() as u64).to_le_bytes();
    [&length[..], &masked_crc32c(&length), event, &masked_crc32c(event)].concat()
}

fn masked_crc32c(bytes: &[u8]) -> [u8; 4] {
    crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
}

/// CRC-32 with Castagnoli's polynomial; an event has a few hundred bytes.
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc: u32, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 })
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// `tests/golden/tensorboard` has the same events by TensorBoard's own writer.
    #[test]
    fn the_bytes_are_those_of_tensorboards_writer() {
        let time = 1_700_000_000.25;
        let values = [("train/loss".to_owned(), 1.5), ("train/seconds/backward".to_owned(), 1e-3)];
        let long: Vec<(String, f64)> = (0..40).map(|at| (format!("evaluate/metric {at}"), -f64::from(at))).collect();
        let written = [version(time), session_start(time, 300), scalars(time, 300, &values), scalars(time, 0, &long)];
        let expected = fs::read(souk_testing::golden("tensorboard/events.out.tfevents.1700000000.golden")).unwrap();
        assert_eq!(written.map(|event| frame(&event)).concat(), expected);
    }

    #[test]
    fn the_check_value_of_crc32c() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn every_number_of_a_report_has_a_name() {
        let report = json!({"loss": 1.5, "levels": [0.25, 0.75], "seconds": {"data": 2}, "judge": "x", "kl": null});
        let mut found = numbers("train", &report);
        found.sort_by(|a, b| a.0.cmp(&b.0));
        let expected =
            [("train/levels/1", 0.25), ("train/levels/2", 0.75), ("train/loss", 1.5), ("train/seconds/data", 2.0)];
        assert_eq!(found, expected.map(|(name, value)| (name.to_owned(), value)));
    }

    #[test]
    fn a_resumed_stage_continues_in_another_file() {
        let home = tempfile::tempdir().unwrap();
        for first in [1, 5] {
            EventFile::create(home.path(), first).unwrap().scalars(first, &[("loss".into(), 1.0)]).unwrap();
        }
        let mut names: Vec<String> =
            fs::read_dir(home.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        assert!(names[0].ends_with(".souk.00000") && names[1].ends_with(".souk.00001"), "{names:?}");
        let bytes = fs::read(home.path().join(&names[1])).unwrap();
        let event = session_start(0.0, 5);
        // the time comes first
        assert!(bytes.windows(event.len() - 9).any(|part| *part == event[9..]), "no start at step 5");
    }
}
