"""The checks of the audit as SQL for DuckDB, over packets that are decoded already: the peer of the audit bench.

The same questions as `ordack audit` asks: order, duplicates, gaps and their bridges, renumbering, counts, coverage by
acknowledgements, what acknowledgements may name, resends after them, settlement, percentiles of latency by stream. It
has it easier where the difference is small: no capture is incomplete, there is one hop, counters do not wrap, rejection
is judged by the highest number before instead of by a replay, and an OrderAck that its sender has acknowledged is
enough to forbid a resend.
"""

from dataclasses import dataclass
from typing import Any

import duckdb

COLUMNS = [
    "row",
    "time",
    "connection",
    "direction",
    "kind",
    "base_flags",
    "source_queue_manager",
    "destination_queue",
    "message_id",
    "user_flags",
    "message_class",
    "tx_sequence_ordinal",
    "tx_sequence_time_stamp",
    "tx_sequence_number",
    "previous_tx_sequence_number",
    "ack_sequence_number",
    "recoverable_msg_ack_seq_number",
    "recoverable_msg_ack_flags",
    "user_msg_sequence_number",
    "recoverable_msg_sequence_number",
    "ack_source",
    "ack_tx_sequence_ordinal",
    "ack_tx_sequence_time_stamp",
    "ack_tx_sequence_number",
    "ack_message_id",
]

# In SessionHeaders numbers count the packets of one connection: running counts for both directions at every packet. Two
# sums, each of two counts, are cheaper than four.
_COUNTED = """
CREATE TEMP TABLE counted AS
SELECT * EXCLUDE (count_0, count_1), count_0 & 4294967295 AS sent_0, count_1 & 4294967295 AS sent_1,
  count_0 >> 32 AS recoverable_0, count_1 >> 32 AS recoverable_1
FROM (
  SELECT row, time, connection, direction, kind, (kind = 3 OR base_flags & 16 <> 0) AS header, source_queue_manager,
    destination_queue, message_id, user_flags, message_class,
    tx_sequence_time_stamp::UBIGINT << 32 | tx_sequence_ordinal AS sequence, tx_sequence_number,
    previous_tx_sequence_number, ack_sequence_number, recoverable_msg_ack_seq_number, recoverable_msg_ack_flags,
    user_msg_sequence_number, recoverable_msg_sequence_number, ack_source,
    ack_tx_sequence_time_stamp::UBIGINT << 32 | ack_tx_sequence_ordinal AS ack_sequence, ack_tx_sequence_number,
    ack_message_id,
    sum(CASE WHEN direction = 0 AND kind >= 4 THEN 1 + (user_flags & 32)::BIGINT * 134217728 ELSE 0 END)
      OVER w AS count_0,
    sum(CASE WHEN direction = 1 AND kind >= 4 THEN 1 + (user_flags & 32)::BIGINT * 134217728 ELSE 0 END)
      OVER w AS count_1
  FROM packets WHERE kind >= 3
  WINDOW w AS (PARTITION BY connection ORDER BY row ROWS UNBOUNDED PRECEDING))
"""

_HEADERS = """
CREATE TEMP TABLE headers AS
SELECT row, time, connection, direction, kind, ack_sequence_number AS acknowledged,
  recoverable_msg_ack_seq_number AS base, recoverable_msg_ack_flags AS bits,
  user_msg_sequence_number AS said, recoverable_msg_sequence_number AS said_recoverable,
  CASE direction WHEN 0 THEN sent_0 ELSE sent_1 END AS sent,
  CASE direction WHEN 0 THEN recoverable_0 ELSE recoverable_1 END AS recoverable,
  CASE direction WHEN 0 THEN sent_1 ELSE sent_0 END AS received,
  CASE direction WHEN 0 THEN recoverable_1 ELSE recoverable_0 END AS recoverable_received
FROM counted WHERE header
"""

_MESSAGES = """
CREATE TEMP TABLE messages AS
SELECT row, time, connection, direction, source_queue_manager AS source, destination_queue AS destination, sequence,
  tx_sequence_number AS number, previous_tx_sequence_number AS previous, message_id, user_flags, place,
  row_number() OVER (PARTITION BY source_queue_manager, destination_queue, sequence, tx_sequence_number ORDER BY row)
    AS transmission,
  max(tx_sequence_number) OVER (PARTITION BY source_queue_manager, destination_queue, sequence ORDER BY row
    ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS highest
FROM (SELECT *, CASE direction WHEN 0 THEN sent_0 ELSE sent_1 END AS place
      FROM counted WHERE kind = 4 AND tx_sequence_number > 0)
"""

