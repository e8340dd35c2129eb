"""A name for an interface of a host of the lab."""

from __future__ import annotations

from typing import NamedTuple


class Port(NamedTuple):
    """An end of a link: an interface of a host."""

    host: str
    interface: str

    def __str__(self) -> str:
        return f"{self.host}.{self.interface}"
