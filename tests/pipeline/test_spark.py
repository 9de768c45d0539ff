"""A Spark session is made, or it is said what is missing."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from ordack.config.paths import is_local
from ordack.pipeline.spark import PARTITIONS, SparkMissing, spark_session, task_count
from pyspark.sql import SparkSession


def _java(folder: Path, script: str) -> Path:
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return folder


@pytest.mark.parametrize("says", ['openjdk version "1.8.0_392"', 'openjdk version "16" 2021-03-16', "hello", None])
def test_unsupported_or_missing_java_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str | None
) -> None:
    home = tmp_path / "java" if says is None else _java(tmp_path, f"echo '{says}' >&2")
    monkeypatch.setenv("JAVA_HOME", str(home))
    with pytest.raises(SparkMissing, match=f"JAVA_HOME is {home}"):
        spark_session("local[1]")
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SparkMissing, match="JAVA_HOME"):
        spark_session("local[1]")


def test_a_server_of_spark_connect_is_refused() -> None:
    with pytest.raises(SparkMissing, match="not used: name a master"):
        spark_session("sc://plant:15002")


@pytest.mark.parametrize(
    ("master", "local"),
    [("local", True), ("local[2]", True), ("local[*]", True), ("local-cluster[1,1,9]", False), ("spark://h:1", False)],
)
def test_only_masters_in_one_process_are_local(master: str, local: bool) -> None:
    assert is_local(master) is local


@pytest.mark.parametrize(("said", "partitions"), [({}, {PARTITIONS: "12"}), ({PARTITIONS: "2"}, {})])
def test_local_spark_sets_partitions_per_core_by_default(
    monkeypatch: pytest.MonkeyPatch, said: dict[str, str], partitions: dict[str, str]
) -> None:
    told: dict[str, str] = {}
    made = SimpleNamespace(
        sparkContext=SimpleNamespace(getConf=lambda: said, defaultParallelism=3, master="local[3]"),
        conf=SimpleNamespace(set=told.__setitem__),
        dataSource=SimpleNamespace(register=lambda _: None),
    )
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", lambda _: made)
    assert spark_session("local[3]") is made
    assert told == partitions


@pytest.mark.parametrize(
    ("master", "files", "count"),
    [("local[2]", 9, 2), ("local[2]", 0, 1), ("spark://h:1", 9, 9), ("spark://h:1", 999, 200)],
)
def test_cluster_task_count_follows_file_count(master: str, files: int, count: int) -> None:
    context = SimpleNamespace(master=master, defaultParallelism=2)  # what a cluster says at first
    assert task_count(SimpleNamespace(sparkContext=context), files) == count  # type: ignore[arg-type]
