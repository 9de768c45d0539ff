"""A Debian of its own with systemd, made once and kept in build/, and what runs in it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support import own_network
from tests.support.wheel import ROOT

LONG_S = 1200
RELEASES = {(3, 11): "bookworm", (3, 13): "trixie"}  # of Debian, by the version of their python3
# What the package of ordack needs, and of what is installed beside Python the C++ of labgrid's gRPC.
PACKAGES = "python3,adduser,init-system-helpers,procps,systemd,systemd-sysv,dbus,libstdc++6"


def packed() -> Path:
    """For a fixture: a root of Debian with systemd, Python and little more, as a tar file."""
    missing = [name for name in ("mmdebstrap", "unshare", "setpriv", "dpkg-deb", "ip") if not shutil.which(name)]
    release = RELEASES.get(sys.version_info[:2])
    if os.geteuid() or missing or release is None:
        pytest.skip(f"needs root, Debian's Python 3.11 or 3.13, and {', '.join(missing) or 'programs that are here'}")
    made = ROOT / "build" / "debian" / f"{release}-{zlib.crc32(PACKAGES.encode()):08x}.tar"
    if not made.exists():
        made.parent.mkdir(parents=True, exist_ok=True)
        part = made.with_suffix(f".{os.getpid()}.tar")
        include = f"--include={PACKAGES}"
        command: list[str | Path] = ["mmdebstrap", "--quiet", "--variant=essential", include, release, part]
        with own_network.of_machine():
            done = subprocess.run(command, capture_output=True, text=True, timeout=LONG_S, check=False)
        if done.returncode:
            pytest.skip(f"mmdebstrap cannot make a root of Debian here: {done.stderr.strip().splitlines()[-1]}")
        part.rename(made)
    return made


@contextmanager
def unpacked(tar: Path, folder: Path) -> Iterator[Path]:
    """That root as a folder below `folder`, which is removed at the end."""
    root = folder / "root"
    root.mkdir()
    subprocess.run(["tar", "-x", "-f", tar, "-C", root], check=True, timeout=LONG_S)
    try:
        yield root
    finally:  # pytest would keep a quarter of a gigabyte; and nothing that is mounted there is to go, too
        subprocess.run(["rm", "-r", "--one-file-system", folder], check=True, timeout=LONG_S)


def booted(root: Path, script: str, *options: str) -> list[str]:
    """Run a shell script there when systemd has started everything, in a container with these options more; what it
    has printed.
    """
    if not shutil.which("systemd-nspawn"):
        pytest.skip("needs systemd-nspawn")
    (root / "script").write_text(script)
    units = root / "etc/systemd/system"
    (units / "script.service").write_text(
        "[Unit]\nAfter=multi-user.target\n[Service]\nStandardOutput=append:/shown\nStandardError=append:/errors\n"
        "ExecStart=sh -eu /script\nExecStopPost=systemctl poweroff\n"
    )
    (units / "graphical.target.wants").mkdir()
    (units / "graphical.target.wants" / "script.service").symlink_to("../script.service")
    done = subprocess.run(
        ["systemd-nspawn", "--quiet", "--boot", "--private-network", "--keep-unit", "--register=no", *options,
         f"--machine=ordack-test-{os.getpid()}", "--directory", root],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LONG_S, check=False,
    )  # fmt: skip
    if not (root / "shown").exists():
        pytest.skip(f"systemd does not start in a container here: {done.stdout[-200:]!r} {done.stderr[-200:]!r}")
    print((root / "errors").read_text())  # for whoever looks at a failure
    return (root / "shown").read_text().splitlines()
