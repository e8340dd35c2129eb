"""Invariant I3 for every kind of root qdisc that this kernel has: it comes back exactly, or is not replaced at all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from bench import EXECUTABLES

from mptcp_lab.host import Host
from mptcp_lab.topology import Lab, Topology, build

SWAP = """
import sys
from pathlib import Path
from mptcp_throttled.kernel.htb import Marking
from mptcp_throttled.kernel.qdisc import RootQdisc
from mptcp_throttled.kernel_state import KernelError
root = RootQdisc("many0", Marking(0xffff0000, (8080,)), Path(sys.argv[1]), force="force" in sys.argv)
try:
    root.install(0)
    print(root.read().htb is not None)
    root.restore()
except KernelError as error:
    print(error)
print(root.read().unrestored, sorted(path.name for path in Path(sys.argv[1]).iterdir()))
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with build(Topology()) as built:
        yield built


@pytest.fixture
def proxy(lab: Lab) -> Iterator[Host]:
    """A host with an interface of four transmit queues, which `mq` needs."""
    lab.proxy.ip(["link add many0 numtxqueues 4 type veth peer name many1", "link set many0 up"])
    yield lab.proxy
    lab.proxy.ip(["link delete many0"])


def show(proxy: Host) -> str:
    return proxy.run("tc", "-d", "qdisc", "show", "dev", "many0").stdout


def swap(proxy: Host, state: Path, *arguments: str) -> list[str]:
    return proxy.run(EXECUTABLES / "python", "-c", SWAP, state, *arguments).stdout.splitlines()


@pytest.mark.parametrize(
    "qdiscs",
    [
        [],
        ["root noqueue"],
        ["root pfifo limit 77"],
        ["root handle 7: bfifo limit 123456"],
        ["root handle 7: pfifo_head_drop limit 9"],
        ["root handle 7: pfifo_fast"],
        [
            "root handle 7: tbf rate 50mbit burst 20k latency 50ms peakrate 60mbit mtu 1600",
            "parent 7:1 bfifo limit 9999",
        ],
        ["root handle 1: mq"],
        [
            "root handle 1: mq",
            "parent 1:1 handle 10: pfifo limit 5",
            "parent 1:3 handle 30: tbf rate 5mbit burst 20k limit 30000",
            "parent 30:1 handle 31: bfifo limit 888",
        ],
    ],
)
def test_it_comes_back_with_all_below_it(proxy: Host, tmp_path: Path, qdiscs: list[str]) -> None:
    proxy.tc(f"qdisc add dev many0 {qdisc}" for qdisc in qdiscs)
    before = show(proxy)
    assert swap(proxy, tmp_path) == ["True", "() []"]
    assert show(proxy) == before


CLASSES = [
    "qdisc add dev many0 root handle 9: htb default 1",
    "class add dev many0 parent 9: classid 9:1 htb rate 1gbit",
]


@pytest.mark.parametrize(
    ("commands", "problem"),
    [
        (CLASSES, "qdisc htb 9: is of a kind"),
        (
            ["qdisc add dev many0 root handle 9: stab overhead 20 linklayer ethernet pfifo limit 100"],
            "qdisc pfifo 9: has",
        ),
        (
            ["qdisc add dev many0 root handle 1: mq", "qdisc add dev many0 parent 1:2 handle 9: htb"],
            "qdisc htb 9: is of a kind",
        ),
    ],
)
def test_it_is_not_replaced_if_it_would_not_come_back(
    proxy: Host, tmp_path: Path, commands: list[str], problem: str
) -> None:
    proxy.tc(commands)
    before = show(proxy)
    refusal, nothing_left = swap(proxy, tmp_path)
    assert refusal.startswith(f"many0: root {problem}")
    assert "that cannot be put back as it is; remove it, replace it by" in refusal
    assert (nothing_left, show(proxy)) == ("() []", before)


def test_an_operator_who_insists_gets_the_default_back_where_nothing_better_can_be_had(
    proxy: Host, tmp_path: Path
) -> None:
    default = show(proxy)
    proxy.tc(CLASSES)
    assert swap(proxy, tmp_path, "force") == ["True", "() []"]
    assert show(proxy) == default
