"""Addresses and subnets as text: single ones, and files of thousands of subnets."""

from __future__ import annotations

from ipaddress import IPv6Address, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Final

from mptcp_throttle.config.text_file import read_text_file
from mptcp_throttle.errors import ConfigError, shown
from mptcp_throttle.model import Address, Network

MOST_IN_FILE: Final = 20_000

# So many with a comment of 150 characters each.
_MOST_BYTES: Final = 4 << 20
_MOST_PROBLEMS: Final = 10
_ALLOWED: Final = f"one subnet per line, up to {MOST_IN_FILE}, and comments after #"
_IPV4_MAPPED: Final = IPv6Network("::ffff:0:0/96")
_HAS_ZONE: Final = "has a zone (%{}), and packets never have one; allowed: {}"


def parse_address(text: str) -> Address:
    """Parse `10.1.0.2` or `fd00:1::2`. Raises ValueError with what is allowed."""
    try:
        address = ip_address(text)
    except ValueError as error:
        raise ValueError("is not an address; allowed: such as 10.1.0.2 or fd00:1::2") from error
    if isinstance(address, IPv6Address) and address.scope_id is not None:
        raise ValueError(_HAS_ZONE.format(address.scope_id, IPv6Address(int(address))))
    return address


def parse_subnet(text: str) -> Network:
    """Parse `10.1.0.0/24` or `fd00:1::/64`, or one address. Raises ValueError with what is allowed."""
    try:
        subnet = ip_network(text)
    except ValueError as error:
        raise ValueError(f"is not a subnet ({error}); allowed: 10.1.0.0/24 or fd00:1::/64, no host bits set") from error
    first = subnet.network_address
    if isinstance(first, IPv6Address) and first.scope_id is not None:
        raise ValueError(_HAS_ZONE.format(first.scope_id, f"{IPv6Address(int(first))}/{subnet.prefixlen}"))
    if isinstance(subnet, IPv6Network) and subnet.subnet_of(_IPV4_MAPPED):
        written = f"{subnet.network_address.ipv4_mapped}/{subnet.prefixlen - _IPV4_MAPPED.prefixlen}"
        raise ValueError(f"is IPv4-mapped, and packets never have such addresses; allowed: {written}")
    return subnet


def parse_prefix(text: str) -> Network:
    """Parse an address, or a prefix such as `10.1.0.0/28`, of a client. Raises ValueError with what is allowed."""
    if "/" in text:
        return parse_subnet(text)
    try:
        return ip_network(parse_address(text))
    except ValueError as error:
        raise ValueError(f"{error}; or a prefix such as 10.1.0.64/28") from error


def read_subnets(path: Path, key: str) -> dict[Network, int]:
    """The subnets in a file, each with the first line (from 1) that has it.

    Raises ConfigError with a line per problem, up to a bound; `key` is where the file is named, as `FILE:LINE: KEY`.
    """
    lines = _read(path, key)
    subnets: dict[Network, int] = {}
    problems: list[str] = []
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        try:
            subnets.setdefault(parse_subnet(text), number)
        except ValueError as error:
            problems.append(f"{path}:{number}: {shown(text)}: {error}")
        if len(subnets) > MOST_IN_FILE:
            raise ConfigError([f"{path}:{number}: {shown(text)}: is one too many; allowed: {_ALLOWED}"])
    if len(problems) > _MOST_PROBLEMS:
        rest = len(problems) - _MOST_PROBLEMS
        problems[_MOST_PROBLEMS:] = [f"{path}: {rest} more lines are not subnets; allowed: {_ALLOWED}"]
    if not problems and not subnets:
        problems = [f"{path}: has no subnet; allowed: {_ALLOWED}"]
    if problems:
        raise ConfigError(problems)
    return subnets


def _read(path: Path, key: str) -> list[str]:
    try:
        text = read_text_file(path, _MOST_BYTES)
    except ValueError as error:
        raise ConfigError([f"{key}: {path}: {error}"]) from error
    # Files that were joined have a byte order mark at the beginning of each.
    return text.replace("\ufeff", "").splitlines()
