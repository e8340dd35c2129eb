"""How the addresses of clients are shown, and the names of devices beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mptcp_throttle.model import Network


def named(address: str, device: str | None) -> str:
    """An address of a client, followed by the name of its device, if it has one."""
    return address if device is None else f"{address} ({device})"


def alone(device: str) -> str:
    """A device that is meant by its name, where no address of it is shown: before a colon, ` added` or ` removed`."""
    return f"device {device}"


def shown_prefix(prefix: Network) -> str:
    """A prefix of a client; a single address without its length."""
    return str(prefix.network_address if prefix.prefixlen == prefix.max_prefixlen else prefix)
