"""A Delta Lake table of `ordack table ingest`, written through delta-rs without a separate checkpoint.

The table's log records the progress of each queue in each folder as a Delta application transaction,
`ordack/FOLDER/QUEUE`. Its version is the serial of the last segment. One commit has both a batch's files and its
serials, so the commit is atomic. Delta refuses a commit if another one changed a serial: the later of two ingests of a
queue then reads the table again and continues there. `ordack/FOLDER` marks a known folder.

A table restored to an older version is refused, because it keeps its transactions without their rows. `ordack.heeded`
in a commit's metadata is the version up to which an ingest has looked for restores.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import (
    ColumnProperties,
    CommitProperties,
    DeltaTable,
    PostCommitHookProperties,
    QueryBuilder,
    Schema,
    Transaction,
    WriterProperties,
    write_deltalake,
)
from deltalake.exceptions import CommitFailedError, DeltaError
from pyarrow import fs

from ordack.config.paths import S3, NotLocal, RemotePath, path_of, scheme_of, sync
from ordack.pipeline import lake
from ordack.pipeline.folders import Place

APPLICATION = "ordack"
HEEDED = "ordack.heeded"
UNHEEDED = "delta.setTransactionRetentionDuration"  # would make a table forget its segments
# Readers skip files by the statistics of these columns. Other columns have none, because readers order NaN differently.
# The table must list them: a reader that expects missing statistics finds no row.
STATISTICS = ("queue_manager", "queue", "lookup_id", "arrived", "message_key", "message_id", "label", "sent_time")
SKIPPING = "delta.dataSkippingStatsColumns"
_ON, _OFF = (ColumnProperties(statistics_enabled=level) for level in ("CHUNK", "NONE"))
WRITER = WriterProperties(
    compression="ZSTD", default_column_properties=_OFF, column_properties=dict.fromkeys(STATISTICS, _ON)
)
# delta-rs would write checkpoints after commits, and delete their commits before the checkpoints are on disk.
_NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet")
_HINT = "_last_checkpoint"


class Delta:
    """An open table that implements lake.Lake; made if missing. columns: of the rows. decoding: of the bodies; the
    table keeps it. Raises IngestError, IngestUnusable."""

    def __init__(self, table: str, columns: pa.Schema, decoding: lake.Decoding | None = None) -> None:
        if "%" in table:
            raise lake.IngestUnusable(
                f"{table} has a % in its path, which delta-rs takes for something else: name another"
            )
        self.folder = table
        self._kept = {lake.PROPERTY: "1", **({} if decoding is None else {lake.DECODING: str(decoding)})}
        self._table = self._open(columns)
        self._check(columns)
        self._look()

    @property
    def names(self) -> list[str]:
        return [field.name for field in self._table.schema().fields]

    def _open(self, columns: pa.Schema) -> DeltaTable:
        try:
            if not DeltaTable.is_deltatable(uri_of(self.folder)):
                lake.check_empty(self.folder)
                with contextlib.suppress(DeltaError):  # another ingest may be faster; otherwise opening fails
                    DeltaTable.create(
                        uri_of(self.folder),
                        Schema.from_arrow(pa.schema([column.with_nullable(True) for column in columns])),
                        mode="ignore",
                        configuration={**self._kept, SKIPPING: ",".join(STATISTICS)},
                        raise_if_key_not_exists=False,
                    )
                    _sync(self.folder, -1, 0)
            return _opened(self.folder)
        except (DeltaError, OSError, ValueError) as error:
            raise lake.IngestError(f"cannot open or make the table {self.folder}: {lake.first_line(error)}") from None

    def _check(self, columns: pa.Schema) -> None:
        """Refuse a table that does not fit the columns. Raises IngestError, IngestUnusable."""
        told = self._table.metadata().configuration
        if UNHEEDED in told:
            raise lake.IngestUnusable(
                f"the table {self.folder} has {UNHEEDED}, which an ingest does not heed: begin a new table"
            )
        if lake.PROPERTY not in told and self._table.file_uris():
            raise lake.IngestUnusable(
                lake.foreign(self.folder, f"ALTER TABLE ... SET TBLPROPERTIES ('{lake.PROPERTY}' = '1')")
            )
        there = {column.name: column for column in self._table.schema().fields}
        ours = {column.name: column for column in Schema.from_arrow(columns).fields}
        types = {name: (ours[name].type, there[name].type) for name in ours if name in there}
        unfit = lake.unfit_columns(there, ours, types)
        divided = self._table.metadata().partition_columns
        unfit += [f"{name}, by which the table is divided" for name in divided if name not in ours]
        lake.check_columns(self.folder, [*there], [*ours], unfit)
        version = self._table.version()
        self._kept[SKIPPING] = ",".join(name for name in STATISTICS if name in there)
        try:
            if any(told.get(name) != value for name, value in self._kept.items()):
                self._table.alter.set_table_properties(self._kept, raise_if_not_exists=False)
            _sync(self.folder, version, self._table.version())
        except (DeltaError, OSError) as error:
            raise lake.IngestError(f"cannot change properties of {self.folder}: {lake.first_line(error)}") from None

    def _look(self) -> None:
        """Read serials and folders from the table. Raises IngestError."""
        self.serials, self.known, self._table = _read(self.folder)
        self._seen = self._table.version()

    def catch_up(self) -> None:
        """See lake.Lake. Reading changes makes a checkpoint."""
        try:
            self._table.update_incremental()
        except (DeltaError, OSError) as error:
            raise lake.IngestError(f"cannot read the table {self.folder}: {lake.first_line(error)}") from None
        if self._table.version() != self._seen:
            self._look()

    def check_there(self) -> None:
        """See lake.Lake."""
        lake.check_there(self.folder, "_delta_log")

    def find(self, where: str, columns: list[str]) -> Iterator[pa.RecordBatch]:
        """See lake.Lake."""
        query = f"SELECT {', '.join(columns)} FROM messages WHERE {where}"
        try:
            found = QueryBuilder().register("messages", self._table).execute(query)
            yield from pa.RecordBatchReader.from_stream(found)
        except (DeltaError, OSError, pa.ArrowException) as error:
            raise lake.IngestError(f"cannot read the table {self.folder}: {lake.first_line(error)}") from None

    def commit(self, rows: pa.Table, reached: Mapping[Place, int], new: set[str]) -> bool:
        """See lake.Lake."""
        before = {place: self.serials.get(place) for place in reached}
        told = {f"{APPLICATION}/{folder}": 1 for folder in sorted(new)}
        told |= {f"{APPLICATION}/{place.folder}/{place.queue}": serial for place, serial in reached.items()}
        for attempt in range(lake.ATTEMPTS):
            version = self._table.version()
            transactions = [Transaction(*one) for one in told.items()]
            try:
                write_deltalake(
                    self._table,
                    lake.fitted(rows, pa.schema(self._table.schema().to_arrow())),
                    mode="append",
                    writer_properties=WRITER,
                    commit_properties=CommitProperties({HEEDED: str(self._seen)}, app_transactions=transactions),
                    post_commithook_properties=_NO_HOOKS,
                )
            except (DeltaError, OSError) as error:
                self._look()  # others may have committed, or even deleted the log up to this version
                if new & self.known or before != {place: self.serials.get(place) for place in reached}:
                    return False
                if attempt == lake.ATTEMPTS - 1 or (attempt and not isinstance(error, CommitFailedError)):
                    raise lake.IngestError(
                        f"cannot commit to the table {self.folder}: {lake.first_line(error)}"
                    ) from None
            else:
                break
        _sync(self.folder, version, self._table.version())
        self.serials.update(reached)
        self.known |= new
        if self._table.version() == version + 1:
            self._seen = version + 1
        else:  # others have committed too, and may have restored the table
            self._look()
        return True


def uri_of(table: str) -> str:
    """Return the URI for delta-rs. Raise IngestUnusable for a missing bucket, because delta-rs retries for a minute and
    then gives no reason."""
    if scheme_of(table) in S3:
        try:
            RemotePath(path_of(table).parts[0]).stat()
        except NotLocal as error:
            raise lake.IngestUnusable(str(error)) from None
        except FileNotFoundError as error:
            raise lake.IngestUnusable(f"cannot use {table}: {error.strerror}") from None
        except OSError:
            pass  # a key without this right may suffice for the rest
    return table if scheme_of(table) else Path(table).absolute().as_uri()


def log_of(folder: str) -> tuple[fs.FileSystem, str]:
    """Return file system and path of a table's log. Raises ValueError, OSError."""
    if scheme_of(folder) not in S3:
        system, path = fs.FileSystem.from_uri(folder if scheme_of(folder) else Path(folder).absolute().as_uri())
    else:
        where = path_of(folder)
        assert isinstance(where, RemotePath)
        system, path = where.system.fs, where.inside
    return system, f"{path}/_delta_log"


