"""Gives a board its name, queue and connection, and proves that they work (`ordack board provision`).

The new configuration is written beside config.json, and the board tries it: it joins the Wi-Fi, reaches the queue
manager, and sends a message through a node. When that message is stored, one renaming replaces the old file. Any
earlier failure leaves the old configuration in force. FAT cannot rename over a file: a power cut during the renaming
leaves the new file under its other name, where the next run finds it.
"""

from __future__ import annotations

import binascii
import json
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from mqqb import guids, names

from ordack.boards.deploy import RENAME, copy_aside, deploy
from ordack.boards.doctor import reach
from ordack.boards.repl import Board, BoardError, Progress
from ordack.broker.announced import NAME
from ordack.config import classes
from ordack.config.config import split_direct

CONFIG = "config.json"
JOIN_S, STORE_S, TIME_S = 30, 60, 15
NAME_BYTES_MAX = 100  # in a board's outbox
SSID_BYTES_MAX, PASSWORD_BYTES = 32, range(8, 65)
_OURS = re.compile(r".*/(?:authority|certificate|key)-[0-9a-f]{8}\.der")
TLS_FILES = {"authority": "ca.der", "certificate": "{}.der", "key": "{}.key.der"}

# None: joined; else why not, and the driver's number or text for the reason.
_JOIN = """
def _join(ssid, password, options, seconds):
    import time
    try:
        import network
        network.WLAN
    except (ImportError, AttributeError):
        return ('none', 0)
    from ordack.node.board import Wifi
    try:
        wifi = Wifi(ssid, password, **options)
    except (AttributeError, OSError, TypeError, ValueError) as error:
        return ('options', str(error))
    rounds = 3 * (1 + len(options.get('more', ())))
    wlan = wifi.wlan
    wlan.active(True)
    wlan.disconnect()  # from where the configuration before led
    began = time.ticks_ms()
    number = 0
    while time.ticks_diff(time.ticks_ms(), began) < 333 * seconds * rounds and (not number or wifi.attempts < rounds):
        _feed()
        if wifi.poll():
            return None
        time.sleep_ms(20)
        status = wlan.status()
        if status < 0 or 200 <= status < 1000:
            number = status
    absent = getattr(network, 'STAT_NO_AP_FOUND', -2)
    refused = (getattr(network, 'STAT_WRONG_PASSWORD', -3), 204)
    return ('absent' if number == absent else 'password' if number in refused else 'join', number)
"""
# Does the NTP server set the board's clock in time?
_TIME = """
def _time(server, seconds):
    from ordack.node.board import set_clock
    for _ in range(0, seconds, 3):
        _feed()
        if set_clock(server, 3000):
            return True
    return False
"""
_SEND = """
def _send(path, folder, seconds):
    import json
    from ordack.node import Node
    with open(path) as file:
        config = json.load(file)
    connect = config['host'], config['port']
    if 'tls' in config:
        from ordack.node.tls import TlsLink
        connect = TlsLink(*connect, **config['tls'])
    node = Node(folder, connect=connect, name=config['name'])
    try:
        queue = node.queue(config['queue'])
        before = node.waiting
        message = queue.put(b'provisioned')
        def settled():
            _feed()
            reason = str(queue.peer.reason)
            is_another = 'accept=' in reason  # another queue manager answers than before
            if is_another and not before:
                node.accept = reason[reason.index('{'):reason.index('}') + 1]
            return message.is_settled() or (is_another and before)
        in_time = node.wait(settled, 1000 * seconds) and message.is_settled()
        reason = queue.peer.reason
        if not in_time:
            node.delete(message)
        said = message.conclusion()
        return (node.guid, message.is_stored(), said.message_class, in_time, before, str(reason), node.damage,
            node.outbox.ahead)
    finally:
        node.close_now()
"""


class Wanted(NamedTuple):
    """The desired configuration of a board. wifi: name and password of the network; ntp: time server; None: the current
    one. tls: files by role, and the name in the queue manager's certificate; None: no TLS. replace: allow renaming a
    board and removing its TLS."""

    name: str
    queue: str
    host: str
    port: int
    wifi: tuple[str, str] | None = None
    tls: tuple[dict[str, bytes], str] | None = None
    replace: bool = False
    ntp: str | None = None


class Provisioned(NamedTuple):
    """The result. before: the board's previous name, or empty. told: the board's reports on its outbox."""

    guid: str
    before: str
    copied: list[str]
    told: list[str]


def check_name(name: str) -> None:
    """Raises ValueError for a name that a board cannot announce."""
    if not NAME.fullmatch(name) or len(name.encode()) > NAME_BYTES_MAX:
        raise ValueError(
            f"the name {name!r} is not valid: use 1 to 64 letters, digits, spaces and . - _, at most "
            f"{NAME_BYTES_MAX} bytes"
        )


