"""What is on this machine: addresses, which are asked for each time because they change (DHCP), and Spark sessions.
Nothing is sent."""

from __future__ import annotations

import ipaddress
import re
import socket


def has(address: str) -> bool:
    """Is this IP address or host name, in lower case, one of this machine? A name counts if it is `localhost` or the
    machine's own, with or without its domain; no other is looked up."""
    try:
        ip = ipaddress.ip_address(address.strip("[]"))
    except ValueError:
        own = socket.gethostname().lower()
        return address in ("localhost", own, own.partition(".")[0])
    with socket.socket(socket.AF_INET if ip.version == 4 else socket.AF_INET6, socket.SOCK_DGRAM) as asker:
        try:
            asker.connect((str(ip), 9))  # a datagram socket: this only asks for the way
            source = asker.getsockname()[0]
        except OSError:
            return False
    return ipaddress.ip_address(source.partition("%")[0]) == ip  # the way to an own address begins at itself


def is_local(master: str) -> bool:
    """Whether this Spark master runs everything in one JVM on this machine."""
    return re.fullmatch(r"local(\[.*\])?", master) is not None
