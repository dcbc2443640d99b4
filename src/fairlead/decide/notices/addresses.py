"""Which IP addresses notices are sent to: those of the public internet, and those of a list (pure).

The controllers see networks that a tenant does not: loopback, the metadata service of the cloud,
the cluster's own services. So a tenant's URL leads to none of them, whatever name it goes by.
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from typing import TypeAlias

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network

#: Prefixes of IPv6 behind which IPv4 addresses are: RFC 6052, RFC 8215, RFC 3056 and RFC 4380.
_NAT64 = (ip_network("64:ff9b::/96"), ip_network("64:ff9b:1::/48"))
#: What the library calls global in some of its versions, or is by the registry, and is no host of
#: the internet: IETF protocol assignments (RFC 6890; a cloud's metadata service among them), relays
#: of 6to4 (RFC 7526), shared space (RFC 6598), benchmarks (RFC 2544), site-local addresses
#: (RFC 3879), documentation (RFC 9637), segment routing (RFC 9602). The one host is the platform
#: service of Azure (learn.microsoft.com, "What is IP address 168.63.129.16?").
_NEVER = tuple(
    ip_network((address, prefix))
    for address, prefix in (
        ("192.0.0.0", 24), ("192.88.99.0", 24), ("100.64.0.0", 10), ("198.18.0.0", 15),
        ("168.63.129.16", 32), ("fec0::", 10), ("2001::", 23), ("3fff::", 20), ("5f00::", 16),
    )
)  # fmt: skip


def parse_networks(texts: Sequence[str]) -> tuple[Network, ...]:
    """Return networks such as 10.0.0.0/8; ValueError for another text."""
    return tuple(ip_network(text, strict=True) for text in texts)


def is_listed(address: str, listed: Sequence[Network]) -> bool:
    """True for an address of one of the networks."""
    found = _plain(_parsed(address))
    return found is not None and any(found in network for network in listed)


def is_public(address: str) -> bool:
    """True for an address of the public internet, also of the IPv4 address inside of it."""
    found = _parsed(address)
    if found is None:
        return False
    inner = _plain(found)
    return all(_is_global(each) for each in (found, inner) if each is not None) and not (
        isinstance(found, IPv6Address) and _is_tunnel(found)
    )


def _parsed(address: str) -> Address | None:
    try:
        found = ip_address(address)
    except ValueError:
        return None
    is_scoped = isinstance(found, IPv6Address) and found.scope_id is not None
    return None if is_scoped else found


def _plain(address: Address | None) -> Address | None:
    """Return the IPv4 address that a mapped one means, any other one as it is."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def _is_global(address: Address) -> bool:
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return True  # judged by the address inside
    if address.is_multicast or address.is_reserved or address.is_unspecified:
        return False
    return address.is_global and not any(address in network for network in _NEVER)


def _is_tunnel(address: IPv6Address) -> bool:
    """True for addresses that a relay on the way turns into others, which are not judged here."""
    is_tunnelled = address.sixtofour is not None or address.teredo is not None
    return is_tunnelled or any(address in network for network in _NAT64)
