"""What pictures of subflows show: congestion windows and rates of senders over time, and shares of what arrived."""

from __future__ import annotations

import csv
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from mptcp_lab.curve import MEGA, Curve

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from mptcp_lab.scenario.results import Run

_Socket = TypeVar("_Socket")

_LEAST_BYTES: Final = 10_000
"""A control connection of iperf3 carries less in each direction."""

_MOST_SUBFLOWS: Final = 12
"""More lines or bars cannot be told apart."""


@dataclass(frozen=True, slots=True)
class SentSubflow:
    """A TCP socket or subflow that sent: its name, its congestion window in packets by seconds, acknowledged bytes."""

    name: str
    windows: Sequence[tuple[float, int]]
    acked: Curve


@dataclass(frozen=True, slots=True)
class ReceivedSubflow:
    """What arrived at a TCP socket or subflow: its name, the mean rate of payload in Mb/s, packets with payload."""

    name: str
    mbps: float
    packets: int


def sent_subflows(directory: Path) -> list[SentSubflow]:
    """The sockets that sent most in run 1, in the order of their first samples; none without `subflows-1.csv`."""
    rows: dict[tuple[str, str, str], list[dict[str, str]]] = defaultdict(list)
    try:
        with (directory / "subflows-1.csv").open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                rows[row["host"], row["local"], row["remote"]].append(row)
    except FileNotFoundError:
        return []
    sockets = list(rows.items())
    return [
        SentSubflow(
            f"{host} {local} to {remote}",
            [(float(row["at_s"]), int(row["cwnd_segments"])) for row in of_socket],
            Curve((float(row["at_s"]), float(row["acked_bytes"])) for row in of_socket),
        )
        for (host, local, remote), of_socket in _largest(sockets, lambda socket: int(socket[1][-1]["acked_bytes"]))
    ]


def split_of(run: Run) -> list[ReceivedSubflow]:
    """The sockets at which most arrived in a run, in the order of their first samples."""
    return [
        ReceivedSubflow(
            f"{subflow['remote']} to {subflow['host']} {subflow['local']}",
            subflow["received_bytes"] * 8 / run.seconds / MEGA,
            subflow["received_packets"],
        )
        for subflow in _largest(run.subflows, lambda subflow: int(subflow["received_bytes"]))
    ]


def _largest(sockets: Sequence[_Socket], size: Callable[[_Socket], int]) -> list[_Socket]:
    """The sockets of the largest sizes, in their order."""
    worth = (n for n, socket in enumerate(sockets) if size(socket) >= _LEAST_BYTES)
    by_size = sorted(worth, key=lambda n: size(sockets[n]))
    return [sockets[n] for n in sorted(by_size[-_MOST_SUBFLOWS:])]
