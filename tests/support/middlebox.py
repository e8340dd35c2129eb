"""A middlebox between an access network and the proxy: the router removes MPTCP options from what it forwards."""

from __future__ import annotations

from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from mptcp_lab.topology import AccessLink, Lab


class SentBy(StrEnum):
    """Who has sent a segment; the value is what nft(8) calls the router's port to the access network."""

    CLIENT = "iifname"
    PROXY = "oifname"


# A statement replaces one option (net/netfilter/nft_exthdr.c, nft_exthdr_tcp_strip_eval); a segment has up to two.
_STRIP: Final = ("reset tcp option mptcp",) * 2


@contextmanager
def stripping(
    lab: Lab, link: AccessLink, senders: Collection[SentBy] = tuple(SentBy), which: str = ""
) -> Iterator[None]:
    """Inside the block, segments over that access network, those that `which` selects in nft(8)'s words, have none."""
    table = f"inet middlebox-{link.network}"
    chain = f"add chain {table} forward {{ type filter hook forward priority 0; }}"
    rules = (
        f"add rule {table} forward {sender} {link.network} {which} {strip}" for sender in senders for strip in _STRIP
    )
    lab.router.run("nft", "\n".join((f"add table {table}", chain, *rules)))
    try:
        yield
    finally:
        lab.router.run("nft", f"delete table {table}")
