"""Commit subjects have at most 72 characters: prints those after BASE that are longer. Status 1: there are some."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BASE = "76e1f488"  # the last commit before the rule
LONGEST = 72


def _git(root: Path, *arguments: str) -> str:
    """What git prints; "" if it fails, or is not installed."""
    try:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def too_long(root: Path = ROOT, base: str = BASE) -> list[str]:
    """The subjects after that commit that are too long. A shallow clone without it shows the last commit only; a
    folder that is no checkout, none."""
    if _git(root, "rev-parse", "--show-toplevel") != str(root):
        return []
    known = _git(root, "rev-parse", "-q", "--verify", f"{base}^{{commit}}")
    which = [f"{base}..HEAD"] if known else ["-1"]
    subjects = _git(root, "log", "--no-merges", "--format=%s", *which)
    return [subject for subject in subjects.splitlines() if len(subject) > LONGEST]


if __name__ == "__main__":
    found = too_long()
    for subject in found:
        print(f"{subject}\n  has {len(subject)} characters: a commit's subject has at most {LONGEST}")
    sys.exit(bool(found))
