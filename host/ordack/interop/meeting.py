"""How both sides of a trial meet: port, handshake, script, clocks; and if they do not, why, and what to do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from mqqb import confirm

from ordack import classes
from ordack.config import format_address
from ordack.interop.claims import BROKEN, CLAIMS, HELD, Row
from ordack.interop.far import LIFE_S, Far, NoAnswer, Refused
from ordack.interop.here import Here, connects
from ordack.interop.language import ANSWERS, CONTROL, PROBE, VERSION
from ordack.links import Hop

CONNECT_S = 10.0
CLOCKS_S = 5.0  # by which they may differ
TRIES = 3  # to connect, after which a reason counts

SCRIPT = "run `powershell.exe -ExecutionPolicy Bypass -File .\\ordack-interop.ps1` there, as an administrator"
NO_PORT = (
    "on Windows: is it the right machine? Is the feature there and running (`Get-Service MSMQ`)? Does a firewall let "
    "TCP {port} in (`New-NetFirewallRule -DisplayName MSMQ -Direction Inbound -Protocol TCP -LocalPort {port} -Action "
    "Allow`)? With hardened security (HKLM:\\SOFTWARE\\Microsoft\\MSMQ\\Parameters, hardened_msmq = 1) MSMQ takes no "
    "such connections"
)
NO_MSMQ = "is that MSMQ? On Windows, `Get-NetTCPConnection -LocalPort {port} -State Listen` shows whose port it is"
NO_QUEUE = f"the script does not run, so its queues are not there: {SCRIPT}; HOST must be an address or name of its own"
NO_RIGHT = (
    f"ANONYMOUS LOGON may not send to the queues {CONTROL}*; messages from here have no Windows account. The script "
    f"gives that right, so {SCRIPT}. In a domain, a queue that demands authentication takes nothing from here"
)
NO_WAY_BACK = (
    "Windows takes messages, but no answer comes. Does the script run? Can Windows reach this machine "
    "(`Test-NetConnection {address} -Port {port}` there; a firewall here)? If it knows this machine by another "
    "address, say so with --address. `Get-MsmqOutgoingQueue` there shows what waits and why"
)
CLOCKS = (
    "set both clocks (`w32tm /resync` there, `timedatectl` here): messages that may not wait long are lost otherwise"
)


class Meeting:
    """rows: what is known so far. greeting: what the script says of itself, once `begin` has returned True."""

    def __init__(self, hop: Hop, show: Callable[[str], None]) -> None:
        self.rows: list[Row] = []
        self.greeting: dict[str, Any] = {}
        self._hop = hop
        self._show = show

    def port(self) -> bool:
        """Does something listen there?"""
        where = format_address(*self._hop)
        self._show(f"connecting to {where}")
        if why := connects(*self._hop, CONNECT_S):
            return self._row("port", BROKEN, f"{where}: {why}", NO_PORT.format(port=self._hop[1]))
        return self._row("port", HELD, where)

    def begin(self, here: Here, far: Far, address: str, port: int) -> bool:
        """Greet the script. address, port: where Windows is to reach this side. Raises Stopped, TrialError."""
        asked = time.time()
        number = far.post("hello")
        probe = here.client.send(
            far.there(PROBE), b"", label=f"{far.run} probe", delivery="transactional", dead_letter=True, ttbr=LIFE_S
        ).message_id
        deadline = time.monotonic() + far.patience
        found, fate = None, confirm.Conclusion(confirm.WAITING, 0)
        self._show("waiting for the script there")
        while found is None and time.monotonic() < deadline:
            try:
                found = far.answer(number, 0)
            except NoAnswer:
                pass
            except Refused as error:
                return self._session(here) and self._row("answers", BROKEN, str(error), SCRIPT)
            fate = here.client.state(probe) or fate
            if fate.message_class in _REASONS or here.way().get("tries", 0) >= TRIES:
                break
        if not self._session(here):
            return False
        if found is None:
            return self._silence(here, fate, address, port)
        return self._greeted(far, found, (asked + time.time()) / 2)

    def _session(self, here: Here) -> bool:
        """The row of the handshake."""
        way = here.way()
        where = format_address(*self._hop)
        if any(event["status"] == "Established" for event in way.get("history", ())):
            return self._row("handshake", HELD, f"{where}: session open")
        why = way.get("reason") or "no session has come up in time"
        return self._row("handshake", BROKEN, f"{where}: {why}", NO_MSMQ.format(port=self._hop[1]))

    def _silence(self, here: Here, fate: confirm.Conclusion, address: str, port: int) -> bool:
        """The row of the script, which has not answered. fate: of a transactional message to another queue of its."""
        came = here.cuts.opened[False]
        found = f"no answer; connections from there: {came}; a transactional message there: {fate.answer}"
        if fate.message_class:
            found += f", class {classes.label(fate.message_class)}"
        advice = _REASONS.get(fate.message_class) or NO_WAY_BACK.format(address=address, port=port)
        return self._row("answers", BROKEN, found, advice)

    def _greeted(self, far: Far, found: dict[str, Any], then: float) -> bool:
        if found.get("version") != VERSION:
            return self._row(
                "answers",
                BROKEN,
                f"the script there has version {found.get('version')}, this side {VERSION}",
                "copy host/examples/windows/ordack-interop.ps1 of this ordack there, and start it again",
            )
        missing = [name for name in ANSWERS["hello"] if name not in found]
        if missing:
            return self._row("answers", BROKEN, f"its greeting says nothing of {', '.join(missing)}", SCRIPT)
        self.greeting = {name: found[name] for name in ANSWERS["hello"]}
        what = f"{found['computer']}, {found['system']}" + (", workgroup" if found["workgroup"] else ", domain")
        self._row("answers", HELD, what)
        apart = float(found["time"]) - then
        far.life += int(abs(apart)) + 1
        text = f"{abs(apart):.1f} s {'ahead' if apart > 0 else 'behind'} there"
        if abs(apart) <= CLOCKS_S:
            self._row("clocks", HELD, text)
        else:
            self._row("clocks", BROKEN, text, CLOCKS)
        return True

    def _row(self, key: str, verdict: str, found: str, advice: str = "") -> bool:
        self.rows.append(Row(CLAIMS[key], verdict, found, advice))
        return verdict == HELD


_REASONS = {confirm.NACK_BAD_DST_Q: NO_QUEUE, confirm.NACK_ACCESS_DENIED: NO_RIGHT}
