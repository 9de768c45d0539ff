"""A table of Delta Lake, as `ordack pipeline ingest` writes it: through delta-rs, without a checkpoint beside it.

The table's log itself keeps how far each queue in each folder of segments is in the table: an application transaction
of Delta's, `ordack/FOLDER/QUEUE`, whose version is the serial of the last segment. A commit names the files of a batch
and these serials at once, so a batch is in the table and counted, or neither. Delta refuses a commit if another one
has changed a serial meanwhile: of two ingests of the same queue one is the first, and the other reads on from there.
`ordack/FOLDER` says that the folder is known; version 0 says of either that it is not in the table any more.

A table that is restored to an older version keeps its transactions, though their rows are gone. The first commit of an
ingest after that sets all of them to what they were in that version. `ordack.heeded` in what Delta keeps about a commit
is the version up to which an ingest has looked for such restores: they are looked for from there on.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, QueryBuilder, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction
from pyarrow import fs

from ordack.pipeline.delta_files import (
    NO_HOOKS,
    checkpoint,
    columns_of,
    complete_statistics,
    last_checkpoint,
    log_of,
    open_table,
    sync_log,
    uri_of,
)
from ordack.pipeline.folders import Place
from ordack.pipeline.lake import (
    ATTEMPTS,
    DECODING,
    PROPERTY,
    check_division,
    check_empty,
    check_same,
    check_there,
    first_line,
    foreign,
    new_columns,
    said,
)
from ordack.pipeline.progress import IngestError, IngestUnusable
from ordack.pipeline.statistics import completed
from ordack.pipeline.writing import DAY, File

APPLICATION = "ordack"
HEEDED = "ordack.heeded"
CHECKPOINT_INTERVAL = 100  # commits
# Properties of a table, and of its columns, that whoever writes rows has to heed, and this does not.
UNHEEDED = ("delta.constraints.", "delta.columnMapping.mode", "delta.setTransactionRetentionDuration")
UNHEEDED_OF_COLUMNS = ("delta.generationExpression", "delta.invariants", "delta.identity.start")


class Delta:
    """An open table, as lake.Lake has it, made if there is none. columns: those of the rows. by: columns by which a new
    one is divided; None: as it is. add: columns that it does not have are added to it. decoding: how its bodies are
    decoded, which it keeps. Raises IngestError, IngestUnusable."""

    by_in_files = False

    def __init__(
        self, table: str, columns: pa.Schema, by: tuple[str, ...] | None, add: bool = False, decoding: str | None = None
    ) -> None:
        if "%" in table:
            raise IngestUnusable(f"{table} has a % in its path, which delta-rs takes for something else: name another")
        self.folder = self.data = table
        self._uri = uri_of(table)
        self._kept = {PROPERTY: "1", **({} if decoding is None else {DECODING: decoding})}
        self._table = self._open(columns, by)
        self.by = tuple(self._table.metadata().partition_columns)
        self._check(columns, by, add)
        self.look()

    def _open(self, columns: pa.Schema, by: tuple[str, ...] | None) -> DeltaTable:
        if DAY in (by or ()):
            columns = columns.append(pa.field(DAY, pa.date32()))
        try:
            if not DeltaTable.is_deltatable(self._uri):
                check_empty(self.folder)
                with contextlib.suppress(DeltaError):  # another ingest is faster; if not, there is no table to open
                    DeltaTable.create(
                        self._uri,
                        Schema.from_arrow(pa.schema([column.with_nullable(True) for column in columns])),
                        mode="ignore",
                        partition_by=list(by or ()),
                        post_commithook_properties=NO_HOOKS,
                        configuration=self._kept,
                        raise_if_key_not_exists=False,
                    )
                    sync_log(self.folder, -1, 0)
            return open_table(self.folder)
        except (DeltaError, OSError, ValueError) as error:
            raise IngestError(f"cannot open or make the table {self.folder}: {first_line(error)}") from None

    def _check(self, columns: pa.Schema, by: tuple[str, ...] | None, add: bool) -> None:
        """Refuse what this does not fit. Raises IngestUnusable."""
        told = self._table.metadata().configuration
        unheeded = [name for name, value in told.items() if name.startswith(UNHEEDED) and value != "none"]
        there = {column.name: column for column in self._table.schema().fields}
        unheeded += [
            f"{name} of {column.name}"
            for column in there.values()
            for name in column.metadata
            if name in UNHEEDED_OF_COLUMNS
        ]
        if unheeded:
            raise IngestUnusable(
                f"the table {self.folder} has {', '.join(unheeded)}, which an ingest does not heed: begin a new table"
            )
        if PROPERTY not in told and self._table.file_uris():
            raise IngestUnusable(foreign(self.folder, f"ALTER TABLE ... SET TBLPROPERTIES ('{PROPERTY}' = '1')"))
        check_division(self.folder, self.by, by, columns.names)
        ours = {column.name: column for column in Schema.from_arrow(columns).fields}
        unfit = [
            f"{column.name} {said(column.type)}, which is {said(there[name].type)} there"
            for name, column in ours.items()
            if name in there and there[name].type != column.type
        ]
        unfit += [
            f"{name}, which may not be null there"
            for name, column in there.items()
            if not column.nullable and (name not in ours or ours[name].nullable)
        ]
        unfit += [f"{name}, by which the table is divided" for name in self.by if name not in (*ours, DAY)]
        new = new_columns(self.folder, [*there], [*ours], unfit, add)
        self._keep(told)
        if new:
            added = pa.schema([columns.field(name) for name in new])
            try:
                complete_statistics(self._table, self.folder, added)  # before there is a column without
                before = self._table.version()
                fields = [ours[name] for name in new]
                self._table.alter.add_columns(fields, post_commithook_properties=NO_HOOKS)
                sync_log(self.folder, before, self._table.version())
                complete_statistics(self._table, self.folder, added)  # of files that came in between
            except (DeltaError, OSError) as error:
                raise IngestError(f"cannot add columns to {self.folder}: {first_line(error)}") from None
        self.names = [name for name in ours if name in there or name in new]

    def _keep(self, told: Mapping[str, str]) -> None:
        """Set the properties, before there are the columns that they name. Raises IngestError."""
        if any(told.get(name) != value for name, value in self._kept.items()):
            try:
                before = self._table.version()
                self._table.alter.set_table_properties(
                    self._kept, raise_if_not_exists=False, post_commithook_properties=NO_HOOKS
                )
                sync_log(self.folder, before, self._table.version())
            except (DeltaError, OSError) as error:
                raise IngestError(f"cannot set properties of {self.folder}: {first_line(error)}") from None

    def look(self) -> None:
        """Read what is in the table now. Raises IngestError."""
        self.serials, self.known, self._table, self._undone = _read(self.folder)
        self._heeded = self._seen = self._table.version()

    def catch_up(self) -> None:
        """As lake.Lake has it. A look makes a checkpoint."""
        try:
            self._table.update_incremental()
        except (DeltaError, OSError) as error:
            raise IngestError(f"cannot read the table {self.folder}: {first_line(error)}") from None
        if self._table.version() != self._seen:
            self.look()

    def check_there(self) -> None:
        """As lake.Lake has it."""
        check_there(self.folder, "_delta_log")

    def find(self, where: str, columns: list[str]) -> Iterator[pa.RecordBatch]:
        """As lake.Lake has it."""
        query = f"SELECT {', '.join(columns)} FROM messages WHERE {where}"
        try:
            found = QueryBuilder().register("messages", self._table).execute(query)
            yield from pa.RecordBatchReader.from_stream(found)
        except (DeltaError, OSError, pa.ArrowException) as error:
            raise IngestError(f"cannot read the table {self.folder}: {first_line(error)}") from None

    def commit(self, files: Sequence[File], reached: Mapping[Place, int], new: set[str]) -> bool:
        """As lake.Lake has it."""
        before = {place: self.serials.get(place) for place in reached}
        told = {f"{APPLICATION}/{folder}": 1 for folder in sorted(new)}
        told |= {f"{APPLICATION}/{place.folder}/{place.queue}": serial for place, serial in reached.items()}
        actions: list[AddAction | RemoveAction] = [self._action(file) for file in files]
        for attempt in range(ATTEMPTS):
            version = self._table.version()
            check_same(self.folder, self._kept.get(DECODING), self._table.metadata().configuration.get(DECODING))
            try:
                self._table.create_write_transaction(
                    actions,
                    "append",
                    self._table.schema(),
                    list(self.by),
                    commit_properties=CommitProperties(
                        {HEEDED: self._heeded},
                        app_transactions=[Transaction(*one) for one in {**self._undone, **told}.items()],
                    ),
                    post_commithook_properties=NO_HOOKS,
                )
                self._table.update_incremental()
            except (DeltaError, OSError) as error:
                self.look()  # others have committed, or even deleted the log up to there
                if new & self.known or before != {place: self.serials.get(place) for place in reached}:
                    return False
                if attempt == ATTEMPTS - 1 or (attempt and not isinstance(error, CommitFailedError)):
                    raise IngestError(f"cannot commit to the table {self.folder}: {first_line(error)}") from None
            else:
                break
        sync_log(self.folder, version, self._table.version())
        self.serials.update(reached)
        self.known |= new
        if version == self._seen and self._table.version() == version + 1:  # nobody else has committed
            self._seen += 1
        self._undone = {}
        self._heed(version)
        self._shorten(version)
        return True

    def _shorten(self, version: int) -> None:
        """After so many commits behind this version as the table says, make a checkpoint, and delete old commits. What
        fails is done the next time."""
        told = self._table.metadata().configuration
        every = int(told.get("delta.checkpointInterval", CHECKPOINT_INTERVAL))
        if version // every < self._table.version() // every:
            with contextlib.suppress(DeltaError, OSError):
                checkpoint(self._table, self.folder)
                if told.get("delta.enableExpiredLogCleanup") != "false":
                    self._table.cleanup_metadata()

    def _heed(self, version: int) -> None:
        """Look for a restore among what was committed behind this version: delta-rs refuses our commit only if it was
        restored before that. Raises IngestError, IngestUnusable."""
        now = self._table.version()
        try:
            restored = now > version + 1 and _restored(self._table, *log_of(self.folder), now)
        except OSError as error:
            raise IngestError(f"cannot read the log of the table {self.folder}: {first_line(error)}") from None
        if restored:
            self.look()
        else:
            self._heeded = now

    def _action(self, file: File) -> AddAction:
        values = dict(zip(self.by, file.values))
        stats = completed(file.stats, columns_of(self._table))
        return AddAction(file.name, file.size, values, int(time.time() * 1000), True, stats)


def properties_of(table: str) -> Mapping[str, str]:
    """None, if there is no table. Raises IngestError, IngestUnusable."""
    try:
        return open_table(table).metadata().configuration if DeltaTable.is_deltatable(uri_of(table)) else {}
    except (DeltaError, OSError) as error:
        raise IngestError(f"cannot open the table {table}: {first_line(error)}") from None


def read_serials(table: str) -> dict[Place, int]:
    """The last segment of each queue that is in a table. Raises IngestError, IngestUnusable."""
    return _read(table)[0]


def _read(table: str) -> tuple[dict[Place, int], set[str], DeltaTable, dict[str, int]]:
    """The last segment of each queue that is in a table, the folders that it knows, the table as it is then, and the
    transactions that are to be set because it was restored.

    They are read from a checkpoint of Delta's, made for it; where the table may only be read, from the last one and the
    commits behind it. delta-rs tells one transaction at a time, and reads the log for each. Raises IngestError,
    IngestUnusable."""
    try:
        if not DeltaTable.is_deltatable(uri_of(table)):
            raise IngestUnusable(f"there is no table of Delta Lake in {table}")
        opened = open_table(table)
        system, log = log_of(table)
        try:
            checkpoint(opened, table)
            last = opened.version()
        except (DeltaError, OSError):
            last = last_checkpoint(table)
        told = {}
        if last >= 0:
            file = f"{log}/{last:020}.checkpoint.parquet"
            entries = pq.read_table(file, columns=["txn"], filesystem=system)["txn"].drop_null().to_pylist()
            told = _ours(entries)
        for version in range(last + 1, opened.version() + 1):
            told |= _commit(system, log, version)[1]
        undone = _undone(opened, system, log) if told else {}
    except (DeltaError, OSError, pa.ArrowException) as error:
        raise IngestError(f"cannot read the log of the table {table}: {first_line(error)}") from None
    serials, known = {}, set()
    for name, version in {**told, **undone}.items():
        folder, _, queue = name.removeprefix(f"{APPLICATION}/").partition("/")
        if version:
            known.add(folder)
        if version and queue:
            serials[Place(folder, queue)] = version
    return serials, known, opened, undone


def _ours(entries: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """The transactions of ingests among these."""
    return {entry["appId"]: entry["version"] for entry in entries if entry["appId"].startswith(f"{APPLICATION}/")}


def _commit(system: fs.FileSystem, log: str, version: int) -> tuple[dict[str, Any], dict[str, int]]:
    """What Delta keeps about a commit, and its transactions. Raises OSError."""
    with system.open_input_stream(f"{log}/{version:020}.json") as commit:
        actions = [json.loads(line) for line in commit.read().splitlines()]
    about: dict[str, Any] = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
    return about, _ours(action["txn"] for action in actions if "txn" in action)


def _restored(table: DeltaTable, system: fs.FileSystem, log: str, until: int) -> tuple[int, int] | None:
    """The newest commit up to a version that restored the table and that no ingest has heeded, and the version that it
    was restored to. Delta deletes its log after some time: what it has deleted is not looked for. Raises OSError,
    IngestUnusable."""
    heeded, gone_on = -1, False
    while until > heeded:
        try:
            about, told = _commit(system, log, until)
        except FileNotFoundError:
            return None
        if about.get("operation") == "RESTORE":
            version = (about.get("operationParameters") or {}).get("version")
            if version is None:
                raise IngestUnusable(
                    f"the table {table.table_uri} was restored to the state of a time: restore it once more, to a "
                    "version by its number, so that it is known which messages are to come again"
                )
            if gone_on:
                raise IngestUnusable(
                    f"the table {table.table_uri} was restored while an ingest wrote to it: stop all ingests, and "
                    f"restore it once more, to version {version}, so that it is known which messages are to come again"
                )
            return until, int(version)
        if told:
            gone_on = True
            heeded = max(heeded, int(about[HEEDED]))
        until -= 1
    return None


def _undone(table: DeltaTable, system: fs.FileSystem, log: str) -> dict[str, int]:
    """Of a table that was restored to an older version, the transactions whose rows that has taken out again, as they
    were then: Delta keeps them as they are, and the messages would never come again. 0: it was not there yet. Raises
    DeltaError, OSError, IngestUnusable."""
    restored = _restored(table, system, log, table.version())
    if restored is None:
        return {}
    number, version = restored
    try:
        then = DeltaTable(table.table_uri, version=version)
        undone = _undone(then, system, log)
        for later in range(version + 1, number):
            for name in _commit(system, log, later)[1]:
                undone.setdefault(name, then.transaction_version(name) or 0)
    except (DeltaError, FileNotFoundError) as error:
        raise IngestUnusable(
            f"the table {table.table_uri} was restored to version {version}, and Delta has deleted the log that tells "
            f"which messages were in it: {first_line(error)}. Begin a new table"
        ) from None
    return undone