def _sync(folder: str, behind: int, until: int) -> None:
    """Make rows and log of the commits after `behind`, up to `until`, survive a power loss, in a local folder."""
    if scheme_of(folder):
        return
    log = Path(folder, "_delta_log")
    paths = {log}
    for number in range(behind + 1, until + 1):
        commit = log / f"{number:020}.json"
        paths.add(commit)
        for line in commit.read_text(encoding="utf-8").splitlines():
            if "add" in (action := json.loads(line)):
                file = Path(folder, unquote(action["add"]["path"]))
                paths |= {file, file.parent}
    for path in paths:
        with contextlib.suppress(FileNotFoundError):  # others may have compacted files meanwhile
            sync(path)


def _sync_checkpoint(folder: str, version: int) -> None:
    """Sync a checkpoint, because commits in it may be deleted."""
    if not scheme_of(folder):
        log = Path(folder, "_delta_log")
        for path in (*log.glob(f"{version:020}.checkpoint*"), log / _HINT, log):
            sync(path)


def _opened(folder: str) -> DeltaTable:
    """Open a table. Unreadable checkpoints, as left by a power loss, are moved aside if the commits suffice. Raises
    DeltaError, OSError, IngestUnusable."""
    try:
        return DeltaTable(uri_of(folder))
    except (DeltaError, OSError) as error:
        system, log = log_of(folder)
        damaged = _damaged(system, log)
        if not damaged:
            raise
        first = lake.first_line(error)
    for name in damaged:
        system.move(f"{log}/{name}", f"{log}/.{name}.damaged")
    try:
        return DeltaTable(uri_of(folder))
    except DeltaError:
        for name in damaged:
            system.move(f"{log}/.{name}.damaged", f"{log}/{name}")
        if damaged == [_HINT]:
            raise
        raise lake.IngestUnusable(
            f"the table {folder} cannot be opened: {first}. In its _delta_log {damaged[0]} is damaged, and commits "
            "before it are gone: bring them back from a copy, or begin a new table"
        ) from None


