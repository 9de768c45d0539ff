"""A Spark session is made, or it is said what is missing."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from ordack.machine import is_local
from ordack.pipeline import spark as spark_module
from ordack.pipeline.spark import PARTITIONS, SparkMissing, spark_session
from pyspark.sql import SparkSession

from tests.support.command import own_port


def _java(folder: Path, script: str) -> Path:
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return folder


@pytest.mark.parametrize(("version", "major"), [("1.8.0_392", "8"), ("11.0.21", "11"), ("16", "16")])
def test_a_java_that_is_too_old_is_named_with_what_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, major: str
) -> None:
    home = _java(tmp_path, f"echo 'openjdk version \"{version}\" 2023-10-17' >&2")
    monkeypatch.setenv("JAVA_HOME", str(home))
    with pytest.raises(SparkMissing) as problem:
        spark_session("local[1]")
    assert f"{home}/bin/java is Java {major}; Spark needs 17 or newer" in str(problem.value)


def test_without_java_the_two_ways_to_have_one_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SparkMissing, match=r"no `java` on the PATH: install one .* or set JAVA_HOME"):
        spark_session("local[1]")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    with pytest.raises(SparkMissing, match=r"JAVA_HOME is .*nowhere, and there is no bin/java in it"):
        spark_session("local[1]")


def test_a_java_that_does_not_say_its_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(_java(tmp_path, "echo hello")))
    with pytest.raises(SparkMissing, match="does not say which version of Java it is"):
        spark_session("local[1]")


@pytest.mark.parametrize("missing", ["pyspark", "pyarrow", "pandas", "cbor2"])
def test_a_missing_package_is_named_with_how_to_install_it(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    there = spark_module.find_spec
    monkeypatch.setattr(spark_module, "find_spec", lambda name: None if name == missing else there(name))
    with pytest.raises(SparkMissing, match=rf"the Python package {missing} is missing: .*pip install 'ordack\[spark"):
        spark_session("local[1]")


def test_a_server_needs_what_pyspark_needs_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    there = spark_module.find_spec
    monkeypatch.setattr(spark_module, "find_spec", lambda name: None if name == "grpc" else there(name))
    with pytest.raises(SparkMissing, match=r"package grpc is needed, which is missing: .*'ordack\[spark\]'"):
        spark_session("sc://127.0.0.1:1")


def test_a_server_that_does_not_answer_is_told_at_once() -> None:
    port = own_port()  # nobody listens there
    with pytest.raises(SparkMissing, match=rf"no Spark Connect server answers at 127\.0\.0\.1:{port} \(Connection"):
        spark_session(f"sc://127.0.0.1:{port}/;user_id=somebody")


@pytest.mark.parametrize("url", ["sc://", "sc:///x", "sc://host:port"])
def test_an_address_that_is_none_is_told_with_the_form_of_one(url: str) -> None:
    with pytest.raises(
        SparkMissing, match=r"is no address of a Spark Connect server: it is of the form sc://HOST:PORT"
    ):
        spark_session(url)


@pytest.mark.parametrize(
    ("master", "local"),
    [("local", True), ("local[2]", True), ("local[*]", True), ("local-cluster[1,1,9]", False), ("spark://h:1", False)],
)
def test_only_masters_in_one_process_are_local(master: str, local: bool) -> None:
    assert is_local(master) is local


@pytest.mark.parametrize(("said", "partitions"), [({}, {PARTITIONS: "12"}), ({PARTITIONS: "2"}, {})])
def test_on_one_machine_there_are_a_few_partitions_a_core_if_nobody_has_said_how_many(
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
