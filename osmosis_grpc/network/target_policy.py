"""The policy for callback addresses. A target is parsed, resolved and checked. Connections go only to checked
addresses.

A target comes from a caller, so it must be HOST:PORT and nothing else. This file does not import grpc, because the HTTP
gateway uses the same policy.
"""

import asyncio
import ipaddress
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from osmosis_grpc.protocol.errors import InvalidArgument

_HOST = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_TARGET = re.compile(rf"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<host>{_HOST})):(?P<port>[0-9]{{1,5}})")
_NUMERIC = re.compile(r"(?:0[xX][0-9A-Fa-f]*|[0-9]+)(?:\.(?:0[xX][0-9A-Fa-f]*|[0-9]+))*")
_METADATA = frozenset(
    map(
        ipaddress.ip_address,
        ("169.254.169.254", "fd00:ec2::254", "fd20:ce::254", "100.100.100.200", "168.63.129.16", "192.0.0.192"),
    )
)
_CARRIERS = tuple(map(ipaddress.IPv6Network, ("64:ff9b::/96", "::/96")))  # an IPv4 address in the last 32 bits

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class Address:
    """A target that was checked."""

    authority: str
    """The HOST:PORT that the caller sent."""
    ips: tuple[str, ...]
    """The addresses to connect to. IPv4 addresses come first, because few servers listen only on IPv6."""
    port: int

    @property
    def grpc_target(self) -> str:
        """The checked addresses with the same IP version as the first, in gRPC's notation. So gRPC resolves no name."""
        family = "ipv6" if ":" in self.ips[0] else "ipv4"
        alike = [ip for ip in self.ips if (":" in ip) == (":" in self.ips[0])]
        return f"{family}:" + ",".join(f"[{ip}]:{self.port}" if ":" in ip else f"{ip}:{self.port}" for ip in alike)


@dataclass(frozen=True, slots=True)
class _Allowed:
    host: str
    network: IPNetwork | None
    port: int | None


class TargetPolicy:
    """Decides which callback addresses are allowed.

    With `loopback`, loopback addresses are allowed; this is for a server on loopback. An authenticated caller is
    allowed to name any private or public address. `allow` adds more addresses: each entry is a HOST or a CIDR network,
    and can end with :PORT. Link-local, metadata, multicast and unspecified addresses are never allowed. Errors name
    `option`, with which an operator allows more addresses.
    """

    def __init__(self, *, loopback: bool, allow: Sequence[str] = (), option: str = "--allow-target") -> None:
        self._option = option
        self._loopback = loopback
        self._allow = [_parse_allowed(text) for text in allow]

    async def check(
        self, target: str, field: str, *, authenticated: bool = False, loopback: bool | None = None
    ) -> Address:
        """Return the checked address of a target. Raises InvalidArgument naming `field`.

        If `loopback` is given, it replaces the policy's `loopback` for this target.
        """
        host, port = split_target(target, field)
        ips = await _resolve(host, port, field)
        for ip in ips:
            self._check_ip(ip, host, port, field, authenticated, self._loopback if loopback is None else loopback)
        plain = sorted(map(_unmapped, ips), key=lambda ip: ip.version)
        return Address(target, tuple(map(str, plain)), port)

    def _check_ip(self, ip: IPAddress, host: str, port: int, field: str, authenticated: bool, loopback: bool) -> None:
        inner = _embedded(ip)
        where = str(inner) if host == str(inner) else f"{host} ({inner})"
        carried = inner != _unmapped(ip) and inner.is_loopback
        reserved = carried or (inner.version == 4 and inner.is_reserved)
        if inner in _METADATA or inner.is_link_local or inner.is_multicast or inner.is_unspecified or reserved:
            raise InvalidArgument(field, f"{where} is never allowed as a callback address")
        if any(_matches(rule, host, inner, port) for rule in self._allow):
            return
        if inner.is_loopback:
            if not loopback:
                raise InvalidArgument(
                    field, f"{where} is loopback, and this server is not; allow it with {self._option}"
                )
        elif not authenticated:
            raise InvalidArgument(
                field,
                f"{where} is not on this machine, and the caller has not authenticated; allow it with {self._option}",
            )


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a host."""
    if host == "localhost":
        return True
    ip = _ip_of(host.strip("[]"))
    return ip is not None and ip.is_loopback


def split_target(target: str, field: str) -> tuple[str, int]:
    """Return the host and the port of HOST:PORT. Raises InvalidArgument naming `field`."""
    match = _TARGET.fullmatch(target)
    if match is None:
        raise InvalidArgument(field, "is not HOST:PORT")
    host, port = match["six"] or match["host"], int(match["port"])
    if not 0 < port < 65536:
        raise InvalidArgument(field, f"{port} is not a port")
    if _NUMERIC.fullmatch(host) and _ip_of(host) is None:
        raise InvalidArgument(field, f"{host} is not an address in its usual form")
    if match["six"] and _ip_of(host) is None:
        raise InvalidArgument(field, f"[{host}] is not an address")
    return host, port


def _unmapped(ip: IPAddress) -> IPAddress:
    """Return the IPv4 address in an IPv4-mapped IPv6 address. Returns any other address unchanged."""
    return getattr(ip, "ipv4_mapped", None) or ip


def _embedded(ip: IPAddress) -> IPAddress:
    """Return the IPv4 address in an IPv6 address (mapped, 6to4, NAT64). Returns any other address unchanged."""
    inner = _unmapped(ip)  # first: from Python 3.13 on, a mapped loopback address is a loopback address itself
    if inner.version == 4 or inner.is_loopback or inner.is_unspecified:
        return inner
    if any(inner in network for network in _CARRIERS):
        return ipaddress.IPv4Address(int(inner) & 0xFFFFFFFF)
    return inner.sixtofour or inner


def _ip_of(host: str) -> IPAddress | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


async def _resolve(host: str, port: int, field: str) -> list[IPAddress]:
    ip = _ip_of(host)
    if ip is not None:
        return [ip]
    try:
        async with asyncio.timeout(10):
            rows = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError, TimeoutError) as error:
        raise InvalidArgument(field, f"{host} does not resolve: {error or 'no answer'}") from None
    found = dict.fromkeys(ipaddress.ip_address(str(row[4][0]).partition("%")[0]) for row in rows)
    if not found:
        raise InvalidArgument(field, f"{host} does not resolve")
    return list(found)


def _parse_allowed(text: str) -> _Allowed:
    host, port = text, None
    match = re.fullmatch(r"(.*[^:]|\[.*\]):([0-9]+)", text)
    if match and (text.startswith("[") or text.count(":") == 1):
        host, port = match[1], int(match[2])
    host = host.strip("[]")
    try:
        return _Allowed(host, ipaddress.ip_network(host, strict=False), port)
    except ValueError:
        if not host or "/" in host or ":" in host:
            raise ValueError(f"{text!r} is not HOST, HOST:PORT or a network such as 10.0.0.0/8") from None
        return _Allowed(host.lower(), None, port)


def _matches(rule: _Allowed, host: str, ip: IPAddress, port: int) -> bool:
    if rule.port is not None and rule.port != port:
        return False
    if rule.network is not None:
        return ip.version == rule.network.version and ip in rule.network
    return rule.host == host.lower()
