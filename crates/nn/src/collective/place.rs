//! torchrun's variables to this process's place among the ranks. Never guesses: some variables without the others, or one
//! that cannot be right, is an error that names it. `LOCAL_RANK` alone may be left out: it is Slurm's SLURM_LOCALID, or 0.

use souk_io::error::{Error, Result};

const NAMES: [&str; 5] = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"];

/// Which rank this process is, and where rank 0 is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub rank: usize,
    pub size: usize,
    /// The rank among those of this machine: the number of its CUDA device.
    pub local_rank: usize,
    pub address: String,
    pub port: u16,
    /// torchrun keeps the store itself, and keeps it over restarts of its ranks: this is which start it is. Without
    /// torchrun's agent, rank 0 keeps the store.
    pub restart: Option<u64>,
}

impl Place {
    /// `None` where no variable is set: this process is alone.
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
        let place = Self {
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
        place.checked().map(Some)
    }

    fn checked(self) -> Result<Self> {
        let Self { rank, size, local_rank, port, .. } = self;
        if size == 0 || i32::try_from(size).is_err() {
            return Err(Error::config("WORLD_SIZE", format!("{size} is no number of ranks: set how many take part")));
        }
        if rank >= size {
            let problem = format!("{rank} is not below WORLD_SIZE, which is {size}: ranks count from 0");
            return Err(Error::config("RANK", problem));
        }
        if local_rank > rank {
            let problem = format!("{local_rank} is above RANK, which is {rank}: it counts this machine's ranks from 0");
            return Err(Error::config("LOCAL_RANK", problem));
        }
        if port == 0 {
            return Err(Error::config("MASTER_PORT", "0 is no port: set a free port of the machine of rank 0"));
        }
        Ok(self)
    }
}

fn missing(name: &str, set: &[&str]) -> Error {
    let what = match name {
        "RANK" => "the number of this process among all, from 0",
        "WORLD_SIZE" => "how many processes take part",
        "LOCAL_RANK" => "the number of this process on its machine, from 0",
        "MASTER_ADDR" => "the name or address of rank 0's machine",
        _ => "a free port of rank 0's machine",
    };
    let problem = format!(
        "is not set, but {} is: set it to {what}, or start with `souk launch` or torchrun, which set all",
        set.join(", ")
    );
    Error::config(name, problem)
}

fn number<T: std::str::FromStr>(name: &str, text: &str) -> Result<T> {
    text.parse()
        .map_err(|_| Error::config(name, format!("`{text}` is not a number that fits: set it as torchrun does")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [(&str, &str); 5] =
        [("RANK", "3"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "1"), ("MASTER_ADDR", "host-a"), ("MASTER_PORT", "29500")];

    fn read(changes: &[(&str, Option<&str>)]) -> Result<Option<Place>> {
        Place::read(|name| {
            let plain = ALL.iter().find(|(key, _)| *key == name).map(|(_, value)| *value);
            changes.iter().find(|(key, _)| *key == name).map_or(plain, |(_, value)| *value).map(str::to_owned)
        })
    }

    #[test]
    fn the_variables_are_a_place_and_none_of_them_is_none() {
        let place = read(&[]).unwrap().unwrap();
        let want = Place { rank: 3, size: 4, local_rank: 1, address: "host-a".into(), port: 29500, restart: None };
        assert_eq!(place, want);
        assert_eq!(Place::read(|_| None).unwrap(), None);
        let local = |changes: &[_]| read(changes).unwrap().unwrap().local_rank;
        assert_eq!(local(&[("LOCAL_RANK", None)]), 0);
        assert_eq!(local(&[("LOCAL_RANK", None), ("SLURM_LOCALID", Some("2"))]), 2);
    }

    #[test]
    fn torchruns_own_store_is_told_from_rank_0s() {
        let kept = ("TORCHELASTIC_USE_AGENT_STORE", Some("True"));
        assert_eq!(read(&[kept]).unwrap().unwrap().restart, Some(0));
        let again = ("TORCHELASTIC_RESTART_COUNT", Some("2"));
        assert_eq!(read(&[kept, again]).unwrap().unwrap().restart, Some(2));
        assert_eq!(read(&[("TORCHELASTIC_USE_AGENT_STORE", Some("False")), again]).unwrap().unwrap().restart, None);
    }

    #[test]
    fn each_variable_that_is_missing_or_nonsense_is_named_with_what_to_set() {
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
