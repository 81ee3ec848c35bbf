"""The tables of the history, and the one place that knows their form.

Times are seconds since 1970 (`at`) or durations in seconds (`_s`), memory is in MiB. A column without
a value means "unknown", never 0. The file is written by the broker alone, and read by anybody who
may read its folder.
"""

from __future__ import annotations

__all__ = ["FILE_NAME", "SCHEMA_VERSION", "TABLES"]

FILE_NAME = "history.sqlite"
SCHEMA_VERSION = 1
"""Kept in `PRAGMA user_version`."""

TABLES = """
CREATE TABLE IF NOT EXISTS lease (
    seq INTEGER PRIMARY KEY,          -- order of granting
    id TEXT NOT NULL UNIQUE,          -- the lease's id
    type TEXT NOT NULL,
    label TEXT NOT NULL DEFAULT '',
    uid INTEGER,                      -- who asked for it
    pid INTEGER,                      -- the job's main process, else its owner
    engine TEXT,                      -- run, queue, notebook, python, doit, snakemake, prefect
    policy TEXT,
    priority INTEGER,
    gpus INTEGER,                     -- as wished; NULL: no device was asked for
    devices TEXT NOT NULL DEFAULT '', -- UUIDs, separated by spaces
    booked_mib INTEGER,               -- at the grant, on each device
    probe INTEGER,                    -- 1: granted alone, to be measured
    asked_at REAL,
    granted_at REAL,
    ended_at REAL,                    -- its owner's word or proof of death; NULL: it runs
    freed_at REAL,                    -- its booking was freed: later than ended_at if it drained
    waited_s REAL,
    ran_s REAL,
    outcome TEXT,                     -- ok, failed, killed, oom, oom-suspected, cancelled, lost
    exit_code INTEGER,
    signal INTEGER,
    peak_mib INTEGER,
    source TEXT,                      -- accounting, in-process, sampled, device-delta
    cpu_s REAL,                       -- user and system time of its processes
    rss_mib INTEGER,                  -- the largest resident memory of one of its processes
    curve TEXT                        -- JSON: MiB at ten equal steps of its run, then the maximum
);
CREATE INDEX IF NOT EXISTS lease_granted ON lease (granted_at);
CREATE INDEX IF NOT EXISTS lease_ended ON lease (ended_at);
CREATE INDEX IF NOT EXISTS lease_type ON lease (type, granted_at);
CREATE INDEX IF NOT EXISTS lease_outcome ON lease (outcome, granted_at);

CREATE TABLE IF NOT EXISTS device (
    uuid TEXT PRIMARY KEY,
    idx INTEGER NOT NULL,
    model TEXT NOT NULL,
    total_mib INTEGER NOT NULL,
    capacity_mib INTEGER NOT NULL,
    seen_at REAL NOT NULL
);

CREATE TABLE IF NOT EXISTS usage (    -- one row a device and minute in which anything was held
    at REAL NOT NULL,                 -- the minute's beginning
    uuid TEXT NOT NULL,
    booked_mib REAL,                  -- means over the minute
    measured_mib REAL,
    foreign_mib REAL,
    utilisation REAL,                 -- percent, where the driver tells
    PRIMARY KEY (at, uuid)
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS lost (     -- capacity that nobody could use while somebody waited
    at REAL NOT NULL,                 -- the minute's beginning
    cause TEXT NOT NULL,              -- probe, fragmentation, head
    mib_s REAL NOT NULL,              -- MiB times seconds
    PRIMARY KEY (at, cause)
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS event (    -- what is no lease: refusals, devices, the broker itself
    seq INTEGER PRIMARY KEY,
    at REAL NOT NULL,
    event TEXT NOT NULL,              -- a name of the event schema
    data TEXT NOT NULL                -- JSON: the event as `grn events` prints it
);
CREATE INDEX IF NOT EXISTS event_at ON event (at);
"""
