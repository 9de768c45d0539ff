"""The soak of hil/ci, which systemd starts by its timer in a Debian of its own: `make try-deb`. Not in `make test`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.debian import booted, packed, unpacked
from tests.support.wheel import ROOT

CI = ROOT / "hil" / "ci"
RIG = """
imports: [hil.drivers]
targets:
  desk:
    resources: {EmulatedMachine: {kind: cpython}}
    drivers: {EmulatedNodeDriver: {}, BoardStrategy: {}}
"""
SMALL = "[Service]\nEnvironment=MESSAGES=20 CUTS=2 KILLS=2 COMMANDS=2 ROUNDS=2 AT_ONCE=1\n"
# The user owns the checkout. An evening that has come while the machine was off is made up for at once.
SCRIPT = """
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
useradd --non-unique --uid "$(stat -L -c %u /srv/ordack)" --home-dir /srv/lab lab
chown lab /srv/lab
runs() { systemctl --quiet is-active ordack-soak; }
ended() { while runs; do sleep 0.2; done; systemctl show ordack-soak -P Result -P ExecMainStatus | xargs; }
evening() {
    systemctl stop ordack-soak.timer
    mkdir -p /var/lib/systemd/timers
    touch -d yesterday /var/lib/systemd/timers/stamp-ordack-soak.timer
    systemctl start ordack-soak.timer
    until runs; do sleep 0.1; done
}
rounds() { stat -c '%n %Y' /srv/lab/soaks/*/desk-*.json | xargs; }
evening
while runs && ! ls /srv/lab/soaks/*/desk-0.json; do sleep 0.2; done >/dev/null
systemctl stop ordack-soak
ended
systemctl show ordack-soak.timer -P NextElapseUSecRealtime
rounds
evening
ended
rounds
journalctl --sync
journalctl --unit ordack-soak --output cat
printf '[Service]\nEnvironment=FOR=0.1s\n' >/etc/systemd/system/ordack-soak.service.d/short.conf
systemctl daemon-reload
systemctl start ordack-soak
ended
"""


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """A lab whose checkout is this one: what is written there is gone afterwards."""
    with unpacked(packed(), tmp_path) as root:
        for folder in ("srv/lab", "etc/systemd/system/ordack-soak.service.d", ROOT.relative_to("/"), python()):
            (root / folder).mkdir(parents=True, exist_ok=True)
        (root / "srv/ordack").symlink_to(ROOT)
        (root / "srv/lab/rig.yaml").write_text(RIG)
        (root / "etc/systemd/system/ordack-soak.service.d/small.conf").write_text(SMALL)
        for name in ("ordack-soak.service", "ordack-soak.timer"):
            (root / "etc/systemd/system" / name).write_text((CI / name).read_text())
        yield root


def python() -> Path:
    """Where the interpreter of this checkout is installed, below the root."""
    return Path(sys.base_prefix).relative_to("/")


def test_the_timer_starts_a_soak_which_goes_on_where_systemd_has_stopped_it(root: Path) -> None:
    # Debian's own interpreter is there already.
    interpreter = () if python() == Path("usr") else (f"--bind-ro=/{python()}",)
    stopped, next_evening, first, well, both, *said, over = booted(
        root, SCRIPT, f"--overlay={ROOT}::{ROOT}", *interpreter
    )
    print("\n".join(said))
    assert " 20:00:00 " in next_evening
    assert (stopped, well, over) == ("success 2", "success 0", "success 124")
    assert len(first.split()) == 2, "one round was done when it was stopped"
    assert len(both.split()) == 4
    assert both.startswith(first), "and was not played again"
    assert not [line for line in said if "Traceback" in line]
    assert [line for line in said if ", stopped: 1 rounds are missing" in line]
    assert [line for line in said if "desk: 2 of 2 rounds, 20 readings and 2 commands once" in line]
