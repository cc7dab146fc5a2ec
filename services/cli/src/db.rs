//! `souk db`: manages the SQL database (items, models, votes, offsets, rewards).

use clap::{Args, Subcommand};
use souk::config::Change;
use souk::store::SqlLedger;

use crate::output::print;
use crate::{GlobalArgs, help};

/// Manage the database of items, models, votes, offsets and rewards
#[derive(Args)]
pub struct DbCommand {
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Subcommand)]
enum Action {
    Migrate(Migrate),
}

/// Create or migrate the ledger's tables
///
/// Idempotent and atomic. Examples:
///
///   souk db migrate --database sqlite:shop.db
///   PGPASSWORD=... souk db migrate --database postgres://souk@db.example.org/souk
#[derive(Args)]
#[command(verbatim_doc_comment)]
struct Migrate {
    /// Database: sqlite:PATH or postgres://USER@HOST/DATABASE (default: store.database, or sqlite:souk.db)
    #[arg(long, value_name = "URL")]
    database: Option<String>,
}

impl DbCommand {
    pub fn run(&self, globals: &GlobalArgs) -> anyhow::Result<()> {
        match &self.action {
            Some(Action::Migrate(migrate)) => migrate.run(globals),
            None => help::of_group(globals, "db"),
        }
    }
}

impl Migrate {
    fn run(&self, globals: &GlobalArgs) -> anyhow::Result<()> {
        let flags = self.database.iter().map(|url| Change::text("store.database", "--database", url));
        let database = globals.load(flags.collect())?.store.database;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let applied = runtime.block_on(SqlLedger::migrate(&database))?;
        let mut lines: Vec<String> = applied.iter().map(|migration| format!("applied {}", migration.name)).collect();
        lines.push(format!("{database} is up to date"));
        let json = serde_json::json!({"database": database.to_string(), "applied": applied});
        print(globals, &json, &lines.join("\n"))
    }
}