def _damaged(system: fs.FileSystem, log: str) -> list[str]:
    """Return the unreadable checkpoints, and the file that names the newest checkpoint if there is one."""
    names = {file.base_name for file in system.get_file_info(fs.FileSelector(log))}
    checkpoints = {name for name in names if _CHECKPOINT.fullmatch(name)}
    damaged = []
    for name in sorted(checkpoints):
        try:
            pq.read_table(f"{log}/{name}", filesystem=system)
        except (pa.ArrowException, OSError):
            damaged.append(name)
    return [*damaged, *({_HINT} & names)]


def open_table(table: str) -> DeltaTable:
    """Open an existing table. Raises IngestError, IngestUnusable."""
    try:
        if DeltaTable.is_deltatable(uri_of(table)):
            return _opened(table)
    except (DeltaError, OSError) as error:
        raise lake.IngestError(f"cannot open the table {table}: {lake.first_line(error)}") from None
    raise lake.IngestUnusable(f"there is no table of Delta Lake in {table}")


def optimize(table: str, days: float) -> dict[str, int]:
    """Merge small files, and delete unused files older than `days`. Returns the numbers of merged, new and deleted
    files. Raises IngestError, IngestUnusable."""
    opened = open_table(table)
    version = opened.version()
    try:
        done = opened.optimize.compact(post_commithook_properties=_NO_HOOKS)
        _sync(table, version, opened.version())  # before the old files go
        version = opened.version()
        deleted = opened.vacuum(
            int(days * 24), dry_run=False, full=True, enforce_retention_duration=False,
            post_commithook_properties=_NO_HOOKS,
        )  # fmt: skip
        _sync(table, version, opened.version())
    except (DeltaError, OSError) as error:
        raise lake.IngestError(f"cannot optimize the table {table}: {lake.first_line(error)}") from None
    return {"merged": done["numFilesRemoved"], "new": done["numFilesAdded"], "deleted": len(deleted)}


