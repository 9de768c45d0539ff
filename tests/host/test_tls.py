"""TLS: who is believed, who is refused and told so, and that messages travel over it as they do without."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import ssl
import stat
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from ordack.client import Client
from ordack.config.config import Access, Config
from ordack.config.tls import BadTls, Tls
from ordack.server import certificates, tcp
from ordack.server.certificates import BadCertificate
from ordack.store import LIMIT, TLS

from tests.host.sockets import serving, until
from tests.support import watched
from tests.support.command import DEADLINE_S, Serve, ordack, settle, status_of
from tests.support.host_peer import Peer, direct
from tests.support.plant import Plant

ONE, TWO = bytes([1]) * 16, bytes([2]) * 16
DENIED = 0x8004


@pytest.fixture(scope="module")
def plant(tmp_path_factory: pytest.TempPathFactory) -> Plant:
    return Plant(tmp_path_factory.mktemp("plant"))


def _send(guid: bytes, body: bytes, port: int, context: ssl.SSLContext) -> dict[int, int]:
    """Send a message to line1 from a new peer; its negative FinalAcks."""
    peer = Peer(guid, direct("line1"), time_stamp=1)
    peer.send(body)
    peer.connect(tcp.now())
    with (
        socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as connection,
        context.wrap_socket(connection, server_hostname="plant") as secured,
    ):
        settle(peer, secured)
    return peer.rejected


def _content(folder: Path) -> list[bytes]:
    with Client(folder) as client:
        return [message.body for message in client.queue("line1").peek()]


def _sessions(folder: Path) -> list[dict[str, Any]]:
    """Those that `status` shows, as soon as there are any: `serve` tells of them once a second."""
    found: list[dict[str, Any]] = watched.until(lambda: status_of(folder)["sessions"], "a session is shown")
    return found


# ---- messages travel


def test_tls_delivers_between_queue_managers_once_in_order(tmp_path: Path, plant: Plant) -> None:
    with Client(tmp_path / "here", create=True) as client:
        client.create_queue("line1", transactional=True)
    (tmp_path / "here" / "ordack.toml").write_text(f"{plant.table('plant')}[[listen]]\nport = 0\ntls = true\n")
    receiver = Serve(tmp_path / "here", listen=None)
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "ordack.toml").write_text(
        f"{plant.table('press-3')}[next-hops]\nplant = 'tls://localhost:{receiver.port}'\n"
    )
    sender = Serve(tmp_path / "there")
    bodies = [b"%d" % number for number in range(300)] + [bytes(3 << 20)]
    with Client(tmp_path / "there") as client:
        for body in bodies:
            client.send("plant\\private$\\line1", body)
    with Client(tmp_path / "here") as client:
        deadline = time.monotonic() + DEADLINE_S
        while len(_content(tmp_path / "here")) < len(bodies):
            assert time.monotonic() < deadline
            client.store.wait(0.1)
    assert _content(tmp_path / "here") == bodies
    for folder, other in (("here", "press-3"), ("there", "plant")):
        sessions = _sessions(tmp_path / folder)
        assert [session["certificate"] for session in sessions] == [other]
        assert f"certificate of {other}" in ordack("status", "--store", tmp_path / folder).stdout
    assert sender.stop()[0] == receiver.stop()[0] == 0


def test_packet_in_same_segment_as_tls_handshake_is_kept(tmp_path: Path, plant: Plant) -> None:
    """The last word of the handshake and the first packet of MSMQ, in one segment."""

    async def run() -> None:
        async with serving(tmp_path, Config(), tls=Tls(plant.files("plant"))) as server:
            peer = Peer(ONE, direct("line1"), time_stamp=1)
            peer.send(b"x")
            peer.connect(tcp.now())
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            arrived, leaving = ssl.MemoryBIO(), ssl.MemoryBIO()
            secured = plant.client().wrap_bio(arrived, leaving)
            while True:
                try:
                    secured.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    writer.write(leaving.read())
                    arrived.write(await reader.read(1 << 16))
            async with asyncio.timeout(DEADLINE_S):
                while not peer.is_settled:
                    data = peer.output(tcp.now())
                    if data:
                        secured.write(data)
                    writer.write(leaving.read())
                    with contextlib.suppress(TimeoutError):
                        arrived.write(await asyncio.wait_for(reader.read(1 << 16), 0.05))
                    with contextlib.suppress(ssl.SSLWantReadError):
                        peer.receive(secured.read(1 << 16), tcp.now())
            writer.close()
            assert not server.manager.links.counters.sessions_refused[TLS]

    asyncio.run(run())
    assert _content(tmp_path) == [b"x"]


def test_tls_only_queue_manager_delivers_to_itself(tmp_path: Path, plant: Plant) -> None:
    with Client(tmp_path, create=True) as client:
        client.create_queue("line1", transactional=True)
    (tmp_path / "ordack.toml").write_text(f"{plant.table('press-3')}[[listen]]\nport = 0\ntls = true\n")
    serve = Serve(tmp_path, listen=None)
    with Client(tmp_path) as client:
        client.send("DIRECT=TCP:127.0.0.1\\private$\\line1", b"x")
        deadline = time.monotonic() + DEADLINE_S
        while not _content(tmp_path):
            assert time.monotonic() < deadline
            client.store.wait(0.1)
    assert serve.stop()[0] == 0


# ---- who connects


def _plain(_plant: Plant) -> None:
    return None


def _without_certificate(plant: Plant) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(plant.files("plant").authority)
    return context


def _foreign(plant: Plant) -> ssl.SSLContext:
    return plant.client(authority="theirs")


def _unbelieving(plant: Plant) -> ssl.SSLContext:
    return plant.client(believed="theirs")


def _over(plant: Plant) -> ssl.SSLContext:
    folder = plant.folder / "over"
    if not folder.exists():
        shutil.copytree(plant.folder / "ours", folder)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(certificates, "_now", lambda: certificates.datetime.now(certificates.UTC) - timedelta(days=9))
            certificates.issue(folder, "late", [], 1)
    return plant.client("late", authority="over")


def _unlisted(plant: Plant) -> ssl.SSLContext:
    return plant.client("press-4")


@pytest.mark.parametrize(
    ("stranger", "said"),
    [
        (_plain, "it does not speak TLS"),
        (_without_certificate, "it shows no certificate"),
        (_foreign, "its certificate is not accepted: "),
        (_over, "its certificate is not accepted: certificate has expired"),
        (_unbelieving, "it does not know the authority of this side's certificate"),
        (_unlisted, "the certificate of press-4 is not in allow-certificates"),
    ],
)
def test_unauthenticated_tls_client_is_refused_and_counted(
    tmp_path: Path, plant: Plant, stranger: Callable[[Plant], ssl.SSLContext | None], said: str
) -> None:
    context = stranger(plant)

    def attempt(port: int) -> None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as plain:
            if context is None:
                plain.sendall(b"\x10" * 572)
                plain.recv(100)
                return
            with context.wrap_socket(plain, server_hostname="plant") as secured:
                secured.recv(100)

    async def run() -> None:
        tls, listed = Tls(plant.files("plant")), frozenset({"press-3"})
        async with serving(tmp_path, Config(), tls=tls, certificates=listed) as server:
            await asyncio.to_thread(attempt, server.port)
            refused = server.manager.links.counters.sessions_refused
            await until(lambda: sum(refused.values()) == 1)
            assert refused[TLS] == (stranger is not _unlisted)
            [line] = server.log
            assert line.startswith(f"127.0.0.1: refused, {said}")
            await asyncio.to_thread(_send, ONE, b"x", server.port, plant.client())
            assert len(server.log) == 1

    asyncio.run(run())
    assert _content(tmp_path) == [b"x"]


@pytest.mark.rule("B-435")
def test_unfinished_tls_handshake_occupies_a_session_slot(tmp_path: Path, plant: Plant) -> None:
    async def run() -> None:
        config = Config(max_sessions_per_address=5)
        async with serving(tmp_path, config, tls=Tls(plant.files("plant"))) as server:
            silent = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(5)]
            links = server.manager.links
            await until(lambda: links.would_refuse("127.0.0.1"))
            assert len(links) == 0
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), DEADLINE_S) == b""
            assert links.counters.sessions_refused[LIMIT] == 1
            for _, one in (*silent, (reader, writer)):
                one.close()
            await until(lambda: not links.would_refuse("127.0.0.1"))
            await asyncio.to_thread(_send, ONE, b"x", server.port, plant.client())
            assert links.counters.sessions_refused[TLS] == 5

    asyncio.run(run())


@pytest.mark.rule("B-349")
def test_a_queue_takes_messages_over_some_certificates_alone(tmp_path: Path, plant: Plant) -> None:
    async def run() -> None:
        config = Config(access={"line1": Access(certificates=frozenset({"press-3"}))}, send_insecure_nacks=True)
        async with serving(tmp_path, config, tls=Tls(plant.files("plant"))) as server:
            refused = await asyncio.to_thread(_send, TWO, b"4", server.port, plant.client("press-4"))
            assert list(refused.values()) == [DENIED]
            assert not await asyncio.to_thread(_send, ONE, b"3", server.port, plant.client("press-3"))

    asyncio.run(run())
    assert _content(tmp_path) == [b"3"]


# ---- whom it connects to


async def _reason(folder: Path, hop: tuple[str, int], tls: Tls) -> str:
    config = Config(next_hops={"plant": hop}, tls_hops=frozenset({hop}))
    async with serving(folder, config, tls=tls) as server:
        server.send(b"x")
        await until(lambda: server.way.get("reason"))
        return str(server.way["reason"])


@pytest.mark.parametrize(
    ("shown", "believed", "host", "said"),
    [
        ("ours", "theirs", "localhost", "its certificate is not accepted: "),
        ("theirs", "ours", "localhost", "its certificate is not accepted: "),
        ("ours", "ours", "127.0.0.2", "its certificate is not accepted: ip address mismatch"),
    ],
)
def test_client_sends_nothing_to_server_with_wrong_certificate(
    tmp_path: Path, plant: Plant, shown: str, believed: str, host: str, said: str
) -> None:
    async def run() -> None:
        there = Tls(plant.files("plant", shown, shown))
        async with serving(tmp_path / "there", Config(), "0.0.0.0", tls=there) as server:
            here = Tls(plant.files("press-3", believed=believed))
            assert said in (await _reason(tmp_path / "here", (host, server.port), here)).lower()
            assert not server.manager.links

    asyncio.run(run())


def test_next_hop_without_tls_is_reported(tmp_path: Path, plant: Plant) -> None:
    async def run() -> None:
        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(10)
            writer.write(b"\x10" * 572)
            await writer.drain()
            writer.close()

        listening = await asyncio.start_server(silent, "127.0.0.1", 0)
        hop = "127.0.0.1", listening.sockets[0].getsockname()[1]
        assert await _reason(tmp_path, hop, Tls(plant.files("plant"))) == "it does not speak TLS"
        listening.close()

    asyncio.run(run())


# ---- files


def test_tls_names_unusable_file_and_reason(tmp_path: Path, plant: Plant) -> None:
    files = plant.files("plant")
    (tmp_path / "empty").write_bytes(b"")
    cases = [
        (files._replace(key=plant.files("press-3").key), "it is not the key of the certificate in"),
        (files._replace(key=tmp_path / "none"), "none: it cannot be read: No such file"),
        (files._replace(authority=tmp_path / "empty"), "empty: there is no certificate in PEM form in it"),
        (files._replace(certificate=tmp_path / "empty"), "no certificate and its private key in PEM form"),
        (files._replace(authority=tmp_path), "it cannot be read"),
    ]
    for wrong, said in cases:
        with pytest.raises(BadTls, match=said):
            Tls(wrong)
    key = certificates.serialization.load_pem_private_key(files.key.read_bytes(), None)
    (tmp_path / "locked").write_bytes(
        key.private_bytes(
            certificates.serialization.Encoding.PEM,
            certificates.serialization.PrivateFormat.PKCS8,
            certificates.serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(BadTls, match="it has a password"):
        Tls(files._replace(key=tmp_path / "locked"))


def test_serve_uses_renewed_certificate_and_reports_unusable_one(tmp_path: Path, plant: Plant) -> None:
    shutil.copytree(plant.folder / "ours", tmp_path / "tls")
    with Client(tmp_path / "store", create=True) as client:
        client.create_queue("line1", transactional=True)
    file = tmp_path / "store" / "ordack.toml"
    file.write_text(
        "[tls]\ncertificate = '../tls/plant.pem'\nkey = '../tls/plant.key'\nauthority = '../tls/ca.pem'\n"
        "[[listen]]\nport = 0\ntls = true\n"
    )
    serve = Serve(tmp_path / "store", listen=None)

    def shown() -> bytes | None:
        with (
            socket.create_connection(("127.0.0.1", serve.port), timeout=DEADLINE_S) as plain,
            plant.client().wrap_socket(plain) as secured,
        ):
            return secured.getpeercert(binary_form=True)

    first = shown()
    certificates.issue(tmp_path / "tls", "plant", ["127.0.0.1"], 1, renew=True)
    second = shown()
    assert second != first
    (tmp_path / "tls" / "plant.key").write_text("")
    assert shown() == shown() == second
    status, _, log = serve.stop()
    assert status == 0
    assert log.count("the certificates from before stay in use") == 1


@pytest.mark.parametrize(("days", "said"), [(29, "expires on {}:"), (-9, "has expired on {},"), (32, "")])
def test_expired_or_expiring_certificate_is_reported(tmp_path: Path, days: int, said: str) -> None:
    folder = tmp_path / "tls"
    certificates.init(folder, "ordack", 99)
    certificates.issue(folder, "here", [], days)
    until = x509.load_pem_x509_certificate((folder / "here.pem").read_bytes()).not_valid_after_utc
    said = said.format(until.date())
    file = tmp_path / "ordack.toml"
    file.write_text(
        f"[tls]\ncertificate = '{folder}/here.pem'\nkey = '{folder}/here.key'\nauthority = '{folder}/ca.pem'\n"
    )
    checked = ordack("config", file)
    assert checked.returncode == 0
    serve = Serve(tmp_path / "store", "--config", str(file))
    status, _, log = serve.stop()
    assert status == 0
    for told in (checked.stderr, log):
        assert said in told
        assert ("this certificate" in told) == bool(said)


def test_certificate_of_another_authority_is_reported(tmp_path: Path) -> None:
    for name in ("ours", "other"):
        certificates.init(tmp_path / name, name, 99)
    certificates.issue(tmp_path / "other", "here", [], 90)
    file = tmp_path / "ordack.toml"
    file.write_text("[tls]\ncertificate = 'other/here.pem'\nkey = 'other/here.key'\nauthority = 'ours/ca.pem'\n")
    checked = ordack("config", file)
    assert checked.returncode == 0
    assert "is not signed by" in checked.stderr
    assert "nothing is wrong" not in checked.stdout


# ---- certificates


def test_tls_commands_never_overwrite_and_protect_keys(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "tls"
    assert ordack("tls", "init", folder).returncode == 0
    assert ordack("tls", "certificate", folder, "press-3", "--host", "10.0.0.5", "--board").returncode == 0
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert sorted(before) == [
        "ca.der", "ca.key", "ca.pem", "press-3.der", "press-3.key", "press-3.key.der", "press-3.pem",
    ]  # fmt: skip
    for name in before:
        mode = stat.S_IMODE((folder / name).stat().st_mode)
        assert mode == (0o600 if ".key" in name else 0o644), name
    assert ordack("tls", "init", folder).returncode == 2
    done = ordack("tls", "certificate", folder, "press-3")
    assert done.returncode == 2
    assert "--renew" in done.stderr
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert ordack("tls", "certificate", folder, "press-3", "--renew").returncode == 0
    assert (folder / "press-3.pem").read_bytes() != before["press-3.pem"]
    found = x509.load_der_x509_certificate((folder / "press-3.der").read_bytes())
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert (found.subject.rfc4514_string(), found.issuer.rfc4514_string()) == ("CN=press-3", "CN=ordack")
    assert [str(name.value) for name in names] == ["press-3", "10.0.0.5"]


@pytest.mark.parametrize("name", ["", "ca", "CA", "a/b", "..", "press 3", "é", "-a", "a" * 65])
def test_invalid_certificate_name_is_refused(plant: Plant, name: str) -> None:
    with pytest.raises(BadCertificate, match="cannot be the name"):
        certificates.issue(plant.folder / "ours", name, [], 1)


def test_tls_reports_certificates_it_cannot_issue(tmp_path: Path, plant: Plant) -> None:
    with pytest.raises(BadCertificate, match="ordack tls init"):
        certificates.issue(tmp_path, "press-3", [], 1)
    with pytest.raises(BadCertificate, match="neither an IP address nor the name of a machine"):
        certificates.issue(plant.folder / "ours", "press-9", ["10.0.0.5:1801"], 1)
    with pytest.raises(BadCertificate, match="after the year 9999"):
        certificates.init(tmp_path, "ordack", 10**9)
    shutil.copy(plant.folder / "ours" / "ca.pem", tmp_path)
    shutil.copy(plant.folder / "theirs" / "ca.key", tmp_path)
    with pytest.raises(BadCertificate, match="it is not the key of"):
        certificates.issue(tmp_path, "press-3", [], 1)
    (tmp_path / "ca.key").write_text("x")
    with pytest.raises(BadCertificate, match="no authority that"):
        certificates.issue(tmp_path, "press-3", [], 1)
    (tmp_path / "file").write_text("")
    done = ordack("tls", "init", tmp_path / "file" / "tls")
    assert done.returncode == 1
    assert "Not a directory" in done.stderr
