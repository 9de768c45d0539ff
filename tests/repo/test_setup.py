"""Set-up on a machine that lacks something says exactly what, and the Makefile says what it can do."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conformance import ROOT


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What set-up reads before it makes anything."""
    shutil.copytree(ROOT / "firmware" / "ports", tmp_path / "firmware" / "ports")
    return tmp_path


@pytest.fixture
def path_without(tmp_path: Path) -> Callable[..., str]:
    """Makes a PATH on which some programs are missing."""

    def make(*missing: str) -> str:
        folder = tmp_path / "programs"
        folder.mkdir()
        for directory in reversed(os.environ["PATH"].split(os.pathsep)):
            for program in Path(directory).iterdir() if Path(directory).is_dir() else ():
                if program.name not in missing:
                    (folder / program.name).unlink(missing_ok=True)
                    (folder / program.name).symlink_to(program)
        return str(folder)

    return make


def setup(checkout: Path, job: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [checkout / "firmware" / "ports" / "setup.sh", job],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def named(result: "subprocess.CompletedProcess[str]") -> set[str]:
    """The packages that set-up says are missing."""
    return {line.split(":")[0].strip() for line in result.stderr.splitlines() if line.startswith("  ")}


def test_setup_without_apt_names_missing_packages_and_reasons(checkout: Path, path_without: Callable[..., str]) -> None:
    path = path_without("apt-get", "xz", "arm-none-eabi-gcc", "qemu-system-arm", "spin", "mosquitto")
    result = setup(checkout, "run", PATH=path)
    assert result.returncode == 1
    # Running needs neither the cross compiler nor the bridge's broker.
    assert named(result) == {"xz-utils"}
    # Neither do the emulated boards need what only tests use.
    result = setup(checkout, "firmware", PATH=path)
    assert result.returncode == 1
    assert named(result) == {"xz-utils", "gcc-arm-none-eabi", "libnewlib-arm-none-eabi", "qemu-system-arm"}
    result = setup(checkout, "test", PATH=path)
    assert result.returncode == 1
    assert named(result) >= {"xz-utils", "gcc-arm-none-eabi", "libnewlib-arm-none-eabi", "qemu-system-arm", "spin"}
    assert "gcc-arm-none-eabi: firmware for Cortex-M, size of the C core on a Cortex-M0+" in result.stderr
    assert not (checkout / ".venv").exists()


def test_own_micropython_needs_no_source(checkout: Path, path_without: Callable[..., str], tmp_path: Path) -> None:
    own = tmp_path / "own"
    (own / "py").mkdir(parents=True)
    (own / "py" / "mpconfig.h").touch()
    result = setup(checkout, "run", PATH=path_without("apt-get", "xz", "dpkg-source", "gcc"), MICROPYTHON_DIR=str(own))
    assert named(result) == {"build-essential"}


def test_wrong_micropython_folder_is_refused_at_once(checkout: Path, tmp_path: Path) -> None:
    result = setup(checkout, "run", MICROPYTHON_DIR=str(tmp_path))
    assert result.returncode == 1
    assert "is not a MicroPython checkout" in result.stderr
    assert not (checkout / "build").exists()


def test_python_too_old_is_said(checkout: Path, path_without: Callable[..., str], tmp_path: Path) -> None:
    old = tmp_path / "old-python"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "Python 3.9.2" && exit\nexit 1\n')
    old.chmod(0o755)
    result = setup(checkout, "run", PATH=path_without("apt-get"), PYTHON=str(old))
    assert result.returncode == 1
    assert "python3: Python 3.11 or newer" in result.stderr
    assert "Python 3.9.2" in result.stderr


def test_make_help_lists_every_job() -> None:
    result = subprocess.run(["make", "-C", ROOT], capture_output=True, text=True, timeout=60, check=True)
    phony = next(line for line in (ROOT / "Makefile").read_text().splitlines() if line.startswith(".PHONY:"))
    listed = {line.split()[1] for line in result.stdout.splitlines() if line.startswith("  make ")}
    assert listed == {job for job in phony.split()[1:] if not job.startswith("setup-")}
