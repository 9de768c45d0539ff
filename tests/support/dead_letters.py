"""A store in which messages have ended as dead letters."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

from ordack.client import Client
from ordack.config.names import DEAD_XACT

from tests.support.beside import outcomes_of

PATIENCE_S = 500  # what is moved back has so long again, and is then a dead letter once more
HOSTILE = "<img src=x onerror=\"document.title='pwned'\">"


def store_with_dead_letters(folder: Path, letters: Iterable[tuple[str, bytes]]) -> list[int]:
    """Make a store whose transactional queue `line1` has lost these messages, each a label and a body, to the
    dead-letter queue; their lookup ids there."""
    now = [time.time() - 1000]
    with Client(folder, create=True, clock=lambda: now[0]) as client:
        client.create_queue("line1", transactional=True)
        for label, body in letters:
            client.send("line1", body, label, ttbr=PATIENCE_S, dead_letter=True)
        now[0] += PATIENCE_S + 1
        while outcomes_of(client).remove_over():
            pass
        return [message.lookup_id for message in client.queue(DEAD_XACT).peek()]


def with_token(folder: Path, token: str, more: str = "") -> None:
    """Let the web page of this store's `serve` go by a token; more: what its file says besides."""
    path = folder / "http-token"
    path.write_text(f"{token}\n")
    path.chmod(0o600)
    (folder / "ordack.toml").write_text(f'http-token-file = "http-token"\n{more}')
