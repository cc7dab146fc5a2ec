//! Conformance tests of all ledgers: SQLite always, PostgreSQL if DATABASE_URL names a server. Each run has its own file or
//! schema.
#![expect(clippy::unwrap_used, reason = "a test stops at the first thing that is wrong")]

mod crash;
mod faults;
mod ledgers;
mod together;

mod sqlite {
    use crate::{crash, faults, ledgers, together};
    use souk_testing::databases::on_sqlite;

    #[test]
    fn does_all_that_a_ledger_does() {
        on_sqlite(ledgers::conform);
    }

    #[test]
    fn loses_nothing_among_many_writers() {
        on_sqlite(together::many_writers);
    }

    #[test]
    fn is_migrated_once_by_many() {
        on_sqlite(together::many_migrate);
    }

    #[test]
    fn refuses_a_database_of_another_program() {
        on_sqlite(faults::another_program);
    }

    #[test]
    fn keeps_acknowledged_writes_when_killed() {
        crash::write_if_child();
        on_sqlite(async |url| crash::kill_writers("sqlite::keeps_acknowledged_writes_when_killed", url).await);
    }
}

mod postgres {
    use crate::{crash, faults, ledgers, together};
    use souk_testing::databases::on_postgres;

    #[test]
    fn does_all_that_a_ledger_does() {
        on_postgres("postgres::does_all_that_a_ledger_does", ledgers::conform);
    }

    #[test]
    fn loses_nothing_among_many_writers() {
        on_postgres("postgres::loses_nothing_among_many_writers", together::many_writers);
    }

    #[test]
    fn is_migrated_once_by_many() {
        on_postgres("postgres::is_migrated_once_by_many", together::many_migrate);
    }

    #[test]
    fn refuses_a_database_of_another_program() {
        on_postgres("postgres::refuses_a_database_of_another_program", faults::another_program);
    }

    #[test]
    fn reads_a_copy_of_sqlite() {
        on_postgres("postgres::reads_a_copy_of_sqlite", ledgers::copied_from_sqlite);
    }

    #[test]
    fn says_what_is_wrong_with_an_address() {
        on_postgres("postgres::says_what_is_wrong_with_an_address", faults::wrong_addresses);
    }

    #[test]
    fn goes_on_after_its_connections_were_cut() {
        on_postgres("postgres::goes_on_after_its_connections_were_cut", faults::cut_connections);
    }

    #[test]
    fn keeps_acknowledged_writes_when_killed() {
        crash::write_if_child();
        let name = "postgres::keeps_acknowledged_writes_when_killed";
        on_postgres(name, async |url| crash::kill_writers(name, url).await);
    }
}
