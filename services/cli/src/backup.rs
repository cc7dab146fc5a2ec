//! `souk backup` and `souk restore`.

use std::time::Instant;

use anyhow::{Context, ensure};
use clap::Args;
use serde_json::json;
use souk::backup::{FinishedBackup, back_up, restore};
use souk::backups::{BackupSize, Backups};
use souk::config::{Change, Config};
use tokio::runtime::Runtime;

use crate::GlobalArgs;
use crate::output::print;

const NO_ADDRESS: &str = "no address of backups: give one, or set [search] backups in the configuration";

/// Back up the ledger, the catalogue and what is served, while everything runs
///
/// Run it with the configuration of `souk serve`, where the state folder is. Each backup is a folder below the address, named by the time,
/// with a checksum of each file. A new search replica with [search] backups begins with the newest one. Examples:
///
///   souk backup --config shop.toml --to s3://BUCKET/backups --keep 7
///   souk backup --to /mnt/backups
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub struct BackupCommand {
    /// Where backups are: a folder, s3://, gs:// or az:// (default: [search] backups)
    #[arg(long, value_name = "ADDRESS")]
    to: Option<String>,
    /// Delete all but the newest N backups afterwards (default: keep all)
    #[arg(long, value_name = "N")]
    keep: Option<usize>,
    #[command(flatten)]
    state: StateArgs,
}

/// Restore a backup on an empty machine
///
/// The configuration names the new state folder and database (`souk serve` with the same configuration continues there), and the
/// Kafka topic, if the catalogue is in one. Each must be empty, except a topic that was not lost. Every file is compared with its
/// checksum. Examples:
///
///   souk restore --config shop.toml --from s3://BUCKET/backups
///   souk restore --from /mnt/backups/20260131T100000.000Z --check
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub struct RestoreCommand {
    /// Where backups are, of which the newest is taken, or one backup (default: [search] backups)
    #[arg(long, value_name = "ADDRESS")]
    from: Option<String>,
    /// Only read the backup and compare it with its checksums
    #[arg(long)]
    check: bool,
    #[command(flatten)]
    state: StateArgs,
}

#[derive(Args)]
struct StateArgs {
    /// State folder of the search service (default: souk-search)
    #[arg(long, value_name = "DIR")]
    state: Option<String>,
}

impl StateArgs {
    fn changes(&self) -> Vec<Change> {
        self.state.iter().map(|state| Change::text("search.state", "--state", state)).collect()
    }
}

impl BackupCommand {
    pub fn run(&self, globals: &GlobalArgs) -> anyhow::Result<()> {
        let config = globals.load(self.state.changes())?;
        ensure!(self.keep != Some(0), "--keep is 0: keep at least 1 backup");
        let backups = Backups::new(address(self.to.as_ref(), &config)?);
        let (runtime, began) = (runtime()?, Instant::now());
        let FinishedBackup { address, content, size } = back_up(&config, &backups, &runtime)?;
        let num_deleted = self.keep.map_or(Ok(0), |num| backups.keep(num))?;
        let (seconds, last) = (began.elapsed().as_secs_f64(), content.last_change());
        let json =
            json!({"address": address, "content": content, "size": size, "deleted": num_deleted, "seconds": seconds});
        let mut text = format!(
            "backed up version {} at catalogue change {last} to {address}: {} in {seconds:.1} s",
            content.search.version,
            size_text(size)
        );
        if num_deleted > 0 {
            text += &format!("; older backups deleted: {num_deleted}");
        }
        print(globals, &json, &text)
    }
}

impl RestoreCommand {
    pub fn run(&self, globals: &GlobalArgs) -> anyhow::Result<()> {
        let config = globals.load(self.state.changes())?;
        let from = address(self.from.as_ref(), &config)?;
        let missing = || souk::Error::config(from, "has no complete backup: check the address");
        let backup = Backups::new(from).newest()?.ok_or_else(missing)?;
        let size = size_text(backup.size());
        if self.check {
            backup.check()?;
            let json = json!({"address": backup.address(), "size": backup.size()});
            return print(globals, &json, &format!("{} is complete and undamaged: {size}", backup.address()));
        }
        let content = restore(&config, &backup, &runtime()?)?;
        let (version, last) = (&content.search.version, content.last_change());
        let json = json!({"address": backup.address(), "content": content, "size": backup.size()});
        let text = format!(
            "restored version {version} at catalogue change {last} from {}, {size}: start `souk serve` with this configuration",
            backup.address()
        );
        print(globals, &json, &text)
    }
}

fn address<'a>(given: Option<&'a String>, config: &'a Config) -> anyhow::Result<&'a str> {
    given.or(config.search.backups.as_ref()).map(String::as_str).context(NO_ADDRESS)
}

fn runtime() -> anyhow::Result<Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?)
}

fn size_text(size: BackupSize) -> String {
    format!("{} files, {:.1} MB", size.num_files, size.bytes as f64 / 1e6)
}
