"""Who may connect, who may write to a queue, and how many sessions an address may have: by address, by the name of a
serial line, by the name in a certificate, by the GUID that a source says it has.

A GUID proves nothing: whoever reaches the port can claim any (B-411). An address proves as much as the network does. A
certificate proves that the peer has its key.
"""

from __future__ import annotations

import functools
import ipaddress
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from mqqb import guids

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def parse_network(text: str) -> Network:
    """An address or a network in CIDR notation; raises ValueError that says what to write."""
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        pass
    try:
        network = ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise ValueError(
            f"{text!r} is neither an address nor a network: write it as 10.0.0.5, 10.0.0.0/8 or fd00::/8"
        ) from None
    address = text.partition("/")[0]
    raise ValueError(f"{text!r} is not the beginning of a network: write {network}, or {address} for this one address")


@functools.lru_cache(4096)
def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None  # the name of a serial line


@dataclass(frozen=True)
class Networks:
    """Addresses that are in any of these networks."""

    networks: tuple[Network, ...] = ()

    def __contains__(self, address: str) -> bool:
        known = _address(address)
        return known is not None and any(known in network for network in self.networks)

    def __iter__(self) -> Iterator[Network]:
        return iter(self.networks)

    def __str__(self) -> str:
        return ", ".join(map(str, self.networks)) or "nobody"


@dataclass(frozen=True)
class Access:
    """Who may write to a queue. networks, lines: from where, addresses and names of serial lines. sources: who, by
    GUID. certificates: over whose TLS connections, by their names in lower case. None: anybody, from anywhere."""

    networks: Networks | None = None
    lines: frozenset[str] = field(default_factory=frozenset)
    sources: frozenset[bytes] | None = None
    certificates: frozenset[str] | None = None

    def shown(self, names: Mapping[str, str]) -> dict[str, list[str]]:
        """As it stands in a file. names: what people call queue managers, by GUID in lower case."""
        found = {}
        if self.networks is not None:
            found["allow-addresses"] = [*map(str, self.networks), *sorted(self.lines)]
        if self.sources is not None:
            texts = sorted(guids.guid_text(source) for source in self.sources)
            found["allow-sources"] = [names.get(text[1:-1].lower(), text) for text in texts]
        if self.certificates is not None:
            found["allow-certificates"] = sorted(self.certificates)
        return found

    def refusal(self, address: str, source: bytes, certificate: str = "") -> str:
        """Why this source may not write from this address, or over the serial line of this name; "" if it may.
        certificate: the name in the peer's, "" without TLS."""
        if self.networks is not None and address not in self.networks and address not in self.lines:
            return f"{address} is not in allow-addresses"
        if self.sources is not None and source not in self.sources:
            return f"{guids.guid_text(source)} is not in allow-sources"
        return certificate_refusal(self.certificates, certificate)


def certificate_refusal(allowed: Collection[str] | None, certificate: str) -> str:
    """Why the certificate of this name, "" for none, does not do where these are allowed; "" if it does, or all do."""
    if allowed is None or certificate.lower() in allowed:
        return ""
    return (
        f"the certificate of {certificate} is not in allow-certificates"
        if certificate
        else ("it has no certificate, and allow-certificates asks for one: TLS alone brings it")
    )


def most_specific(limits: Iterable[tuple[Network, int]], address: str) -> int | None:
    """The number of the smallest network that has this address; None if none has it."""
    known = _address(address)
    found = [(network.prefixlen, limit) for network, limit in limits if known is not None and known in network]
    return max(found)[1] if found else None
