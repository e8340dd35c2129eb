"""The ids of our HTB classes, and the fwmarks that lead to them."""

from __future__ import annotations

from typing import Final, NamedTuple

from mptcp_throttle.linux.qdisc_kinds import OWN_HANDLE
from mptcp_throttle.ports import Ports

MAJOR: Final = 0xFFFF_0000
"""The bits of a class id that are the handle of its qdisc (TC_H_MAJ_MASK, include/uapi/linux/pkt_sched.h)."""


def format_handle(handle: int) -> str:
    """`4d50:` as tc writes it."""
    return f"{handle >> 16:x}:"


def format_classid(classid: int) -> str:
    """`4d50:2` as tc writes it."""
    return f"{classid >> 16:x}:{classid & 0xFFFF:x}"


HANDLE: Final = OWN_HANDLE


class MarkedTraffic(NamedTuple):
    """Which packets the filter classifies: those from the proxy's TCP `ports`, by the fwmark bits under `mask`."""

    mask: int
    ports: Ports


def mark_shift(mask: int) -> int:
    """By how many bits a class minor is shifted left to fit the fwmark mask."""
    return (mask & -mask).bit_length() - 1


def max_minor(mask: int) -> int:
    """The largest class minor that fits under the fwmark mask."""
    return mask >> mark_shift(mask)


def classid(minor: int) -> int:
    """The class id of one of our classes."""
    return HANDLE | minor


def minor_of(class_id: int) -> int | None:
    """The minor of one of our classes; None if the class is not ours."""
    return class_id & ~MAJOR if class_id & MAJOR == HANDLE else None
