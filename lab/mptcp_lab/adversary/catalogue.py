"""All attacks: the tests in tests/adversary send each, `benchmarks/run adversary` measures each."""

from __future__ import annotations

from typing import Final

from mptcp_lab.adversary.escapes import (
    ALL_BACKUPS,
    ANNOUNCING,
    CROWDING,
    FAST_CLOSE,
    HALF_CLOSED,
    REJOINING,
    SIX_ADDRESSES,
    STEERED,
    TOGGLING,
)
from mptcp_lab.adversary.off_path import FABRICATED, IMPOSED, LIFTED, LIFTED_LIMIT

OFF_PATH: Final = (IMPOSED, *LIFTED, LIFTED_LIMIT, FABRICATED)
BY_CLIENTS: Final = (
    ALL_BACKUPS,
    *TOGGLING,
    *HALF_CLOSED,
    FAST_CLOSE,
    REJOINING,
    CROWDING,
    SIX_ADDRESSES,
    ANNOUNCING,
    *STEERED,
)
ATTACKS: Final = (*OFF_PATH, *BY_CLIENTS)
