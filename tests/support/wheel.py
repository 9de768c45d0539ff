"""What somebody installs who has no checkout."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLAIN = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "ORDACK"))}
QUICK = {**os.environ, "CFLAGS": "-O0"}  # compiles our C in a third of the time


def make_wheel(folder: Path) -> Path:
    """A wheel of this checkout, made in `folder`."""
    command = ["make", "SETUP=:", f"PYTHON_VENV={sys.executable}", "wheel", f"WHEELS={folder}"]
    subprocess.run(command, cwd=ROOT, check=True, timeout=1200, env=QUICK, stdout=subprocess.DEVNULL)
    [wheel] = folder.glob("ordack-*.whl")
    return wheel
