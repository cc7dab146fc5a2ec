-- Lowest number of the newest migration that a program must know to use the ledger after this migration: the version before can then run
-- beside the new one for the length of a rollout.
ALTER TABLE migrations ADD COLUMN compatible_from BIGINT;
