"""The C core as a device takes it: what its switches leave in."""

import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.conformance import ROOT

CORE = ROOT / "c_core"
STRICT = ("-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-I{CORE}")


def built(source: str, folder: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    """A program of mqqb.c and this source, in the folder."""
    program = folder / "main.c"
    program.write_text(f'#include "mqqb.h"\n#include <stdio.h>\n{source}')
    command = ["gcc", *STRICT, "-DNDEBUG", *options, program, CORE / "mqqb.c", "-o", folder / "main"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_version_of_the_core_is_that_of_the_package(tmp_path: Path) -> None:
    made = built("int main(void) { return puts(MQQB_CORE_VERSION) < 0; }", tmp_path)
    assert made.returncode == 0, made.stderr
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert subprocess.run([tmp_path / "main"], capture_output=True, text=True, check=True).stdout == f"{version}\n"


@pytest.mark.parametrize("name", ["mqqb.h", "mqqb.c", "mqqb_line.h", "mqqb_line.c"])
def test_copied_core_file_starts_with_licence(name: str) -> None:
    assert (CORE / name).read_text(encoding="utf-8").startswith("/* SPDX-License-Identifier: MIT */\n")