def properties_of(table: str) -> Mapping[str, str]:
    """Return a table's properties; {} if there is no table. Raises IngestError, IngestUnusable."""
    try:
        return _opened(table).metadata().configuration if DeltaTable.is_deltatable(uri_of(table)) else {}
    except (DeltaError, OSError) as error:
        raise lake.IngestError(f"cannot open the table {table}: {lake.first_line(error)}") from None


def read_serials(table: str) -> dict[Place, int]:
    """Return the last segment of each queue in a table. Raises IngestError, IngestUnusable."""
    return _read(table)[0]


def _read(table: str) -> tuple[dict[Place, int], set[str], DeltaTable]:
    """Return the last segment of each queue in a table, the known folders, and the open table.

    They come from a new Delta checkpoint. For a read-only table they come from the last checkpoint and the later
    commits. delta-rs itself reads the log once for each transaction. Raises IngestError, IngestUnusable.
    """
    try:
        opened = open_table(table)
        system, log = log_of(table)
        try:
            opened.create_checkpoint()
            last = opened.version()
            _sync_checkpoint(table, last)
        except (DeltaError, OSError):
            found = [_CHECKPOINT.fullmatch(file.base_name) for file in system.get_file_info(fs.FileSelector(log))]
            last = max((int(name[1]) for name in found if name), default=-1)
        told = {}
        if last >= 0:
            file = f"{log}/{last:020}.checkpoint.parquet"
            entries = pq.read_table(file, columns=["txn"], filesystem=system)["txn"].drop_null().to_pylist()
            told = _ours(entries)
        for version in range(last + 1, opened.version() + 1):
            told |= _commit(system, log, version)[1]
        if told:
            _check_restores(table, system, log, opened.version())
    except (DeltaError, OSError, pa.ArrowException) as error:
        raise lake.IngestError(f"cannot read the log of the table {table}: {lake.first_line(error)}") from None
    serials, known = {}, set()
    for name, version in told.items():
        folder, _, queue = name.removeprefix(f"{APPLICATION}/").partition("/")
        known.add(folder)
        if queue:
            serials[Place(folder, queue)] = version
    return serials, known, opened


def _ours(entries: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Return the transactions of ingests."""
    return {entry["appId"]: entry["version"] for entry in entries if entry["appId"].startswith(f"{APPLICATION}/")}


def _commit(system: fs.FileSystem, log: str, version: int) -> tuple[dict[str, Any], dict[str, int]]:
    """Return a commit's metadata, and its transactions of ingests. Raises OSError."""
    with system.open_input_stream(f"{log}/{version:020}.json") as commit:
        actions = [json.loads(line) for line in commit.read().splitlines()]
    about: dict[str, Any] = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
    return about, _ours(action["txn"] for action in actions if "txn" in action)


def _check_restores(table: str, system: fs.FileSystem, log: str, until: int) -> None:
    """Raise IngestUnusable if a commit up to version `until` restored the table and no ingest has looked for it.
    Commits that Delta has deleted are not checked. Raises OSError."""
    heeded = -1
    while until > heeded:
        try:
            about, told = _commit(system, log, until)
        except FileNotFoundError:
            return
        if about.get("operation") == "RESTORE":
            raise lake.IngestUnusable(
                f"the table {table} was restored to an older version, and does not tell any more which messages are in "
                "it: begin a new table"
            )
        if told:
            heeded = max(heeded, int(about[HEEDED]))
        until -= 1
