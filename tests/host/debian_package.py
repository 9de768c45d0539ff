"""The Debian package in a Debian of its own: `make deb TRY=1`, which takes minutes. Not in `make test`."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import own_network
from tests.support.debian import LONG_S, booted, packed, unpacked
from tests.support.wheel import PLAIN, ROOT

DATA = "var/lib/ordack"
# Shell functions for what runs in there. The service is what the unit starts, as its user; `start` ends when it is up.
SHELL = r"""
export LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive PATH=/usr/sbin:/usr/bin:/sbin:/bin
user="setpriv --reuid ordack --regid ordack --clear-groups"
as_ordack() { $user "$@"; }
start() {
    rm -f /tmp/said
    mkfifo /tmp/said
    $user $(sed -n 's/^ExecStart=//p' /lib/systemd/system/ordack.service) >/tmp/said 2>/tmp/log &
    exec 3</tmp/said
    read -r line <&3 || { cat /tmp/log >&2; exit 1; }
    echo "$line"
}
stop() { kill $!; cat <&3; wait $!; }
"""


debian = pytest.fixture(scope="module")(packed)


@pytest.fixture(scope="module")
def package(debian: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("package")
    environment = {**PLAIN, "PYTHON": sys.executable}
    command = [ROOT / "host" / "debian" / "build.sh", folder]
    with own_network.of_machine():
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LONG_S, check=False)
    assert done.returncode == 0, done.stderr
    [made] = folder.glob("ordack_*.deb")
    return made


@pytest.fixture
def root(debian: Path, package: Path, tmp_path: Path) -> Iterator[Path]:
    """That root, with first.deb and later.deb in it: the package, and one of a higher version with another default
    configuration."""
    content = tmp_path / "content"
    with unpacked(debian, tmp_path) as root:
        shutil.copy(package, root / "first.deb")
        subprocess.run(["dpkg-deb", "-R", package, content], check=True, timeout=LONG_S)
        control = content / "DEBIAN" / "control"
        control.write_text(control.read_text().replace("\nVersion: 0", "\nVersion: 9"))
        with (content / "etc/ordack/ordack.toml").open("a") as file:
            file.write("# A new default.\n")
        command: list[str | Path] = ["dpkg-deb", "--root-owner-group", "-Znone", "-b", content, root / "later.deb"]
        subprocess.run(command, check=True, timeout=LONG_S)
        yield root


def inside(root: Path, script: str) -> tuple[list[str], str]:
    """Run a shell script there, with a network, processes and mounts of its own; the lines that it printed, and what it
    wrote to standard error."""
    enter = (
        'mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" && ip link set lo up && exec chroot "$0" sh -eu'
    )
    done = subprocess.run(
        ["unshare", "--mount", "--net", "--ipc", "--pid", "--fork", "--kill-child", "sh", "-c", enter, root],
        input=SHELL + script, env=PLAIN, capture_output=True, text=True, timeout=LONG_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines(), done.stderr


def test_debian_package_serves_and_never_touches_messages(root: Path) -> None:
    store = root / DATA

    shown, _ = inside(
        root,
        "dpkg -i first.deb >&2; dpkg --verify ordack; cd /var/lib/ordack; stat -c '%U %G %a' . *; ordack --version",
    )
    assert shown[:2] == ["ordack ordack 750", "ordack ordack 640"]  # the store is made
    assert (root / "etc/systemd/system/multi-user.target.wants/ordack.service").is_symlink()
    assert (root / "usr/lib/ordack/ordack/__pycache__").is_dir()  # the service may not write there
    shown, _ = inside(
        root,
        """
        start
        as_ordack ordack queue create line1 --transactional
        as_ordack env PYTHONPATH=/usr/lib/ordack python3 -c "
        import ordack
        with ordack.connect('/var/lib/ordack') as client:
            client.send('line1', b'21.5')"
        as_ordack ordack receive line1 --json
        as_ordack ordack send line1 --body kept >&2
        stop
        ordack board doctor --port /dev/null || echo $?
        """.replace("\n        ", "\n"),
    )
    assert shown[0] == "listening on 127.0.0.1:1801"
    assert json.loads(shown[2])["body"] == "21.5"
    assert shown[3:] == ["5"]  # boards can be reached, but none is there

    settings = root / "etc/ordack/ordack.toml"
    settings.write_text("http = 9180\n")
    inside(root, "dpkg --force-confold -i later.deb")
    assert settings.read_text() == "http = 9180\n"
    shown, _ = inside(
        root, "dpkg-query -Wf '${Version}\\n' ordack; start; as_ordack ordack receive line1 --peek --json; stop"
    )
    assert shown[0].startswith("9")
    assert json.loads(shown[2])["body"] == "kept"
    assert shown[3] == "web page on http://127.0.0.1:9180/, metrics on http://127.0.0.1:9180/metrics"

    (store / "ordack.sqlite").rename(store / "elsewhere")  # as if its disk were not mounted
    inside(root, "dpkg --force-confold -i later.deb")
    assert not (store / "ordack.sqlite").exists()
    (store / "elsewhere").rename(store / "ordack.sqlite")

    inside(root, "dpkg -r ordack")
    assert settings.exists()
    assert not (root / "usr/lib/ordack").exists()
    _, told = inside(root, "dpkg -P ordack")
    assert "the messages in /var/lib/ordack and the user ordack stay" in told
    assert not settings.parent.exists()
    assert not (store / "ordack.toml").is_symlink()

    (store / "ordack.toml").write_text("http = 9181\n")
    _, told = inside(root, "dpkg -i later.deb")
    assert "the service goes by /var/lib/ordack/ordack.toml" in told
    shown, _ = inside(root, "start; as_ordack ordack receive line1 --json; stop; dpkg -P ordack >&2")
    assert json.loads(shown[1])["body"] == "kept"
    assert shown[2] == "web page on http://127.0.0.1:9181/, metrics on http://127.0.0.1:9181/metrics"
    assert (store / "ordack.toml").read_text() == "http = 9181\n"


def test_systemd_runs_installed_debian_package(root: Path) -> None:
    """In its sandbox, with all that the unit closes: it is ready, restarts, starts again, and obeys the operator."""
    shown = booted(
        root,
        SHELL
        + """
        now() { systemctl show ordack -P ActiveState; }
        dpkg -i first.deb >&2
        now
        as_ordack ordack queue create line1 --transactional
        as_ordack ordack send line1 --body 21.5 >&2
        echo 'htp = 9180' >/etc/ordack/ordack.toml
        systemctl restart ordack || echo refused
        echo 'http = 9180' >/etc/ordack/ordack.toml
        systemctl restart ordack
        systemctl show ordack -P StatusText
        before=$(systemctl show ordack -P MainPID)
        dpkg --force-confold -i later.deb >&2
        [ "$before" = "$(systemctl show ordack -P MainPID)" ] || now
        python3 -c "from urllib.request import urlopen; print(urlopen('http://127.0.0.1:9180/healthz').read())"
        systemctl kill --signal KILL ordack
        until [ "$(systemctl show ordack -P NRestarts)" = 1 ] && systemctl --quiet is-active ordack; do sleep 0.1; done
        as_ordack ordack receive line1 --peek --json
        systemctl disable --quiet ordack
        dpkg -i later.deb >&2
        now
        systemctl enable --now --quiet ordack
        dpkg -P ordack >&2
        pgrep -u ordack || echo none
        """,
    )
    assert shown[:3] == ["active", "created line1", "refused"]
    assert shown[3].startswith("1 queue with 1 message")
    assert shown[4] == "active"
    assert '"healthy": true' in shown[5]
    assert json.loads(shown[6])["body"] == "21.5"
    assert shown[7:] == ["inactive", "none"]