def host_of(text: str) -> str:
    """The host in a direct format name of a remote queue. Raises ValueError for other names."""
    like = r"write it in single quotes, as 'DIRECT=TCP:192.168.1.20\private$\line1'"
    if "\\" not in text:
        raise ValueError(f"the queue {text!r} has no backslash; a shell may have removed it: {like}")
    if "\\\\" in text:
        raise ValueError(f"the queue {text!r} has two backslashes in a row; only Python strings need two: {like}")
    match = re.fullmatch(r"DIRECT=(?:TCP|OS):([^\\\s/]+)\\.+", text, re.IGNORECASE)
    if match is None or (match[1].count(":") == 1) or not text.isprintable():
        raise ValueError(f"the queue {text!r} is not a direct format name: {like}")
    if match[1] in (".", "localhost"):
        raise ValueError(f"the queue {text!r} is on the machine {match[1]}, which is the board itself: {like}")
    try:
        names.parse_format_name(text)
    except ValueError as error:
        raise ValueError(f"the queue {text!r}: {error}; {like}") from None
    return match[1]


def check_ntp(server: str) -> str:
    """The address or name of an NTP server. Raises ValueError."""
    if not re.fullmatch(r"[A-Za-z0-9._:-]{1,253}", server):
        raise ValueError(f"the NTP server {server!r} is no address and no name: give one such as 192.168.1.1")
    return server


def check_wifi(ssid: str, password: str) -> tuple[str, str]:
    """The Wi-Fi and its password, empty for an open network. Raises ValueError, which does not show the password."""
    if not 1 <= len(ssid.encode()) <= SSID_BYTES_MAX:
        raise ValueError(f"the Wi-Fi {ssid!r} has {len(ssid.encode())} bytes: a name has 1 to {SSID_BYTES_MAX}")
    if password and len(password.encode()) not in PASSWORD_BYTES:
        raise ValueError(
            f"the password of the Wi-Fi {ssid!r} has {len(password.encode())} bytes: it has 8 to 64, an open Wi-Fi none"
        )
    return ssid, password


def provision(board: Board, wanted: Wanted, progress: Progress = lambda *_: None) -> Provisioned:
    """Configure the board completely, or only copy modules and raise. Raises BoardError, NoBoard."""
    path = board.info.root(CONFIG)
    before = _config_of(board, path)
    _check_place(wanted, before)
    done = deploy(board, progress=progress)
    if done.problem:
        raise BoardError(f"a node cannot start on the board: {done.problem}; `ordack board doctor` says more")
    config = {
        **{key: value for key, value in before.items() if key != "tls"},
        "name": wanted.name,
        "queue": wanted.queue,
        "host": wanted.host,
        "port": wanted.port,
    }
    if wanted.wifi is not None:
        config["ssid"], config["password"] = wanted.wifi
    if wanted.ntp is not None:
        config["ntp"] = wanted.ntp
    placed: dict[str, bytes] = {}
    if wanted.tls is not None:
        _check_tls(board)
        files, called = wanted.tls
        # Named by content: until config.json is renamed, the board keeps its current files.
        places = {role: board.info.root(f"{role}-{binascii.crc32(data):08x}.der") for role, data in files.items()}
        placed = {places[role]: data for role, data in files.items()}
        config["tls"] = {**places, "name": called}
    tls = before.get("tls")
    old = set(filter(_OURS.fullmatch, map(str, tls.values()))) if isinstance(tls, dict) else set()
    with _taken_back(board, [f"{path}.new", *(place for place in placed if place not in old)]):
        written = {**placed, path: json.dumps(config).encode()}
        copy_aside(
            board, written, {place: (len(data), binascii.crc32(data)) for place, data in written.items()}, progress
        )
        board.run(RENAME.format(list(placed), []), 30)
        guid, told = _try(board, wanted, config, f"{path}.new")
    board.run(RENAME.format([path], sorted(old - set(placed))), 30)
    return Provisioned(guid, before.get("name", ""), done.copied, told)


def _check_place(wanted: Wanted, before: dict[str, Any]) -> None:
    """Raises BoardError unless this board may get the new configuration."""
    name = before.get("name") or wanted.name
    if name != wanted.name and not wanted.replace:
        raise BoardError(f"the board has the name {name!r}, not {wanted.name!r}: check the board; --replace renames it")
    if before.get("tls") and wanted.tls is None and not wanted.replace:
        raise BoardError("the board uses TLS: name the folder of its certificate with --tls; --replace turns TLS off")
    if not isinstance(before.get("wifi", {}), dict):
        raise BoardError('"wifi" in config.json on the board is not a JSON object: correct or remove it')


