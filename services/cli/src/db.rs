//! `souk db`: the database that keeps items, models, votes, offsets and rewards.

use clap::{Args, CommandFactory, Subcommand};
use souk::config::Change;
use souk::store::SqlLedger;

use crate::output::print;
use crate::{Shared, Souk};

/// Look after the database of items, models, votes, offsets and rewards
#[derive(Args)]
pub struct Db {
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Subcommand)]
enum Action {
    Migrate(Migrate),
}

/// Make the tables, or bring them up to date
///
/// Does nothing where nothing is to be done, and everything or nothing otherwise. Example:
///
///   souk db migrate --database sqlite:shop.db
///   PGPASSWORD=... souk db migrate --database postgres://souk@db.example.org/souk
#[derive(Args)]
#[command(verbatim_doc_comment)]
struct Migrate {
    /// sqlite:PATH or postgres://USER@HOST/DATABASE [default: store.database of the configuration, or sqlite:souk.db]
    #[arg(long, value_name = "URL")]
    database: Option<String>,
}

impl Db {
    pub fn run(&self, shared: &Shared) -> anyhow::Result<()> {
        match &self.action {
            Some(Action::Migrate(migrate)) => migrate.run(shared),
            None => {
                let mut souk = Souk::command();
                souk.build();
                let help = souk.find_subcommand_mut("db").map(|db| db.render_help().to_string()).unwrap_or_default();
                let text = help.trim_end();
                print(shared, &serde_json::json!({"help": text}), text)
            }
        }
    }
}

impl Migrate {
    fn run(&self, shared: &Shared) -> anyhow::Result<()> {
        let flags = self.database.iter().map(|url| Change::text("store.database", "--database", url));
        let database = shared.load(flags.collect())?.store.database;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let applied = runtime.block_on(SqlLedger::migrate(&database))?;
        let mut lines: Vec<String> = applied.iter().map(|migration| format!("applied {}", migration.name)).collect();
        lines.push(format!("{database} is up to date"));
        let json = serde_json::json!({"database": database.to_string(), "applied": applied});
        print(shared, &json, &lines.join("\n"))
    }
}