# An OrderAck names no sender: it is the one on the other side of the connection.
_ORDER_ACKS = """
CREATE TEMP TABLE order_acks AS
SELECT row, time, connection, direction, sender.source, place, ack_tx_sequence_number AS number,
  ack_sequence AS sequence
FROM (SELECT *, CASE direction WHEN 0 THEN sent_0 ELSE sent_1 END AS place FROM counted WHERE kind = 5) ack
JOIN (SELECT connection AS c, direction AS d, any_value(source) AS source FROM messages GROUP BY ALL) sender
  ON sender.c = ack.connection AND sender.d = 1 - ack.direction
"""

_FINAL_ACKS = """
CREATE TEMP TABLE final_acks AS
SELECT row, time, connection, direction, ack_source AS source, ack_message_id AS message_id, message_id AS own_id,
  message_class, ack_tx_sequence_number AS number,
  ack_sequence AS sequence
FROM counted WHERE kind = 6
"""

_CHECKS = {
    "count_mismatch": """
        SELECT NULL AS source, NULL AS sequence, 0 AS number, connection FROM headers
        WHERE (said - sent) & 65535 NOT IN (0, CASE WHEN kind = 3 THEN 0 ELSE 65535 END)
           OR (said_recoverable - recoverable) & 65535 NOT IN (0, CASE WHEN kind = 3 THEN 0 ELSE 65535 END)""",
    "ack_beyond_receipt": """
        SELECT NULL AS source, NULL AS sequence, 0 AS number, connection FROM headers
        WHERE (acknowledged - received) & 65535 BETWEEN 1 AND 32767
           OR bits <> 0 AND (base + length(ltrim(bits::BIT::VARCHAR, '0')) - 1 - recoverable_received) & 65535
              BETWEEN 1 AND 32767
        UNION ALL
        SELECT ack.source, ack.sequence, ack.number, ack.connection
        FROM (SELECT row, source, sequence, number, connection FROM order_acks
              UNION ALL SELECT row, source, sequence, number, connection FROM final_acks) ack
        ASOF LEFT JOIN messages m ON m.source = ack.source AND m.sequence = ack.sequence AND ack.row >= m.row
        WHERE ack.number > coalesce(greatest(m.number, m.highest), 0)""",
    "id_went_back": """
        WITH used AS (
          SELECT source, destination, sequence, min(row) AS first, max(row) AS last FROM messages GROUP BY ALL)
        SELECT m.source, m.sequence, m.number, m.connection
        FROM (SELECT DISTINCT low.source, low.destination, low.sequence, min(high.first) AS since
              FROM used low JOIN used high ON high.source = low.source AND high.destination = low.destination
                AND high.sequence > low.sequence AND high.first < low.last GROUP BY ALL) back
        JOIN messages m ON m.source = back.source AND m.destination = back.destination AND m.sequence = back.sequence
          AND m.row > back.since""",
    "renumbered": """
        SELECT source, sequence, number, 0 AS connection FROM messages
        GROUP BY source, destination, sequence, number HAVING min(message_id) <> max(message_id)
        UNION ALL
        SELECT source, max(sequence), max(number), 0 FROM messages
        GROUP BY source, destination, message_id
        HAVING min(number) <> max(number) OR min(sequence) <> max(sequence)""",
    "skipped": """
        SELECT DISTINCT gap.source, gap.sequence, gap.number, gap.connection
        FROM (SELECT * FROM messages WHERE transmission = 1 AND previous > coalesce(highest, 0)) gap
        JOIN (SELECT row, source, sequence, number FROM order_acks
              UNION ALL SELECT row, source, sequence, number FROM final_acks WHERE message_class IN (16384, 49152)) ack
          ON ack.source = gap.source AND ack.sequence = gap.sequence AND ack.number >= gap.number
            AND ack.row > gap.row""",
    "resent_after_ack": """
        SELECT again.source, again.sequence, again.number, again.connection
        FROM (SELECT * FROM messages WHERE transmission > 1) again
        ASOF JOIN (
          SELECT known.source, known.sequence, known.row, max(known.number) OVER (
            PARTITION BY known.source, known.sequence ORDER BY known.row ROWS UNBOUNDED PRECEDING) AS number
          FROM (SELECT o.source, o.sequence, o.number, h.row FROM order_acks o
                ASOF JOIN (SELECT connection, 1 - direction AS direction, acknowledged, min(row) AS row
                           FROM headers GROUP BY ALL) h
                  ON h.connection = o.connection AND h.direction = o.direction AND o.place <= h.acknowledged) known
        ) k ON k.source = again.source AND k.sequence = again.sequence AND again.row >= k.row
        WHERE again.number <= k.number""",
    "delivered_twice": """
        SELECT source, max(sequence) AS sequence, max(number) AS number, 0 AS connection FROM final_acks
        WHERE message_class = 16384 OR message_class >= 49152
        GROUP BY source, message_id HAVING min(own_id) <> max(own_id)""",
}

