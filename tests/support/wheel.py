"""What somebody installs who has no checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLAIN = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "ORDACK"))}
QUICK = {**os.environ, "CFLAGS": "-O0"}  # compiles our C in a third of the time
# What goes into a wheel: so a test finds out what is missing here, and nothing is built in the checkout.
FILES = ("pyproject.toml", "README.md", "LICENSE")
FOLDERS = ("host", "firmware/mqqb", "c_core")


def make_wheel(folder: Path) -> Path:
    """A wheel of this checkout, made in `folder`."""
    copy = folder / "checkout"
    copy.mkdir()
    for name in FILES:
        shutil.copy(ROOT / name, copy)
    for name in FOLDERS:
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info"))
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, copy],
        check=True,
        timeout=1200,
        env=QUICK,
    )
    [wheel] = folder.glob("ordack-*.whl")
    return wheel
