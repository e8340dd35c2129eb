"""Recorded traces: what clients carried over which network, and when; docs/howto/networks.md says how to record."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Final, NamedTuple

from mptcp_throttle.errors import UserError, shown
from mptcp_throttle.model import Address

_REQUIRED: Final = ("at", "client", "network", "sent_bps")
_KEYS: Final = (*_REQUIRED, "unsent_bytes")
_LINE: Final = f"a JSON object with {', '.join(_KEYS)}"
_MOST: Final = 10.0**15


class Row(NamedTuple):
    """What a client carried over a `network` from its last row until `at`, in seconds since the epoch.

    `client` is its address on the capped network, `sent_bps` is in bits/s. `unsent_bytes` waited in its sockets at that
    time; None: that was not recorded.
    """

    at: float
    client: Address
    network: str
    sent_bps: float
    unsent_bytes: int | None


def read_trace(file: Path, networks: Collection[str]) -> Iterator[Row]:
    """The rows of a file, with these networks.

    Raises UserError if it cannot be read, for the first bad line, or if there is none at all.
    """
    at = -math.inf
    try:
        with file.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    row = _row(line, networks)
                    if row.at < at:
                        raise ValueError(f"at: {row.at:.3f}; allowed: no earlier than the line before, {at:.3f}")
                except ValueError as error:
                    raise UserError(f"{file}:{number}: {error}") from error
                at = row.at
                yield row
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise UserError(f"{file}: cannot be read: {reason}") from error
    if at == -math.inf:
        raise UserError(f"{file}: no line was read; allowed: lines of which each is {_LINE}")


def _row(line: str, networks: Collection[str]) -> Row:
    """The row of a line. Raises ValueError with the key, its value, and what is allowed."""
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise ValueError(f"{shown(line.strip())}; allowed: {_LINE}")
    unknown = next((key for key in values if key not in _KEYS), None)
    if unknown is not None:
        raise ValueError(f"{shown(unknown)}: unknown key; allowed: {', '.join(_KEYS)}")
    missing = next((key for key in _REQUIRED if key not in values), None)
    if missing is not None:
        raise ValueError(f"{missing}: is required; allowed: {', '.join(_REQUIRED)}, and perhaps {_KEYS[-1]}")
    network = values["network"]
    if not isinstance(network, str) or network not in networks:
        raise ValueError(f"network: {shown(network)}; allowed: {', '.join(networks)}")
    unsent = None if values.get("unsent_bytes") is None else round(_number(values, "unsent_bytes"))
    return Row(_number(values, "at"), _client(values.get("client")), network, _number(values, "sent_bps"), unsent)


def _client(value: object) -> Address:
    try:
        return ip_address(value if isinstance(value, str) else "")
    except ValueError:
        raise ValueError(f"client: {shown(value)}; allowed: an IP address, such as 10.1.0.17") from None


def _number(values: dict[str, object], key: str) -> float:
    value = values.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MOST:
        raise ValueError(f"{key}: {shown(value)}; allowed: a number from 0 to 1e15")
    return float(value)
