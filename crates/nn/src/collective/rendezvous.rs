//! Reads torchrun's environment variables: the rank of this process and the address of rank 0. Never guesses: a missing or
//! invalid variable is an error that names it. Only `LOCAL_RANK` is optional: the default is Slurm's SLURM_LOCALID, or 0.

use souk_io::error::{Error, Result};

const NAMES: [&str; 5] = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"];

/// Rank of this process, and the address of rank 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendezvous {
    pub rank: usize,
    pub size: usize,
    /// Rank within this machine; also the number of the CUDA device.
    pub local_rank: usize,
    pub address: String,
    pub port: u16,
    /// Restart count if torchrun's agent keeps the store, which outlives restarts of the ranks. `None`: rank 0 keeps the
    /// store.
    pub restart: Option<u64>,
}

impl Rendezvous {
    /// Reads the environment; `None` if no variable is set, so this process is alone.
    pub fn from_environment() -> Result<Option<Self>> {
        Self::read(|name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
    }

    fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Self>> {
        let set: Vec<&str> = NAMES.into_iter().filter(|name| variable(name).is_some()).collect();
        if set.is_empty() {
            return Ok(None);
        }
        let text = |name: &str| {
            let value = variable(name).filter(|value| !value.trim().is_empty());
            value.map(|value| value.trim().to_owned()).ok_or_else(|| missing(name, &set))
        };
        let rendezvous = Self {
            rank: number("RANK", &text("RANK")?)?,
            size: number("WORLD_SIZE", &text("WORLD_SIZE")?)?,
            local_rank: {
                let name = if variable("LOCAL_RANK").is_some() { "LOCAL_RANK" } else { "SLURM_LOCALID" };
                variable(name).map_or(Ok(0), |_| number(name, &text(name)?))?
            },
            address: text("MASTER_ADDR")?,
            port: number("MASTER_PORT", &text("MASTER_PORT")?)?,
            restart: match variable("TORCHELASTIC_USE_AGENT_STORE").as_deref() {
                Some("True") => {
                    let count = variable("TORCHELASTIC_RESTART_COUNT").unwrap_or_else(|| "0".to_owned());
                    Some(number("TORCHELASTIC_RESTART_COUNT", &count)?)
                }
                _ => None,
            },
        };
        rendezvous.checked().map(Some)
    }

    fn checked(self) -> Result<Self> {
        let Self { rank, size, local_rank, port, .. } = self;
        if size == 0 || i32::try_from(size).is_err() {
            return Err(Error::config("WORLD_SIZE", format!("{size} is not a number of ranks: set it to 1 or more")));
        }
        if rank >= size {
            let problem = format!("{rank} must be below WORLD_SIZE, which is {size}: ranks count from 0");
            return Err(Error::config("RANK", problem));
        }
        if local_rank > rank {
            let problem =
                format!("{local_rank} is above RANK, which is {rank}: set it to the rank on this machine, from 0");
            return Err(Error::config("LOCAL_RANK", problem));
        }
        if port == 0 {
            return Err(Error::config("MASTER_PORT", "0 is not a port: set it to a free port of rank 0's machine"));
        }
        Ok(self)
    }
}

fn missing(name: &str, set: &[&str]) -> Error {
    let what = match name {
        "RANK" => "the number of this process, from 0",
        "WORLD_SIZE" => "the number of processes",
        "LOCAL_RANK" => "the number of this process on its machine, from 0",
        "MASTER_ADDR" => "the host name or address of rank 0",
        _ => "a free port of rank 0's machine",
    };
    let problem = format!(
        "is not set, but {} is: set it to {what}, or start with `souk launch` or torchrun, which set all of them",
        set.join(", ")
    );
    Error::config(name, problem)
}

fn number<T: std::str::FromStr>(name: &str, text: &str) -> Result<T> {
    text.parse().map_err(|_| Error::config(name, format!("`{text}` is not a valid number: set it as torchrun does")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [(&str, &str); 5] =
        [("RANK", "3"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "1"), ("MASTER_ADDR", "host-a"), ("MASTER_PORT", "29500")];

    fn read(changes: &[(&str, Option<&str>)]) -> Result<Option<Rendezvous>> {
        Rendezvous::read(|name| {
            let plain = ALL.iter().find(|(key, _)| *key == name).map(|(_, value)| *value);
            changes.iter().find(|(key, _)| *key == name).map_or(plain, |(_, value)| *value).map(str::to_owned)
        })
    }

    #[test]
    fn reads_the_variables_and_nothing_without_them() {
        let rendezvous = read(&[]).unwrap().unwrap();
        let want = Rendezvous { rank: 3, size: 4, local_rank: 1, address: "host-a".into(), port: 29500, restart: None };
        assert_eq!(rendezvous, want);
        assert_eq!(Rendezvous::read(|_| None).unwrap(), None);
        let local = |changes: &[_]| read(changes).unwrap().unwrap().local_rank;
        assert_eq!(local(&[("LOCAL_RANK", None)]), 0);
        assert_eq!(local(&[("LOCAL_RANK", None), ("SLURM_LOCALID", Some("2"))]), 2);
    }

    #[test]
    fn detects_whether_torchrun_keeps_the_store() {
        let kept = ("TORCHELASTIC_USE_AGENT_STORE", Some("True"));
        assert_eq!(read(&[kept]).unwrap().unwrap().restart, Some(0));
        let again = ("TORCHELASTIC_RESTART_COUNT", Some("2"));
        assert_eq!(read(&[kept, again]).unwrap().unwrap().restart, Some(2));
        assert_eq!(read(&[("TORCHELASTIC_USE_AGENT_STORE", Some("False")), again]).unwrap().unwrap().restart, None);
    }

    #[test]
    fn errors_name_the_missing_or_invalid_variable() {
        for (name, _) in ALL {
            for value in [None, Some(" ")].into_iter().filter(|value| name != "LOCAL_RANK" || value.is_some()) {
                let message = read(&[(name, value)]).unwrap_err().to_string();
                assert!(
                    message.starts_with(&format!("{name}: is not set")) && message.contains("set it to"),
                    "{message}"
                );
            }
        }
        for (name, value) in [
            ("RANK", "first"),
            ("RANK", "-1"),
            ("RANK", "4"),
            ("WORLD_SIZE", "0"),
            ("WORLD_SIZE", "99999999999999"),
            ("LOCAL_RANK", "4"),
            ("MASTER_PORT", "0"),
            ("MASTER_PORT", "70000"),
        ] {
            let error = read(&[(name, Some(value))]).unwrap_err();
            assert!(matches!(&error, Error::Config { place, .. } if place == name), "{name}={value}: {error}");
        }
    }
}
