"""TLS: the identity of this queue manager or application, and the peers that it trusts.

Both sides present a certificate, and each trusts certificates of the plant's authority. The connecting side also checks
that the certificate matches the requested address.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from typing import Any

from ordack.config.config import TlsFiles

_ADVICE = {
    "self-signed": ": both sides need the same `authority`",
    "local issuer": ": both sides need the same `authority`",
    "mismatch": ": renew it with `ordack tls certificate --host ADDRESS --renew`",
    "expired": ": renew it with `ordack tls certificate --renew`",
}
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
    """Files that are unusable for TLS. The text names the file and the reason."""


class Tls:
    """TLS contexts. server: incoming connections. client: outgoing connections. own: connections to this queue manager,
    without a check of its address. Raises BadTls.

    tell: receives a message when changed files are unusable.
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
        """Reload changed files and return self. If new files are unusable, the old contents stay in use."""
        versions = _versions(self._files)
        if versions != self._read_as:
            self._read_as = versions
            try:
                self._read()
            except BadTls as error:
                self._tell(f"[tls]: {error}; the certificates from before stay in use")
        return self


def _versions(files: TlsFiles) -> list[tuple[int, int, int]]:
    """Return time, size and inode of each file; a change alters one of them."""
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
    """Return the common name in a certificate of `SSLSocket.getpeercert`; "" if it has none."""
    subject = certificate["subject"] if certificate else ()
    return next((str(value) for parts in subject for key, value in parts if key == "commonName"), "")


def words(error: Exception) -> str:
    """Explain why a TLS handshake or connection failed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        said = str(error.verify_message).rstrip(".")
        advice = next((text for part, text in _ADVICE.items() if part in said), "")
        return f"its certificate is not accepted: {said}{advice}"
    if isinstance(error, ssl.SSLError):
        return _REASONS.get(error.reason or "", f"TLS was not agreed on ({error.reason or error})")
    if isinstance(error, (TimeoutError, ConnectionAbortedError)):
        return "it does not answer as TLS asks"
    return "it closes the connection where TLS begins: does it speak TLS, and accept this side's certificate?"
