"""TlsLink: a connection over TLS. MicroPython needs the module `tls`; docs/reference.md lists the cost."""

from mqqb import MICROPYTHON, const
from ordack.node.talk.link import TcpLink

if MICROPYTHON:
    import tls  # type: ignore[import-not-found,unused-ignore]
else:
    import ssl

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    from typing import Any


class TlsLink(TcpLink):
    """A TCP connection over TLS. Both sides show a certificate.

    authority, certificate, key: files made by `ordack tls`: the authority of the queue manager's certificate, and this
    board's certificate and key; DER on MicroPython, PEM on CPython. name: expected in the queue manager's certificate;
    default: host. Raises OSError and ValueError for unusable files.
    """

    def __init__(self, host: str, port: int, authority: str, certificate: str, key: str, name: str = "") -> None:
        super().__init__(host, port)
        self._name = name or host
        self._context = _context(authority, certificate, key)
        self._is_secure = False

    def is_open(self) -> bool:
        """See link.Link. readinto and write continue the handshake, and raise its errors."""
        if not super().is_open():
            return False
        if not self._is_secure:
            self.stream = self._context.wrap_socket(
                self.stream, server_hostname=self._name, do_handshake_on_connect=False
            )
            self._is_secure = True
        return True

    def close(self) -> None:
        """See link.Link."""
        self._is_secure = False
        super().close()

    if MICROPYTHON:

        def readinto(self, buffer: memoryview) -> int:
            """See link.Link."""
            try:
                return super().readinto(buffer)
            except ValueError as error:  # certificate rejected
                raise OSError(str(error)) from None

        def write(self, data: memoryview) -> int:
            """See link.Link."""
            try:
                return super().write(data)
            except ValueError as error:
                raise OSError(str(error)) from None

    else:

        def readinto(self, buffer: memoryview) -> int:
            """See link.Link."""
            try:
                return super().readinto(buffer)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return 0

        def write(self, data: memoryview) -> int:
            """See link.Link."""
            try:
                return super().write(data)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
                self.wants_write = isinstance(error, ssl.SSLWantWriteError)
                return 0


if MICROPYTHON:

    def _context(authority: str, certificate: str, key: str) -> "Any":
        context = tls.SSLContext(tls.PROTOCOL_TLS_CLIENT)
        context.verify_mode = tls.CERT_REQUIRED  # type: ignore[attr-defined,unused-ignore]
        context.load_verify_locations(_content(authority))
        context.load_cert_chain(_content(certificate), _content(key))
        return context

    def _content(path: str) -> bytes:
        with open(path, "rb") as file:
            return bytes(file.read())

else:

    def _context(authority: str, certificate: str, key: str) -> "Any":
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(authority)
        context.load_cert_chain(certificate, key)
        return context
