-- The same statements run on SQLite and on PostgreSQL. KEY_TEXT is text that is compared byte by byte: on PostgreSQL
-- a domain that the runner makes first (TEXT COLLATE "C"), on SQLite a name that it reads as TEXT, which is so compared.
-- Times are milliseconds since 1970. An applied migration is never edited: add the next number.

-- The last number given out of each kind. Its row is locked until the end of a transaction, so numbers appear in order:
-- who has read up to a number has missed none below it.
CREATE TABLE counters (
    name KEY_TEXT NOT NULL PRIMARY KEY,
    last BIGINT NOT NULL
);
INSERT INTO counters (name, last) VALUES ('version', 0), ('promotion', 0), ('report', 0), ('vote', 0), ('audit', 0);

CREATE TABLE items (
    id KEY_TEXT NOT NULL PRIMARY KEY,
    json TEXT NOT NULL
);

-- Not tied to items: sales are counted before a catalogue arrives and after an item has left it.
CREATE TABLE quality (
    item KEY_TEXT NOT NULL PRIMARY KEY,
    units BIGINT NOT NULL,
    returns BIGINT NOT NULL,
    ratings_sum DOUBLE PRECISION NOT NULL,
    num_ratings BIGINT NOT NULL,
    score DOUBLE PRECISION NOT NULL CHECK (score BETWEEN 0 AND 1)
);

CREATE TABLE versions (
    version KEY_TEXT NOT NULL PRIMARY KEY,
    number BIGINT NOT NULL UNIQUE,
    path TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    parent KEY_TEXT REFERENCES versions (version),
    metrics TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('candidate', 'promoted', 'rejected', 'rolled_back')),
    created_at BIGINT NOT NULL
);

CREATE TABLE generations (
    generation KEY_TEXT NOT NULL PRIMARY KEY,
    version KEY_TEXT NOT NULL REFERENCES versions (version),
    path TEXT NOT NULL,
    manifest TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('built', 'served', 'retired')),
    created_at BIGINT NOT NULL
);
CREATE INDEX generations_of_version ON generations (version, generation);

-- What is served is the last promotion that stands.
CREATE TABLE promotions (
    number BIGINT NOT NULL PRIMARY KEY,
    version KEY_TEXT NOT NULL REFERENCES versions (version),
    generation KEY_TEXT NOT NULL REFERENCES generations (generation),
    promoted_at BIGINT NOT NULL,
    undone_at BIGINT
);

CREATE TABLE reports (
    number BIGINT NOT NULL PRIMARY KEY,
    version KEY_TEXT NOT NULL REFERENCES versions (version),
    split TEXT NOT NULL,
    metrics TEXT NOT NULL,
    created_at BIGINT NOT NULL
);
CREATE INDEX reports_of_version ON reports (version, number);

CREATE TABLE votes (
    number BIGINT NOT NULL PRIMARY KEY,
    id KEY_TEXT NOT NULL UNIQUE,
    query TEXT NOT NULL,
    left_side KEY_TEXT NOT NULL,
    right_side KEY_TEXT NOT NULL,
    verdict TEXT NOT NULL CHECK (verdict IN ('good', 'same', 'bad')),
    grades TEXT NOT NULL,
    left_items BIGINT NOT NULL,
    left_good_items BIGINT NOT NULL,
    right_items BIGINT NOT NULL,
    right_good_items BIGINT NOT NULL,
    voter TEXT NOT NULL,
    cast_at BIGINT NOT NULL
);
CREATE INDEX votes_of_pair ON votes (left_side, right_side);

CREATE TABLE offsets (
    source KEY_TEXT NOT NULL,
    lane KEY_TEXT NOT NULL,
    position TEXT NOT NULL,
    revision BIGINT NOT NULL,
    moved_at BIGINT NOT NULL,
    PRIMARY KEY (source, lane)
);

-- A reward that is missing has neither score nor level.
CREATE TABLE audits (
    number BIGINT NOT NULL PRIMARY KEY,
    query TEXT NOT NULL,
    item TEXT NOT NULL,
    text_hash TEXT NOT NULL,
    source TEXT NOT NULL,
    score DOUBLE PRECISION,
    level BIGINT CHECK (level BETWEEN 1 AND 4),
    judged_at BIGINT NOT NULL
);
CREATE INDEX audits_by_time ON audits (judged_at, number);
