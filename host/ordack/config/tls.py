"""TLS: who this queue manager, or an application, says it is, and whom it believes.

Both sides show a certificate, and each believes those that the plant's authority has signed. Who connects also sees to
it that the certificate is for the address that it asked for.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from typing import Any

from ordack.config.config import TlsFiles

_REASONS = {
    "WRONG_VERSION_NUMBER": "it does not speak TLS",
    "HTTP_REQUEST": "it does not speak TLS",
    "UNKNOWN_PROTOCOL": "it does not speak TLS",
    "RECORD_LAYER_FAILURE": "it does not speak TLS",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it shows no certificate",
    "TLSV1_ALERT_UNKNOWN_CA": "it does not know the authority of this side's certificate",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it does not accept this side's certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "this side's certificate is over, or its clock is wrong",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "it does not accept this side's certificate",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "it asks for a certificate, and got none that it knows",
    "UNSUPPORTED_PROTOCOL": "it speaks only TLS versions before 1.2",
    "NO_SHARED_CIPHER": "the two have no cipher in common",
}


class BadTls(ValueError):
    """Files that TLS cannot be spoken with; the text says which and why."""


class Tls:
    """The contexts of connections with TLS. server: of incoming ones. client: of outgoing ones. own: of those to this
    queue manager itself, which do not compare its address with the certificate. Raises BadTls.

    tell: gets a sentence when changed files cannot be used.
    """

    def __init__(self, files: TlsFiles, tell: Callable[[str], None] = lambda _text: None) -> None:
        self._files = files
        self._tell = tell
        self._read_as = _versions(files)
        self._read()

    def _read(self) -> None:
        _check(self._files)
        server = _context(ssl.PROTOCOL_TLS_SERVER, self._files)
        client = _context(ssl.PROTOCOL_TLS_CLIENT, self._files)
        own = _context(ssl.PROTOCOL_TLS_CLIENT, self._files)
        own.check_hostname = False
        self.server, self.client, self.own = server, client, own

    def renewed(self) -> Tls:
        """This, with the contents that the files have now. If new files cannot be used, the old contents stay."""
        versions = _versions(self._files)
        if versions != self._read_as:
            self._read_as = versions
            try:
                self._read()
            except BadTls as error:
                self._tell(f"[tls]: {error}; the certificates from before stay in use")
        return self


def _versions(files: TlsFiles) -> list[tuple[int, int, int]]:
    """A file that changes gets another time, size or number."""
    found = []
    for path in files:
        try:
            status = path.stat()
        except OSError:
            found.append((0, 0, 0))
        else:
            found.append((status.st_mtime_ns, status.st_size, status.st_ino))
    return found


def _check(files: TlsFiles) -> None:
    for path in files:
        try:
            data = path.read_bytes()
        except OSError as error:
            raise BadTls(f"{path}: it cannot be read: {error.strerror or error}") from None
        if b"ENCRYPTED" in data:
            raise BadTls(f"{path}: it has a password: keep the key without, in a file for `ordack serve` alone")


def _context(protocol: int, files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_REQUIRED
    context.options |= ssl.OP_NO_RENEGOTIATION
    try:
        context.load_verify_locations(files.authority)
    except ssl.SSLError:
        raise BadTls(f"{files.authority}: there is no certificate in PEM form in it") from None
    try:
        context.load_cert_chain(files.certificate, files.key)
    except ssl.SSLError as error:
        raise BadTls(_bad_chain(files, error.reason or "")) from None
    return context


def _bad_chain(files: TlsFiles, reason: str) -> str:
    if reason == "KEY_VALUES_MISMATCH":
        return f"{files.key}: it is not the key of the certificate in {files.certificate}"
    return (
        f"{files.certificate}, {files.key}: no certificate and its private key in PEM form ({reason or 'unreadable'})"
    )


def name_in(certificate: Mapping[str, Any] | None) -> str:
    """The name in a certificate, as `SSLSocket.getpeercert` gives it: its common name, "" if it has none."""
    subject = certificate["subject"] if certificate else ()
    return next((str(value) for parts in subject for key, value in parts if key == "commonName"), "")


def words(error: Exception) -> str:
    """Why TLS was not agreed on, or has ended, for a person."""
    if isinstance(error, ssl.SSLCertVerificationError):
        said = str(error.verify_message).rstrip(".")
        return f"its certificate is not accepted: {said[:1].lower()}{said[1:]}"
    if isinstance(error, ssl.SSLError):
        return _REASONS.get(error.reason or "", f"TLS was not agreed on ({error.reason or error})")
    if isinstance(error, (TimeoutError, ConnectionAbortedError)):
        return "it does not answer as TLS asks"
    return "it closes the connection where TLS begins: does it speak TLS, and accept this side's certificate?"
