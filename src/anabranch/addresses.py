"""Addresses in one notation, so that they can be compared as text: in ACLs, quotas, limits, logs and answers. Pure.

An address of version 4 that is mapped to version 6 (`::ffff:10.0.0.1`, which a listener on `[::]` sees) is the address
of version 4. Java writes `0:0:0:0:0:0:0:1` where others write `::1`.
"""

import ipaddress
from functools import lru_cache


@lru_cache(maxsize=4096)
def normal_address(text: str) -> str | None:
    """Return the usual notation of an address, of version 4 where it is mapped to 6; None if it is not an address."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(address if mapped is None else mapped)


def normal_host(text: str) -> str:
    """Return the usual notation of an address, and any other text as it is."""
    return normal_address(text) or text


def is_loopback(host: str) -> bool:
    """Return whether only processes of this machine can connect to an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def bracketed(host: str) -> str:
    """Return a host as it is written before a port: an address of IPv6 in brackets."""
    return f"[{host}]" if ":" in host else host


def host_port(host: str, port: int | str) -> str:
    """Return host and port as one text."""
    return f"{bracketed(host)}:{port}"
