"""An Iceberg table of `ordack table ingest`, written through pyiceberg without a separate checkpoint.

The table's properties record the progress of each queue in each folder. `ordack.serial.FOLDER.QUEUE` is the serial of
the last segment; `ordack.folder.FOLDER` marks a known folder. `ordack.sequence` is the sequence number of the snapshot
with the same rows: a table without that snapshot was rolled back and is refused. One transaction adds rows and sets
properties. The catalog refuses it after another transaction; the ingest then reads the table again. pyiceberg's own
retries are disabled, because they would add the same rows again.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
from pyiceberg import exceptions
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table, Transaction
from pyiceberg.table.update import AssertCurrentSchemaId
from sqlalchemy.exc import SQLAlchemyError

from ordack.pipeline import lake
from ordack.pipeline.folders import Place

SERIAL, FOLDER, SEQUENCE = "ordack.serial.", "ordack.folder.", "ordack.sequence"
RETRIES = "commit.retry.num-retries"
NAMESPACE = "ordack"
logging.getLogger("pyiceberg.io.pyarrow").setLevel(logging.ERROR)  # pyiceberg warns of each column without statistics
PROBLEMS = (
    exceptions.CommitStateUnknownException, exceptions.NoSuchNamespaceError, exceptions.RESTError,
    exceptions.ValidationError, SQLAlchemyError, OSError, ValueError,
)  # fmt: skip

_NAME = re.compile(r"[\w-]+(\.[\w-]+){2,}")


def is_name(table: str) -> bool:
    """Test whether a table is CATALOG.NAMESPACE.TABLE and not a folder."""
    return _NAME.fullmatch(table) is not None and not Path(table).exists()


class Iceberg:
    """An open table that implements lake.Lake; made if missing. table: its name, in a catalog that .pyiceberg.yaml or
    PYICEBERG_CATALOG__... variables define, or a folder with its own catalog file. columns, decoding: see delta.Delta.
    Raises IngestError, IngestUnusable."""

    def __init__(self, table: str, columns: pa.Schema, decoding: lake.Decoding | None = None) -> None:
        self.folder = table
        self._kept = {lake.PROPERTY: "1", **({} if decoding is None else {lake.DECODING: str(decoding)})}
        try:
            catalog, self._name = _catalog(table)
            self._table = self._open(catalog, columns)
            self._check(columns)
            self.catch_up()
        except (*PROBLEMS, exceptions.CommitFailedException) as error:
            raise lake.IngestError(f"cannot open or make the table {table}: {lake.first_line(error)}") from None

    @property
    def names(self) -> list[str]:
        return list(self._table.schema().as_arrow().names)

    def _open(self, catalog: Catalog, columns: pa.Schema) -> Table:
        with contextlib.suppress(exceptions.NoSuchTableError, exceptions.NoSuchNamespaceError):
            return _load(catalog, self._name, self.folder)
        with contextlib.suppress(
            exceptions.NamespaceAlreadyExistsError, SQLAlchemyError
        ):  # another ingest makes it, too
            catalog.create_namespace_if_not_exists(self._name[:-1])
        location = None if is_name(self.folder) else f"file://{self.folder}"
        schema = pa.schema([column.with_nullable(True) for column in columns])
        with contextlib.suppress(
            exceptions.TableAlreadyExistsError, exceptions.CommitFailedException
        ):  # another ingest was faster
            catalog.create_table(self._name, schema, location, properties=self._kept)
        return catalog.load_table(self._name)

    def _check(self, columns: pa.Schema) -> None:
        """Refuse a table that does not fit the columns. Raises IngestUnusable."""
        if lake.PROPERTY not in self._table.properties and self._table.current_snapshot() is not None:
            raise lake.IngestUnusable(lake.foreign(self.folder, f"set its property {lake.PROPERTY} to 1"))
        there = {column.name: column for column in self._table.schema().as_arrow()}
        ours = {column.name: column for column in columns}
        types = {name: (_comparable(ours[name].type), _comparable(there[name].type)) for name in ours if name in there}
        unfit = lake.unfit_columns(there, ours, types)
        lake.check_columns(self.folder, [*there], [*ours], unfit)
        if any(self._table.properties.get(name) != value for name, value in self._kept.items()):
            with self._table.transaction() as transaction:
                transaction.set_properties(self._kept)

    def catch_up(self) -> None:
        """See lake.Lake."""
        try:
            self._table.refresh()
        except PROBLEMS as error:
            raise lake.IngestError(f"cannot read the table {self.folder}: {lake.first_line(error)}") from None
        self.serials, self.known = serials_in(self._table)

    def check_there(self) -> None:
        """See lake.Lake."""
        if not is_name(self.folder):
            lake.check_there(self.folder, lake.CATALOG)

    def find(self, where: str, columns: list[str]) -> Iterator[pa.RecordBatch]:
        """See lake.Lake."""
        try:
            yield from self._table.scan(where, tuple(columns)).to_arrow_batch_reader()
        except (*PROBLEMS, pa.ArrowException) as error:
            raise lake.IngestError(f"cannot read the table {self.folder}: {lake.first_line(error)}") from None

    def commit(self, rows: pa.Table, reached: Mapping[Place, int], new: set[str]) -> bool:
        """See lake.Lake."""
        before = {place: self.serials.get(place) for place in reached}
        for attempt in range(lake.ATTEMPTS):
            try:
                transaction = once(self._table)
                transaction.append(lake.fitted(rows, self._table.schema().as_arrow()))
                self._tell(transaction, reached, new)
                transaction.commit_transaction()
                break
            except exceptions.CommitFailedException as error:
                self.catch_up()
                if new & self.known or before != {place: self.serials.get(place) for place in reached}:
                    return False
                if attempt == lake.ATTEMPTS - 1:
                    raise lake.IngestError(
                        f"cannot commit to the table {self.folder}: {lake.first_line(error)}"
                    ) from None
            except PROBLEMS as error:
                raise lake.IngestError(f"cannot commit to the table {self.folder}: {lake.first_line(error)}") from None
        self.serials.update(reached)
        self.known |= new
        return True

    def _tell(self, transaction: Transaction, serials: Mapping[Place, int], new: set[str]) -> None:
        told = {f"{SERIAL}{place.folder}.{place.queue}": str(serial) for place, serial in serials.items()}
        told |= {f"{FOLDER}{folder}": "1" for folder in new}
        made = transaction.table_metadata.current_snapshot()
        assert made is not None
        transaction.set_properties({**told, SEQUENCE: str(made.sequence_number or 0)})


def properties_of(table: str) -> Mapping[str, str]:
    """Return a table's properties; {} if there is no table. Raises IngestError, IngestUnusable."""
    if not is_name(table) and not Path(table, lake.CATALOG).exists():
        return {}
    try:
        return _load(*_catalog(table), table).properties
    except (exceptions.NoSuchTableError, exceptions.NoSuchNamespaceError):
        return {}
    except PROBLEMS as error:
        raise lake.IngestError(f"cannot open the table {table}: {lake.first_line(error)}") from None


