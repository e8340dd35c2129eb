"""A client that ignores the MP_PRIO of the proxy (`deaf.bpf.c`)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from bpf_compiler import compiled

if TYPE_CHECKING:
    from mptcp_lab.topology import Client

_SOURCE: Final = Path(__file__).with_name("deaf.bpf.c")


def ignore_priorities(client: Client) -> None:
    """Let the client ignore them from now on, with IPv4, as long as it exists."""
    program = compiled(_SOURCE, client.directory)
    for interface in ("eth0", "wlan0"):
        client.run("tc", "qdisc", "add", "dev", interface, "clsact")
        client.run("tc", "filter", "add", "dev", interface, "ingress", "bpf", "da", "obj", program, "sec", "tc")
