"""The order in which commands name subflows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from mptcp_throttle.model import FourTuple

_T = TypeVar("_T")


def by_client(of_subflows: Mapping[FourTuple, _T]) -> list[tuple[FourTuple, _T]]:
    """The items by address and port of the client."""
    return sorted(of_subflows.items(), key=lambda item: (int(item[0].client.address), item[0].client.port))