def once(table: Table) -> Transaction:
    """Return a transaction that pyiceberg commits once, and only if the columns are unchanged. The table's stored
    properties stay as they are."""
    properties = {**table.metadata.properties, RETRIES: "0"}
    table.metadata = table.metadata.model_copy(update={"properties": properties})
    transaction = table.transaction()
    same = AssertCurrentSchemaId.model_validate({"current-schema-id": table.metadata.current_schema_id})
    transaction._requirements += (same,)  # noqa: SLF001 - pyiceberg asks for it only where columns are changed
    return transaction


def serials_in(table: Table) -> tuple[dict[Place, int], set[str]]:
    """Return the last segment of each queue in a table, and the known folders, from its properties. Raises
    IngestUnusable."""
    _check_rollback(table)
    serials = {}
    for name, value in table.properties.items():
        if name.startswith(SERIAL):
            folder, _, queue = name.removeprefix(SERIAL).partition(".")
            serials[Place(folder, queue)] = int(value)
    return serials, {name.removeprefix(FOLDER) for name in table.properties if name.startswith(FOLDER)}


def _check_rollback(table: Table) -> None:
    """Raise IngestUnusable unless the current snapshot descends from the last ingest's: a rollback removes rows, but
    keeps properties. Snapshots that others have deleted are not checked."""
    ingested = int(table.properties.get(SEQUENCE, 0))
    found = current = table.current_snapshot()
    while found is not None and (found.sequence_number or 0) > ingested:
        found = None if found.parent_snapshot_id is None else table.snapshot_by_id(found.parent_snapshot_id)
    if current is not None and found is not None and (found.sequence_number or 0) < ingested:
        raise lake.IngestUnusable(
            f"the table {'.'.join(table.name())} was rolled back, and does not tell any more which messages are in it: "
            "begin a new table. To go on without the messages that it has lost, set its property "
            f"{SEQUENCE} to {current.sequence_number}"
        )


