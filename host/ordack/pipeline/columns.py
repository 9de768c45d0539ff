"""Convert stored messages to an Arrow table with the columns of segments.SCHEMA.

`mqqb_scan` reads the fixed fields of all packets in one call. Names, labels and GUIDs repeat, so each distinct value is
converted once. Only rare headers are parsed one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from _mqqb import ffi, lib
from mqqb import compose, core, guids, headers
from mqqb.names import NULL_GUID, QueueName, utf16_decode
from mqqb.parse import names_end

from ordack.config.names import legible
from ordack.pipeline.segments import MESSAGE_KEY, QUEUE_MANAGER, SCHEMA, TIME, message_keys
from ordack.store import StoreError
from ordack.store.messages import StoredMessage
from ordack.store.packet_fields import parse

if TYPE_CHECKING:
    import numpy.typing as npt

    Words = npt.NDArray[np.int64]

DELIVERIES = ("express", "recoverable", "transactional")
# Columns of mostly distinct values: a dictionary would cost time and save nothing.
_VARIED = frozenset({MESSAGE_KEY, "label", "body", "extension"})
_COMPRESSED_FROM = 1024  # bytes of a column
CACHE_MAX = 100_000  # distinct texts remembered; bounds memory
_NUMBERED = (
    "tx_sequence_ordinal", "tx_sequence_time_stamp", "tx_sequence_number", "previous_tx_sequence_number",
)  # fmt: skip
_QUEUES = (
    "destination_queue", "queue_manager_address", "administration_queue", "response_queue", "connector_type",
)  # fmt: skip
_RARE = core.USER_SH | core.USER_MQ | core.USER_HH
_SELECTORS = core.USER_DQ | core.USER_AQ | core.USER_RQ | core.USER_CQ


class _Packets:
    """The concatenated packets of some messages, with the results of mqqb_scan."""

    def __init__(self, messages: Sequence[StoredMessage]) -> None:
        """Raise StoreError for a damaged message."""
        self.each = [message.packet for message in messages]
        self.data = b"".join(self.each)
        self._octets = np.frombuffer(self.data, np.uint8)
        self._found = np.zeros((lib.MQQB_SCAN_COLUMNS, len(messages)), np.uint32)
        columns = ffi.new("mqqb_scan_columns *")
        held = [ffi.from_buffer("uint32_t[]", row, require_writable=True) for row in self._found]
        for index, row in enumerate(held):
            columns.column[index] = row
        data = ffi.from_buffer("uint8_t[]", self.data)
        lib.mqqb_scan(data, len(self.data), columns, len(messages), ffi.new("size_t *"), ffi.new("int32_t *"))
        whole = self.column("TOTAL_SIZE") == np.array([len(packet) for packet in self.each])
        whole &= self.column("KIND") >= lib.MQQB_KIND_USER_MESSAGE
        if not whole.all():
            raise StoreError(
                f"the message with the lookup id {messages[int(whole.argmin())].lookup_id} is damaged in the store: "
                "it cannot be exported"
            )
        self._properties = self.column("PROPERTIES_OFFSET")
        self.sources = self.cut(self.column("SOURCE_OFFSET"), 16)

    def column(self, name: str) -> Words:
        values: Words = self._found[getattr(lib, f"MQQB_SCAN_{name}")].astype(np.int64)
        return values

    def cut(self, at: Words, sizes: Words | int) -> list[bytes]:
        """Return the bytes at these offsets."""
        return [self.data[begin:end] for begin, end in zip(at.tolist(), (at + sizes).tolist())]

    def properties(self, offset: int, size: int) -> npt.NDArray[np.uint8]:
        """Return a field of the MessagePropertiesHeaders, one row a message."""
        found: npt.NDArray[np.uint8] = self._octets[(self._properties + offset)[:, None] + np.arange(size)]
        return found

    def word(self, offset: int) -> Words:
        """Return a four-byte field of the MessagePropertiesHeaders."""
        values: Words = self.properties(offset, 4).view("<u4")[:, 0].astype(np.int64)
        return values


class Columns:
    """Makes tables and remembers texts between them. queue_manager: GUID of the exporting queue manager."""

    def __init__(self, queue_manager: str) -> None:
        self._queue_manager = queue_manager
        self._guids: dict[bytes, str] = {}
        self._labels: dict[bytes, str] = {}
        self._names: dict[bytes, tuple[str | None, ...]] = {}

    def table(self, queue: str, messages: Sequence[StoredMessage]) -> pa.Table:
        """Convert messages of a queue, in their order. Raise StoreError for a damaged message."""
        packets = _Packets(messages)
        column, word = packets.column, packets.word
        user_flags, tx_flags, base_flags = column("USER_FLAGS"), column("TX_FLAGS"), column("BASE_FLAGS")
        bodies, extensions = column("BODY_OFFSET"), word(52)
        outside = (user_flags & core.USER_TH) == 0  # not in a transaction
        delivery = np.where(~outside, 2, (user_flags & core.USER_DM) != 0).astype(np.int8)
        made: dict[str, Any] = {
            QUEUE_MANAGER: pa.repeat(self._queue_manager, len(messages)),
            "queue": pa.repeat(queue, len(messages)),
            "lookup_id": [message.lookup_id for message in messages],
            "arrived": pa.array([message.arrived for message in messages], pa.int64()).cast(TIME),
            "in_doubt": pa.array([message.in_doubt for message in messages], pa.int8()).cast(pa.bool_()),
            "source_queue_manager": _remember(self._guids, packets.sources, guids.guid_text),
            "message_id": pa.array(column("MESSAGE_ID")),
            "first_in_transaction": pa.array((tx_flags & core.TX_FM) != 0, mask=outside),
            "last_in_transaction": pa.array((tx_flags & core.TX_LM) != 0, mask=outside),
            **{name: pa.array(column(name.upper()), mask=outside) for name in _NUMBERED},
            "label": _remember(self._labels, packets.cut(column("LABEL_OFFSET"), 2 * column("LABEL_LENGTH")), _label),
            "body": pa.array(packets.cut(bodies, column("BODY_SIZE")), pa.binary()),
            "body_type": word(24),
            "priority": np.where(outside, base_flags & core.BASE_PR, 0),
            "delivery": pa.DictionaryArray.from_arrays(delivery, list(DELIVERIES)).dictionary_decode(),
            "message_class": column("MESSAGE_CLASS"),
            "correlation_id": _fixed(packets.properties(4, 20)),
            "application_tag": word(28),
            "extension": pa.array(packets.cut(bodies - extensions, extensions), pa.binary()),  # the body follows
            "sent_time": _time(column("SENT_TIME")),
            "time_to_reach_queue": _limit(column("TIME_TO_REACH_QUEUE")),
            "time_to_be_received": _limit(column("TIME_TO_BE_RECEIVED")),
            "journal": (user_flags & core.USER_JP) != 0,
            "dead_letter": (user_flags & core.USER_JN) != 0,
            "acknowledge": column("PROPERTIES_FLAGS"),
            "hop_count": user_flags & core.USER_RC,
            "over_http": (user_flags & core.USER_AH) != 0,
            "privacy_level": word(40),
            **self._named(packets),
            **_rare(packets.each, ((user_flags & _RARE) != 0) | ((base_flags & core.BASE_DH) != 0)),
        }
        made[MESSAGE_KEY] = message_keys(made)
        return pa.table([_as(made[field.name], field.type) for field in SCHEMA], SCHEMA)

    def _named(self, packets: _Packets) -> dict[str, list[str | None]]:
        """Return the queue names of the UserHeaders. Their meaning also depends on preceding fields."""
        wanted = ("SOURCE_OFFSET", "PROPERTIES_OFFSET", "USER_FLAGS", "TX_FLAGS")
        data = packets.data
        rows = []
        if len(self._names) > CACHE_MAX:
            self._names.clear()
        for index, (start, end, bits, tx_flags) in enumerate(zip(*(packets.column(name).tolist() for name in wanted))):
            if bits & core.USER_SH:
                end = start + names_end(packets.each[index], bits) - 16
            elif bits & core.USER_TH:
                end -= 36 if tx_flags & core.TX_CG else 20
            key = data[start + 16 : start + 32] + (bits & _SELECTORS).to_bytes(4, "little") + data[start + 48 : end]
            if bits & (core.USER_AQ | core.USER_RQ):  # may be queues of the source
                key += packets.sources[index]
            names = self._names.get(key)
            if names is None:
                names = self._names[key] = _names(packets.each[index])
            rows.append(names)
        columns = zip(*rows) if rows else [()] * 5
        return dict(zip(_QUEUES, map(list, columns)))


def _remember(cache: dict[bytes, str], keys: Sequence[bytes], make: Callable[[bytes], str]) -> pa.Array:
    if len(cache) > CACHE_MAX:
        cache.clear()
    for key in set(keys).difference(cache):
        cache[key] = make(key)
    return pa.array([cache[key] for key in keys], pa.string())


def _label(raw: bytes) -> str:
    return legible(utf16_decode(raw[:-2]))


def _time(values: Words) -> pa.Array:
    return pa.array(values * 1_000_000).cast(TIME)


def _limit(values: Words) -> pa.Array:
    """Convert seconds; null means no limit."""
    return pa.array(values, mask=values == compose.FOREVER)


def _fixed(values: npt.NDArray[np.uint8]) -> pa.Array:
    """Convert rows of bytes to a binary column."""
    count, size = values.shape
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(size)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(values.tobytes())])


def _as(values: Any, kind: pa.DataType) -> pa.Array:
    made = values if isinstance(values, pa.Array) else pa.array(values, kind if isinstance(values, list) else None)
    return made if made.type == kind else made.cast(kind)


def _names(packet: bytes) -> tuple[str | None, ...]:
    """destination_queue, queue_manager_address, administration_queue, response_queue, connector_type (wire.md 2.2)."""
    user = parse(packet).user
    source, address = bytes(user.source_queue_manager), bytes(user.queue_manager_address)

    def text(name: QueueName | None, host: bytes) -> str | None:
        return None if name is None else legible(guids.format_name(name, host))

    def selector(mask: int) -> int:
        return (user.flags & mask) // (mask & -mask)

    administration = text(user.admin_queue, source if selector(core.USER_AQ) == 2 else address)
    kind = selector(core.USER_RQ)
    host = source if kind == 2 else address
    if kind == 4:  # private, on the host of the AdminQueue
        named = user.admin_queue
        host = (
            named.source_queue_manager
            if isinstance(named, headers.PrivateQueueFormatName)
            else (source if selector(core.USER_AQ) == 2 else address)
        )
    return (
        text(user.destination_queue, address),
        None if address == NULL_GUID else guids.guid_text(address),
        administration,
        administration if kind == 1 else text(user.response_queue, host),
        None if user.connector_type is None else guids.guid_text(user.connector_type),
    )


def _rare(parts: Sequence[bytes], wanted: npt.NDArray[np.bool_]) -> dict[str, list[Any]]:
    """Return the columns of rare headers."""
    names = ("report_queue", "sender_id", "destination_queues", "administration_queues", "response_queues")
    columns: dict[str, list[Any]] = {name: [None] * len(parts) for name in names}
    for index in np.flatnonzero(wanted).tolist():
        message = parse(parts[index])
        values: list[Any] = [None] * len(names)
        if message.debug is not None and message.debug.queue_identifier is not None:
            values[0] = guids.guid_text(bytes(message.debug.queue_identifier))
        if message.security is not None:
            values[1] = bytes(message.security.security_id) or None
        if message.multi_queue_format is not None:
            lists = message.multi_queue_format
            values[2:5] = [
                ",".join(legible(guids.format_name(name)) for name in found.elements())
                for found in (lists.destination, lists.administration, lists.response)
            ]
        for name, value in zip(names, values):
            columns[name][index] = value
    return columns


def parquet(table: pa.Table) -> pa.Buffer:
    """Write a segment's table as a Parquet file with one row group.

    Integers are delta-encoded and repeated values use a dictionary; only other columns of some size are compressed. For
    1,000 messages, zstd on all 43 columns doubles the time to write and to read, and saves nothing."""
    numbers = [field.name for field in table.schema if pa.types.is_integer(field.type) or field.type == TIME]
    sizes = {name: pc.sum(pc.binary_length(table[name])).as_py() or 0 for name in _VARIED}
    sink = pa.BufferOutputStream()
    pq.write_table(
        table,
        sink,
        row_group_size=max(len(table), 1),
        compression={name: "zstd" if sizes.get(name, 0) >= _COMPRESSED_FROM else "none" for name in table.schema.names},
        use_dictionary=[name for name in table.schema.names if name not in _VARIED and name not in numbers],
        column_encoding=dict.fromkeys(numbers, "DELTA_BINARY_PACKED"),
        write_statistics=[name for name in table.schema.names if name != "body"],
        write_page_checksum=True,
    )
    return sink.getvalue()
