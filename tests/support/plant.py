"""Certificates of a plant, and of another one."""

from __future__ import annotations

import json
import ssl
from pathlib import Path

from ordack.config.config import TlsFiles
from ordack.config.tls import Tls
from ordack.server import certificates


class Plant:
    """A folder of certificates: of a plant with a queue manager `plant` and a board `press-3`, and of another one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for authority, names in (("ours", ("plant", "press-3", "press-4")), ("theirs", ("plant", "press-3"))):
            certificates.init(folder / authority, authority, 1)
            for name in names:
                hosts = ["127.0.0.1", "localhost"] if name == "plant" else []
                certificates.issue(folder / authority, name, hosts, 1, board=True)

    def files(self, name: str, authority: str = "ours", believed: str = "ours") -> TlsFiles:
        return TlsFiles(
            self.folder / authority / f"{name}.pem",
            self.folder / authority / f"{name}.key",
            self.folder / believed / "ca.pem",
        )

    def client(self, name: str = "press-3", authority: str = "ours", believed: str = "ours") -> ssl.SSLContext:
        context = Tls(self.files(name, authority, believed)).client
        context.check_hostname = False
        return context

    def table(self, name: str) -> str:
        """What a configuration file says of TLS."""
        files = self.files(name)
        return "[tls]\n" + "".join(f"{key} = {json.dumps(str(path))}\n" for key, path in files._asdict().items())