def read_table(table: str) -> Table:
    """Open an existing table. Raises IngestError, IngestUnusable."""
    try:
        return _load(*_catalog(table), table)
    except (*PROBLEMS, exceptions.NoSuchTableError) as error:
        raise lake.IngestError(f"cannot open the table {table}: {lake.first_line(error)}") from None


def _load(catalog: Catalog, name: tuple[str, ...], table: str) -> Table:
    """Load a table. Raise IngestUnusable for a moved or copied folder: its metadata names the original's files."""
    if is_name(table):
        return catalog.load_table(name)
    others = catalog.list_tables(NAMESPACE)
    try:
        opened = None if others and name not in others else catalog.load_table(name)
        if opened is not None and Path(opened.location().removeprefix("file://")).resolve() == Path(table).resolve():
            return opened
        lacking = "it was made in another folder"
    except FileNotFoundError as error:
        lacking = f"it was made in another folder, or a part is gone: {lake.first_line(error)}"
    raise lake.IngestUnusable(
        f"the table {table} cannot be read there: {lacking}. Files of Iceberg name each other by their whole paths: "
        "move it back to where it was made, or begin a new table"
    )


def _catalog(table: str) -> tuple[Catalog, tuple[str, ...]]:
    """Return the catalog and the table's name in it. Raises IngestUnusable."""
    if is_name(table):
        catalog, *name = table.split(".")
        try:
            return load_catalog(catalog), tuple(name)
        except ValueError as error:
            raise lake.IngestUnusable(
                f"pyiceberg knows no catalog {catalog}: {lake.first_line(error)}. Describe it in ~/.pyiceberg.yaml or "
                f"by PYICEBERG_CATALOG__{catalog.upper()}__URI, or name a folder"
            ) from None
    if set("%?#") & set(table) or not table.startswith("/"):
        raise lake.IngestUnusable(
            f"{table} is neither CATALOG.NAMESPACE.TABLE nor a folder of this machine without %, ? and # in its path"
        )
    folder = Path(table)
    if not (folder / lake.CATALOG).exists():
        lake.check_empty(table)
        folder.mkdir(parents=True, exist_ok=True)
    settings = {"uri": f"sqlite:///{folder / lake.CATALOG}", "warehouse": f"file://{folder.parent}"}
    with contextlib.suppress(SQLAlchemyError):
        return SqlCatalog(NAMESPACE, **settings), (NAMESPACE, folder.name)
    return SqlCatalog(NAMESPACE, **settings), (NAMESPACE, folder.name)  # another ingest was making it


def _comparable(kind: pa.DataType) -> str:
    """Return a type without the distinctions that Iceberg does not make."""
    return re.sub(r"\bint(8|16)\b", "int32", str(kind).replace("large_", ""))
