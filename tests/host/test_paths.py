"""What a command takes for a file or folder of this machine, and what it refuses before it does anything."""

from __future__ import annotations

import contextlib
import importlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from ordack import cli
from ordack.capture import decoder
from ordack.cli import decode
from ordack.client import Client
from ordack.config.paths import NotLocal, local_path
from ordack.pipeline.export import Exporter
from ordack.pipeline.packets import OptionError, find_files
from ordack.pipeline.segments import FolderError

from tests.support.command import ENVIRONMENT, ordack

pytestmark = pytest.mark.slow

ELSEWHERE = [
    "S3:/bucket",
    "s3a://key:secret@bucket/x",
    "hdfs://name:8020/x",
    "webhdfs://name/x",
    "dbfs:/x",
    "https://host/x.pcap",
    "C:\\x",
    "c:x",
    "\\\\server\\share",
    "file://host/x",
    "file:x",
    "file:///a%20b",
]


def _ordack(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    return ordack(*arguments, folder=folder, environment={**ENVIRONMENT, "COLUMNS": "300"})


@pytest.fixture
def store(tmp_path: Path) -> Path:
    folder = tmp_path / "store"
    with Client(folder, create=True) as client:
        client.create_queue("plain", transactional=False)
        client.send("plain", b"reading")
    return folder


@pytest.mark.parametrize("named", ["s3a://key:secret@bucket/x", "C:\\x"])
def test_export_refuses_unsupported_path_and_keeps_messages(store: Path, named: str) -> None:
    before = sorted(store.parent.iterdir())
    done = _ordack(store.parent, "table", "export", "plain", "--store", store, "--to", named)
    assert done.returncode == 2
    assert named.replace("key:secret", "...") in done.stderr
    assert "'--to'" in done.stderr
    with Client(store) as client:
        assert [message.body for message in client.queue("plain").peek()] == [b"reading"]
        for other in (*ELSEWHERE, ""):
            with pytest.raises(FolderError), Exporter(client, ["plain"], other):
                pass
    assert sorted(store.parent.iterdir()) == before


@pytest.mark.parametrize("command", ["table ingest", "capture audit --no-spark", "capture decode"], ids=" ".join)
def test_unsupported_url_error_names_local_and_s3_paths(store: Path, command: str) -> None:
    more = ("--to", "new") if command == "table ingest" else ()
    done = _ordack(store.parent, *command.split(), "hdfs://name:8020/x", *more)
    assert done.returncode == 2
    assert "is a URL of hdfs, and only paths of this machine and of S3" in done.stderr
    assert not (store.parent / "new").exists()


def _options() -> Iterator[tuple[str, str, Any]]:
    """Command, name and parser of each option and argument that is a path."""
    for place in cli.COMMANDS.values():
        module, _, attribute = place.partition(".")
        made = getattr(importlib.import_module(f"ordack.cli.{module}"), attribute)
        functions = [one.callback for one in made.registered_commands] if isinstance(made, typer.Typer) else [made]
        for function in functions:
            for name, hint in get_type_hints(function, include_extras=True).items():
                kind, *more = get_args(hint) if get_origin(hint) is Annotated else (hint,)
                if Path in (kind, *get_args(kind)) or Path in [arg for one in get_args(kind) for arg in get_args(one)]:
                    yield (
                        function.__name__,
                        name,
                        next((one.parser for one in more if isinstance(one, typer.models.ParameterInfo)), None),
                    )


def test_every_path_option_refuses_urls() -> None:
    found = list(_options())
    assert len(found) > 20
    for command, name, parse in found:
        assert parse is not None, f"{command}: {name} has to be parsed by cli.common.local"
        with pytest.raises(typer.BadParameter, match="is a URL of s3a"):
            parse("s3a://bucket/x")


@pytest.mark.parametrize("named", ELSEWHERE)
def test_audit_and_decode_refuse_unsupported_paths(named: str) -> None:
    with pytest.raises(OptionError):
        find_files(named)
    with pytest.raises(decoder.InputError):
        list(decode._items(named))


@pytest.mark.parametrize("form", ["file:{}", "file://{}", "file://localhost{}", "FILE:{}"])
def test_a_file_url_of_this_machine_is_the_path_in_it(store: Path, form: str) -> None:
    folder = store.parent / "segments"
    done = _ordack(store.parent, "table", "export", "plain", "--store", form.format(store), "--to", form.format(folder))
    assert (done.returncode, done.stderr) == (0, "")
    assert len(list(folder.glob("plain-*.parquet"))) == 1
    assert sorted(path.name for path in store.parent.iterdir()) == ["segments", "store"]


@given(st.text(st.sampled_from("aC:/\\.s3-_ ~é"), min_size=1))
def test_path_is_unchanged_or_refused_and_dot_slash_forces_it(text: str) -> None:
    with contextlib.suppress(NotLocal):
        assert local_path(text) == text
    assert local_path(f"./{text}") == f"./{text}"


@pytest.mark.parametrize("text", ["cap-2026-11-21T21:10:00.pcap", "/a/b", "ab:c", "-", "~/x", "plant 1", "s3a"])
def test_names_with_colons_are_paths(text: str) -> None:
    assert local_path(text) == text
