"""Packets that a host drops without a word."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mptcp_lab.host import Host


@contextmanager
def dropped(host: Host, chain: str, *match: str, commands: Sequence[str] = ("iptables",)) -> Iterator[None]:
    """The host drops what matches this rule of iptables(8) in the chain."""
    rule = (chain, *match, "-j", "DROP")
    for command in commands:
        host.run(command, "-I", *rule)
    try:
        yield
    finally:
        for command in commands:
            host.run(command, "-D", *rule)