def _config_of(board: Board, path: str) -> dict[str, Any]:
    """The content of config.json, {} if it is missing. Raises BoardError."""
    for place in (path, f"{path}.new"):
        with suppress(FileNotFoundError):
            try:
                config = json.loads(board.read(place))
            except ValueError:
                config = None
            if isinstance(config, dict):
                return config if place == path else {**config, "name": ""}  # the new file was not in force
            if place == path:
                raise BoardError(f"{path} on the board is not a JSON object: correct or remove it")
    return {}


def tls_files(folder: Path, name: str) -> dict[str, bytes]:
    """The files that `ordack tls` made for this board, by role. Raises ValueError."""
    found = {}
    for role, place in TLS_FILES.items():
        file = folder / place.format(name)
        try:
            found[role] = file.read_bytes()
        except OSError as error:
            raise ValueError(
                f"{file}: {error.strerror}; `ordack tls certificate {shlex.quote(str(folder))} {name} --board` makes "
                "the files of a board"
            ) from None
    return found


def _check_tls(board: Board) -> None:
    if not board.run("try:\n import tls\n print(True)\nexcept ImportError:\n print(False)"):
        raise BoardError("the board's MicroPython has no TLS: install a firmware with the module tls, or omit --tls")


@contextmanager
def _taken_back(board: Board, paths: list[str]) -> Iterator[None]:
    """Remove the written files if the new configuration does not come into force."""
    try:
        yield
    except BaseException:
        with suppress(BoardError):  # the board may be gone; the next run rewrites the files
            board.run(RENAME.format([], paths))
        raise


def _try(board: Board, wanted: Wanted, config: dict[str, Any], path: str) -> tuple[str, list[str]]:
    """Let the board try the file at `path`; returns its GUID and its reports. Raises BoardError."""
    board.reset()
    if "ssid" in config:
        _join(board, config)
    if server := config.get("ntp"):
        board.run(_TIME)
        if not board.run(f"print(_time({server!r}, {TIME_S}))", 2 * TIME_S):
            raise BoardError(
                f"the NTP server {server} did not tell the time within {TIME_S} s: correct --ntp, or let UDP port 123 "
                "through the firewall"
            )
    where = f"{wanted.host}:{wanted.port}"
    if wanted.tls is None:
        reached = reach(board, wanted.host, wanted.port)
        if reached.verdict != "ok":
            raise BoardError(f"the board does not reach the queue manager {reached.text}; {reached.advice}")
    board.run(_SEND)
    folder = board.info.root("outbox")
    guid, stored, number, in_time, waiting, reason, damage, ahead = board.run(
        f"print(_send({path!r}, {folder!r}, {STORE_S}))", 2 * STORE_S
    )
    if not stored:
        raise BoardError(_why(wanted, where, number if in_time else 0, waiting, reason))
    told = [
        *damage,
        *(["an acknowledgement named what this outbox never gave: a copy of it is in use"] if ahead else []),
    ]
    return guids.guid_text(guid), told


def _join(board: Board, config: dict[str, Any]) -> None:
    """Let the board join its Wi-Fi. Raises BoardError."""
    options = config.get("wifi", {})
    networks: list[str] = [config["ssid"], *(more[0] for more in options.get("more", ()))]
    board.run(_JOIN)
    call = f"print(_join({config['ssid']!r}, {config.get('password', '')!r}, {options!r}, {JOIN_S}))"
    failed = board.run(call, 2 * JOIN_S * len(networks))
    if failed is None:
        return
    reason, number = failed
    ssid = " or ".join(map(repr, networks))
    raise BoardError(
        {
            "absent": f"the board finds no Wi-Fi {ssid}: check the spelling, and that the network uses 2.4 GHz",
            "password": f"the Wi-Fi {ssid} refuses the password: correct it",
            "join": f"the board cannot join the Wi-Fi {ssid}: check the password and the distance ({number})",
            "none": f"this board has no Wi-Fi to join {ssid}: omit --wifi, and remove ssid from its config.json",
            "options": f'the board refuses its Wi-Fi settings ({number}): correct "wifi" in its config.json',
        }[reason]
    )


def _why(wanted: Wanted, where: str, number: int, waiting: int, reason: str) -> str:
    """Why the message was not stored, and the next step."""
    if number:
        text = f"the queue {wanted.queue}: {where} refuses the message: {classes.words(number, wanted.queue)}"
        host, _, queue = wanted.queue.partition("\\")
        if split_direct(wanted.queue) is None:
            text += f"; this name is that of a public queue; a private queue is {host}\\private$\\{queue}"
        return text
    if "accept=" in reason:
        text = f"another queue manager answers at {where} and gets no messages: {reason}"
    else:
        text = f"the queue manager at {where} did not store the message within {STORE_S} s: {reason or 'no answer'}"
    return f"{text}; {waiting} older messages are pending on the board" if waiting else text