_STREAMS = """
CREATE TEMP TABLE streams AS
WITH acked AS (SELECT source, sequence, max(number) AS number FROM order_acks GROUP BY ALL),
first_order AS (SELECT source, sequence, number, min(time) AS time FROM order_acks GROUP BY ALL),
first_final AS (SELECT source, message_id, min(time) AS time FROM final_acks GROUP BY ALL),
first_session AS (SELECT connection, 1 - direction AS direction, acknowledged, min(time) AS time
                  FROM headers GROUP BY ALL),
timed AS (
  SELECT m.source, m.destination, m.number, m.sequence, m.user_flags, acked.number AS acked,
    (s.time - m.time) / 1e6 AS to_session, (o.time - m.time) / 1e6 AS to_order, (f.time - m.time) / 1e6 AS to_final
  FROM (SELECT * FROM messages WHERE transmission = 1) m
  ASOF LEFT JOIN first_session s
    ON s.connection = m.connection AND s.direction = m.direction AND m.place <= s.acknowledged
  ASOF LEFT JOIN first_order o ON o.source = m.source AND o.sequence = m.sequence AND m.number <= o.number
  LEFT JOIN first_final f ON f.source = m.source AND f.message_id = m.message_id
  LEFT JOIN acked ON acked.source = m.source AND acked.sequence = m.sequence)
SELECT source, destination, count(*) AS messages, count(to_order) AS order_acked, count(to_final) AS final_acked,
  count(*) FILTER (to_final IS NULL AND (to_order IS NULL OR user_flags & 768 <> 0)) AS unsettled,
  quantile_cont(to_session, [0.5, 0.9, 0.99]) AS session_ms, max(to_session) AS session_max_ms,
  quantile_cont(to_order, [0.5, 0.9, 0.99]) AS order_ms, max(to_order) AS order_max_ms,
  quantile_cont(to_final, [0.5, 0.9, 0.99]) AS final_ms, max(to_final) AS final_max_ms
FROM timed GROUP BY source, destination
"""

_REJECTS = """
SELECT count(*) FILTER (transmission > 1) AS resends, count(*) FILTER (number <= highest) AS duplicates,
  count(*) FILTER (number > coalesce(highest, 0) AND previous > coalesce(highest, 0)) AS holes
FROM messages
"""


@dataclass
class Answer:
    """violations: {kind: rows of source code, sequence, number, connection}."""

    packets: int
    connections: int
    streams: int
    messages: int
    resends: int
    unsettled: int
    violations: dict[str, list[Any]]


def audit(database: duckdb.DuckDBPyConnection, packets: str) -> Answer:
    """All checks on a table or expression (read_parquet(...)) with COLUMNS."""
    for name in ("counted", "headers", "messages", "order_acks", "final_acks", "streams"):
        database.execute(f"DROP TABLE IF EXISTS {name}")
    database.execute(f"CREATE OR REPLACE TEMP VIEW packets AS SELECT * FROM {packets}")
    for statement in (_COUNTED, _HEADERS, _MESSAGES, _ORDER_ACKS, _FINAL_ACKS, _STREAMS):
        database.execute(statement)
    violations = {kind: database.execute(query).fetchall() for kind, query in _CHECKS.items()}
    count, connections = database.execute("SELECT count(*), count(DISTINCT connection) FROM packets").fetchone() or (
        0,
        0,
    )
    streams = database.execute("SELECT count(*), sum(messages), sum(unsettled) FROM streams").fetchone() or (0, 0, 0)
    resends = database.execute(_REJECTS).fetchone() or (0,)
    return Answer(count, connections, streams[0], int(streams[1]), int(resends[0]), int(streams[2]), violations)
