"""A certificate authority for one plant, and the certificates of its queue managers and boards, as files.

Files in the folder: `ca.pem` and `ca.key` for the authority, `NAME.pem` and `NAME.key` for each name. Boards also get
`NAME.der`, `NAME.key.der` and `ca.der`, because MicroPython reads DER on every port. Keys use the curve P-256; only the
owner can read the key files.
"""

from __future__ import annotations

import ipaddress
import os
import re
import shlex
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ordack.config.config import check_host
from ordack.config.names import BadName

AUTHORITY = "ca"
# A board's clock starts at 2000 or 2021 until somebody sets it; the certificate must be valid by that clock.
NOT_BEFORE = datetime(2000, 1, 1, tzinfo=UTC)
SOON_DAYS = 30
_USAGES = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
    *("key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_-]{0,62}[A-Za-z0-9])?")


class BadCertificate(ValueError):
    """The certificate cannot be made, or is invalid. The text gives the reason and the next step."""


class Made(NamedTuple):
    """The files written, and the time when their certificate expires."""

    files: tuple[Path, ...]
    until: datetime


def init(folder: Path, name: str, days: int) -> Made:
    """Make an authority called `name` in a folder, valid for `days`. Raises BadCertificate, OSError."""
    _refuse_existing([folder / f"{AUTHORITY}.pem", folder / f"{AUTHORITY}.key"], "certificates that it has signed")
    folder.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    until = _end(days)
    made = _signed(_common(name), _common(name), key.public_key(), key, until, True)
    return Made(_write(folder, AUTHORITY, made, key), until)


def issue(folder: Path, name: str, hosts: Sequence[str], days: int, board: bool = False, renew: bool = False) -> Made:
    """Make a certificate and its key, signed by the authority in the folder.

    name: the holder, which also becomes a host name. hosts: addresses and names that peers connect to. board: write DER
    files too. renew: replace an existing certificate. Raises BadCertificate, OSError.
    """
    if not _NAME.fullmatch(name) or name.lower() == AUTHORITY:
        raise BadCertificate(
            f"{name!r} cannot be the name in a certificate: write letters, digits, - and _, at most 64, and not "
            f"{AUTHORITY!r}, as in press-3"
        )
    authority, signer = _authority(folder)
    if not renew:
        _refuse_existing([folder / f"{name}.pem", folder / f"{name}.key"], "it", "; --renew makes another in its place")
    until = min(_end(days), authority.not_valid_after_utc)
    key = ec.generate_private_key(ec.SECP256R1())
    alternatives = x509.SubjectAlternativeName(list(dict.fromkeys(map(_general_name, (name, *hosts)))))
    purposes = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    made = _signed(_common(name), authority.subject, key.public_key(), signer, until, False, purposes, alternatives)
    return Made(_write(folder, name, made, key, authority if board else None), until)


def warnings(path: Path, authority: Path) -> list[str]:
    """Warnings if the certificate in a PEM file has expired, expires within SOON_DAYS, or is not signed by one of
    `authority`."""
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        authorities = x509.load_pem_x509_certificates(authority.read_bytes())
    except (ValueError, OSError):  # the TLS code reports an unreadable certificate
        return []
    found = []
    until = certificate.not_valid_after_utc
    if (days := (until - _now()).days) < SOON_DAYS:
        when = f"expires on {until:%Y-%m-%d}" if days >= 0 else f"has expired on {until:%Y-%m-%d}, and others refuse it"
        found.append(f"{path}: this certificate {when}: `ordack tls certificate` with --renew makes another")
    if not any(_is_issued(certificate, one) for one in authorities):
        found.append(f"{path}: this certificate is not signed by {authority}: machines that trust it refuse this one")
    return found


def _is_issued(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


def _end(days: int) -> datetime:
    try:
        return _now() + timedelta(days=days)
    except OverflowError:
        raise BadCertificate(f"{days} days from now is after the year 9999: take fewer") from None


def _refuse_existing(paths: Iterable[Path], lost: str, hint: str = "") -> None:
    for path in paths:
        if os.path.lexists(path):
            raise BadCertificate(f"{path} is there already, and {lost} would be worth nothing without it{hint}")


def _authority(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    paths = [folder / f"{AUTHORITY}.pem", folder / f"{AUTHORITY}.key"]
    for path in paths:
        if not path.exists():
            command = f"ordack tls init {shlex.quote(str(folder))}"
            raise BadCertificate(f"{path} is not there: `{command}` makes an authority")
    try:
        authority = x509.load_pem_x509_certificate(paths[0].read_bytes())
        signer = serialization.load_pem_private_key(paths[1].read_bytes(), None)
    except (ValueError, TypeError):
        raise BadCertificate(f"{paths[0]}, {paths[1]}: no authority that `ordack tls init` has made") from None
    if not isinstance(signer, ec.EllipticCurvePrivateKey) or authority.public_key() != signer.public_key():
        raise BadCertificate(f"{paths[1]}: it is not the key of {paths[0]}")
    if authority.not_valid_after_utc <= _now():
        raise BadCertificate(f"{paths[0]}: the authority has expired on {authority.not_valid_after_utc:%Y-%m-%d}")
    return authority, signer


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        check_host(host)
    except BadName as error:
        raise BadCertificate(str(error)) from None
    return x509.DNSName(host.encode("idna").decode())


def _common(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _signed(
    subject: x509.Name,
    issuer: x509.Name,
    public: ec.EllipticCurvePublicKey,
    signer: ec.EllipticCurvePrivateKey,
    until: datetime,
    is_authority: bool,
    *others: x509.ExtensionType,
) -> x509.Certificate:
    """others: extensions in addition to those of every certificate."""
    usage = dict.fromkeys(_USAGES, False)
    usage |= dict.fromkeys(("key_cert_sign", "crl_sign") if is_authority else ("digital_signature",), True)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOT_BEFORE)
        .not_valid_after(until)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=0 if is_authority else None), critical=True)
        .add_extension(x509.KeyUsage(**usage), critical=True)
    )
    for other in (
        x509.SubjectKeyIdentifier.from_public_key(public),
        x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()),
        *others,
    ):
        builder = builder.add_extension(other, critical=False)
    return builder.sign(signer, hashes.SHA256())


def _write(
    folder: Path,
    name: str,
    made: x509.Certificate,
    key: ec.EllipticCurvePrivateKey,
    authority: x509.Certificate | None = None,
) -> tuple[Path, ...]:
    """Write each file atomically, keys first. authority: write DER files too."""
    pem, der = serialization.Encoding.PEM, serialization.Encoding.DER
    plain = serialization.NoEncryption()
    pkcs8, traditional = serialization.PrivateFormat.PKCS8, serialization.PrivateFormat.TraditionalOpenSSL
    files = {f"{name}.key": key.private_bytes(pem, pkcs8, plain)}
    if authority:
        files[f"{name}.key.der"] = key.private_bytes(der, traditional, plain)
    files[f"{name}.pem"] = made.public_bytes(pem)
    if authority:
        files[f"{name}.der"] = made.public_bytes(der)
        files[f"{AUTHORITY}.der"] = authority.public_bytes(der)
    return tuple(_write_file(folder / file, data, ".key" in file) for file, data in files.items())


def _write_file(path: Path, data: bytes, secret: bool) -> Path:
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o644), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    return path
