-- The stream of catalogue changes: the latest mutation of each item, and of each set of fields that was updated since.
-- It takes the place of the items.
DROP TABLE items;

CREATE TABLE changes (
    position BIGINT NOT NULL PRIMARY KEY,
    id KEY_TEXT NOT NULL,
    -- The fields that an update replaces, as JSON; empty for a whole item and for a deletion.
    fields KEY_TEXT NOT NULL,
    json TEXT NOT NULL,
    UNIQUE (id, fields)
);
INSERT INTO counters (name, last) VALUES ('change', 0);
