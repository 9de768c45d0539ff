"""The tables of a store, their upgrade from earlier versions, and the name of its file."""

from __future__ import annotations

import apsw

FORMAT_VERSION = 3
APPLICATION_ID = 0x4C494F52  # in the file's header; distinguishes stores from other programs' databases
FILE_NAME = "ordack.sqlite"

PRIVATE = 0
SYSTEM = 1
SUBQUEUE = 2  # of a private queue: accepts only messages moved from that queue
POISON = ";poison"  # suffix of a queue's name: its sub-queue for messages with too many aborts
ORDER_QUEUE_ID = 4

CLOSED_QUEUES = ("order_queue$", "notify_queue$")  # closed to applications (B-085)
FIRST_PRIVATE_ID = 16

SCHEMA = """
CREATE TABLE settings (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE queues (
    id INTEGER PRIMARY KEY AUTOINCREMENT,      -- PrivateQueueIdentifier, never used twice
    name TEXT NOT NULL UNIQUE COLLATE NOCASE,
    transactional INTEGER NOT NULL,
    kind INTEGER NOT NULL,
    quota INTEGER,                             -- bytes; NULL: no limit
    messages INTEGER NOT NULL DEFAULT 0,
    bytes INTEGER NOT NULL DEFAULT 0);
CREATE TABLE messages (
    lookup_id INTEGER PRIMARY KEY AUTOINCREMENT, -- order of arrival
    queue INTEGER NOT NULL,
    rank INTEGER NOT NULL,                       -- 7 - priority: order of reading is (rank, lookup_id)
    arrived INTEGER NOT NULL,                    -- microseconds since 1970
    expires INTEGER,                             -- when TimeToBeReceived is over, seconds since 1970; NULL: never
    wants INTEGER NOT NULL,                      -- what its removal leads to, bits of messages.py
    peer BLOB,                                   -- queue manager that acknowledgements go back to,
    address TEXT,                                -- and the IP address that it had
    own INTEGER,                                 -- MessageID, if it was sent on this queue manager
    dead_letter TEXT,                            -- then: the application's dead-letter queue
    purged INTEGER NOT NULL DEFAULT 0,           -- it goes when its receive ends without a commit
    in_doubt INTEGER NOT NULL DEFAULT 0,         -- of a dead letter: it may have been received all the same
    aborts INTEGER NOT NULL DEFAULT 0,           -- how often a receive of it by an application was begun
    correlation BLOB,                            -- CorrelationID of the packet; NULL: it is zero
    count INTEGER NOT NULL DEFAULT 1,            -- packets in the row; lookup_id is the last one's
    packet BLOB NOT NULL);                       -- last, as in outgoing_messages
CREATE INDEX messages_expiry ON messages (expires) WHERE expires IS NOT NULL;
CREATE INDEX messages_purged ON messages (lookup_id) WHERE purged;
CREATE INDEX messages_own ON messages (own) WHERE own IS NOT NULL;
CREATE INDEX messages_order ON messages (queue, rank, lookup_id);
CREATE INDEX messages_answering ON messages (queue, correlation, rank, lookup_id) WHERE correlation IS NOT NULL;
CREATE TABLE incoming (
    source BLOB NOT NULL,
    destination TEXT NOT NULL,                   -- the name that the source's stream has, see Manager
    ordinal INTEGER NOT NULL, time_stamp INTEGER NOT NULL, number INTEGER NOT NULL, reject_count INTEGER NOT NULL,
    last_access INTEGER NOT NULL,                -- seconds since 1970
    order_ack_limit INTEGER,                     -- no OrderAck names a higher number, see incoming.py; NULL: none
    PRIMARY KEY (source, destination)) WITHOUT ROWID;
CREATE TABLE outgoing (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    format_name TEXT NOT NULL UNIQUE COLLATE NOCASE,
    ordinal INTEGER NOT NULL, time_stamp INTEGER NOT NULL, number INTEGER NOT NULL, last_ack INTEGER NOT NULL,
    on_hold INTEGER NOT NULL DEFAULT 0,
    sent_to INTEGER NOT NULL DEFAULT 0,          -- messages up to this one may have been transmitted
    resends INTEGER NOT NULL DEFAULT 0,          -- how often an operator has asked for one
    discarded INTEGER NOT NULL DEFAULT 0,        -- written by earlier programs only
    address TEXT,                                -- from where the peer has connected last, if the queue is for one
    messages INTEGER NOT NULL DEFAULT 0,
    bytes INTEGER NOT NULL DEFAULT 0);
CREATE TABLE outgoing_messages (
    id INTEGER PRIMARY KEY AUTOINCREMENT,        -- order of sending
    outgoing INTEGER NOT NULL,
    message_id INTEGER NOT NULL,
    ordinal INTEGER NOT NULL, time_stamp INTEGER NOT NULL, number INTEGER NOT NULL, -- 0: not transactional
    recoverable INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    journal INTEGER NOT NULL,                    -- bits 1 JN, 2 JP
    own INTEGER NOT NULL,                        -- 0: forwarded
    send_until INTEGER NOT NULL,                 -- not sent after that; seconds since 1970
    due INTEGER,                                 -- when something becomes of it if nothing happens; NULL: never
    confirmation BLOB,                           -- record of mqqb.confirm; NULL: not transactional, or not sent here
    dead_letter TEXT,                            -- the application's dead-letter queue
    held INTEGER NOT NULL DEFAULT 0,             -- not to be sent any more: it waits for its FinalAck or its deadline
    deleted INTEGER NOT NULL DEFAULT 0,          -- an operator wants it to end
    count INTEGER NOT NULL DEFAULT 1,            -- packets in the row
    packet BLOB NOT NULL);                       -- last: SQLite reads through it to reach what follows
CREATE INDEX outgoing_messages_order ON outgoing_messages (outgoing, id);
CREATE INDEX outgoing_messages_own ON outgoing_messages (message_id) WHERE own;
CREATE INDEX outgoing_messages_due ON outgoing_messages (due) WHERE due IS NOT NULL;
CREATE INDEX outgoing_messages_aside ON outgoing_messages (outgoing, id) WHERE held OR number = 0;
CREATE TABLE outcomes (                          -- of transactional messages sent here that have ended
    message_id INTEGER PRIMARY KEY,
    confirmation BLOB NOT NULL,
    ended INTEGER NOT NULL,                      -- seconds since 1970
    destination TEXT,                            -- of one that was not delivered: its format name
    count INTEGER NOT NULL DEFAULT 1);           -- messages in the row
CREATE TABLE history (
    source BLOB NOT NULL, message_id INTEGER NOT NULL, time INTEGER NOT NULL,
    PRIMARY KEY (source, message_id)) WITHOUT ROWID;
CREATE TABLE exports (                           -- the last segment of a queue in a folder, see pipeline/segments.py
    queue TEXT NOT NULL COLLATE NOCASE,          -- its name: a queue made again under it goes on where that one ended
    folder TEXT NOT NULL,                        -- the folder's own identifier,
    path TEXT NOT NULL,                          -- and where it was
    serial INTEGER NOT NULL,
    name TEXT NOT NULL,                          -- of the file when it is visible
    messages INTEGER NOT NULL, size INTEGER NOT NULL, -- the file's, in bytes
    pending INTEGER NOT NULL,                    -- 1: it is not known to be visible; 2: nor is that expected any more
    PRIMARY KEY (queue, folder)) WITHOUT ROWID;
CREATE TABLE answers (                           -- the last commit of each application that has `serve` do it
    application BLOB PRIMARY KEY,
    number INTEGER NOT NULL,
    answer BLOB NOT NULL,
    time INTEGER NOT NULL) WITHOUT ROWID;        -- seconds since 1970
"""
CLAIMS = """
CREATE TABLE claims (                            -- names that peers have announced
    folded TEXT PRIMARY KEY,                     -- the name as it is compared
    name TEXT NOT NULL,
    guid BLOB NOT NULL,
    certified INTEGER NOT NULL,                  -- its certificate has this name
    heard INTEGER NOT NULL) WITHOUT ROWID;       -- seconds since 1970
"""
SCHEMA += CLAIMS

_ADD_COUNT = "ALTER TABLE {} ADD COLUMN count INTEGER NOT NULL DEFAULT 1;"
UPGRADES = {  # by the version before
    1: "".join(map(_ADD_COUNT.format, ("messages", "outgoing_messages", "outcomes"))),
    2: CLAIMS,
}


def upgrade(connection: apsw.Connection, journal: str) -> None:
    """Upgrade a store of an earlier format version in one transaction. journal: journal mode for it. The file must not
    be open elsewhere: an earlier program would go on with the tables that it knows. Raises apsw.Error."""
    connection.pragma("journal_mode", journal)  # fails while a write-ahead log has another user
    connection.execute("BEGIN EXCLUSIVE")
    try:
        for version in range(connection.pragma("user_version"), FORMAT_VERSION):
            connection.execute(UPGRADES[version])
        connection.pragma("user_version", FORMAT_VERSION)
        connection.execute("COMMIT")
    finally:
        if not connection.get_autocommit():
            connection.execute("ROLLBACK")
