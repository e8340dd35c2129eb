"""A client that ignores the MP_PRIO of the proxy (`deaf.bpf.c`)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mptcp_lab.topology import Client

_SOURCE: Final = Path(__file__).with_name("deaf.bpf.c")


def ignore_priorities(client: Client) -> None:
    """Let the client ignore them from now on, with IPv4, as long as it exists."""
    compiled = client.directory / "deaf.bpf.o"
    include = Path("/usr/include") / f"{os.uname().machine}-linux-gnu"
    command = ("clang", "-O2", "-g", "-target", "bpf", "-idirafter", include, "-c", _SOURCE, "-o", compiled)
    subprocess.run(command, check=True)
    for interface in ("eth0", "wlan0"):
        client.run("tc", "qdisc", "add", "dev", interface, "clsact")
        client.run("tc", "filter", "add", "dev", interface, "ingress", "bpf", "da", "obj", compiled, "sec", "tc")
