"""Invariant I3 for every kind of root qdisc of this kernel: it is restored exactly, or not replaced at all."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from proxy_world import EXECUTABLES

from mptcp_lab.host import Host
from mptcp_lab.lab_errors import LabError
from mptcp_lab.namespaces import in_namespace
from mptcp_lab.topology import Lab
from mptcp_throttled.kernel.htb.saved import SavedQdiscs, SavedQdiscStore
from mptcp_throttled.kernel.tc import Qdisc

SWAPPER = """
import json, logging, subprocess, sys
from pathlib import Path
from mptcp_throttle.ports import Ports
from mptcp_throttled.vocabulary.class_ids import MarkedTraffic
from mptcp_throttled.kernel.htb.qdisc import RootQdiscs
from mptcp_throttle.linux.kernel_error import KernelError, set_faults
warnings = []
handler = logging.Handler()
handler.emit = lambda record: warnings.append(record.getMessage())
logging.getLogger().addHandler(handler)
def run(command):
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
def overtake(requests):
    if overtaking and requests[0].endswith(overtaking[0]):
        run(overtaking.pop().split())
    return [None] * len(requests)
set_faults(overtake)
for line in sys.stdin:
    directory, force, meanwhile, overtaking = json.loads(line)
    warnings.clear()
    root = RootQdiscs(("many0",), MarkedTraffic(0xffff0000, Ports.of([8080])), Path(directory), force=force)
    try:
        root.install(0)
        answer = str(root.read().htb is not None)
        for command in meanwhile:
            run(command)
        root.restore()
    except KernelError as error:
        answer = str(error)
    left = sorted(path.name for path in Path(directory).iterdir()) + [w for w in warnings if "differ" in w]
    state = root.read()
    pending = [*["many0"] * state.restore_pending, *state.pending_elsewhere]
    print(json.dumps([answer, f"{pending} {left}"]), flush=True)
"""

Swap = Callable[..., list[str]]


@pytest.fixture
def proxy(lab: Lab) -> Iterator[Host]:
    """A host with an interface of four transmit queues, which `mq` needs."""
    lab.proxy.ip(["link add many0 numtxqueues 4 type veth peer name many1", "link set many0 up"])
    yield lab.proxy
    lab.proxy.ip(["link delete many0"])


@pytest.fixture(scope="module")
def swap(lab: Lab) -> Iterator[Swap]:
    """Replaces the root qdisc of many0 by ours and restores it; the outcome, and what is pending, recorded or differs.

    The commands in `meanwhile` run while the qdisc is replaced. If `overtaking` is given, it is the end of a request's
    name, and the command that runs just before that request.

    One program for all tests: its start takes longer than all of them.
    """
    command = ["ip", "netns", "exec", lab.proxy.namespace, str(EXECUTABLES / "python"), "-c", SWAPPER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        requests, answers = program.stdin, program.stdout

        def run(state: Path, *meanwhile: list[str], force: bool = False, overtaking: tuple[str, ...] = ()) -> list[str]:
            print(json.dumps([str(state), force, meanwhile, overtaking]), file=requests, flush=True)
            answer: list[str] = json.loads(answers.readline())
            return answer

        yield run


def show(proxy: Host) -> str:
    return proxy.run("tc", "-d", "qdisc", "show", "dev", "many0").stdout


def configure(proxy: Host, commands: list[str]) -> None:
    try:
        proxy.tc(commands)
    except LabError as error:
        if "qdisc kind is unknown" in str(error):
            pytest.skip("this kernel lacks one of these kinds; the guest kernels have them all")
        raise


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
        ["root fq_codel"],
        ["root handle 7: fq_codel limit 500 flows 64 target 7ms interval 130ms quantum 300 noecn"],
        ["root handle 7: fq limit 5000 flow_limit 50 quantum 3000 maxrate 40mbit"],
        ["root handle 7: sfq perturb 10 limit 100 quantum 3000"],
        ["root handle 7: codel limit 500 target 7ms interval 130ms ecn"],
        ["root handle 7: codel target 128us interval 1001us ce_threshold 3ms"],
        ["root handle 7: pie limit 500 target 20ms tupdate 30ms ecn"],
        ["root handle 7: pie target 15003us"],
        [
            "root handle 7: prio bands 4 priomap 3 2 1 0 3 2 1 0 3 2 1 0 3 2 1 0",
            "parent 7:2 handle 72: fq_codel limit 77",
        ],
        ["root handle 7: multiq", "parent 7:4 handle 74: sfq limit 50"],
        ["root handle 1: mq", "parent 1:2 handle 20: fq_codel limit 99", "parent 1:4 handle 40: fq limit 4000"],
    ],
)
def test_saved_qdisc_is_restored_with_everything_below_it(
    proxy: Host, swap: Swap, tmp_path: Path, qdiscs: list[str]
) -> None:
    configure(proxy, [f"qdisc add dev many0 {qdisc}" for qdisc in qdiscs])
    before = show(proxy)
    assert swap(tmp_path) == ["True", "[] []"]
    assert show(proxy) == before


# 3 and 5 have the same hash, as have c and 1f: tc lists first which was added last.
LEAVES = [
    f"parent 1:{queue} handle {handle}: pfifo limit {queue}" for queue, handle in enumerate(("3", "5", "c", "1f"), 1)
]


@pytest.mark.parametrize("meanwhile", [[], [["ethtool", "-L", "many0", "tx", "2"]]], ids=["unchanged", "fewer"])
def test_restored_queues_in_another_order_are_no_difference(
    proxy: Host, swap: Swap, tmp_path: Path, meanwhile: list[list[str]]
) -> None:
    configure(proxy, [f"qdisc add dev many0 {qdisc}" for qdisc in ["root handle 1: mq", *LEAVES]])
    before = show(proxy)
    assert swap(tmp_path, *meanwhile) == ["True", "[] []"]
    assert sorted(show(proxy).splitlines()) == sorted(before.splitlines())


OWN = "tc qdisc replace dev many0 root handle 7: pfifo limit 77"


def test_qdisc_that_comes_while_the_default_is_replaced_stays(proxy: Host, swap: Swap, tmp_path: Path) -> None:
    refusal, nothing_left = swap(tmp_path, overtaking=("dev many0 htb", OWN))
    assert (refusal.startswith("tc qdisc add dev many0 htb: EEXIST"), nothing_left) == (True, "[] []"), refusal
    before = show(proxy)
    assert before.startswith("qdisc pfifo 7: root")
    assert swap(tmp_path) == ["True", "[] []"]
    assert show(proxy) == before


def test_qdisc_that_comes_while_the_default_is_restored_stays(proxy: Host, swap: Swap, tmp_path: Path) -> None:
    refusal, _ = swap(tmp_path, overtaking=("qdisc del dev many0 htb", OWN))
    assert refusal.startswith("tc qdisc del dev many0 htb: EINVAL"), refusal
    assert show(proxy).startswith("qdisc pfifo 7: root")


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
        (["qdisc add dev many0 root handle 9: cake bandwidth 50mbit"], "qdisc cake 9: is of a kind"),
    ],
)
def test_qdisc_that_cannot_be_restored_is_not_replaced(
    proxy: Host, swap: Swap, tmp_path: Path, commands: list[str], problem: str
) -> None:
    configure(proxy, commands)
    before = show(proxy)
    refusal, nothing_left = swap(tmp_path)
    assert refusal.startswith(f"many0: root {problem}")
    assert "that cannot be restored exactly; remove it, replace it by" in refusal
    assert (nothing_left, show(proxy)) == ("[] []", before)


def test_forced_replacement_restores_the_default_qdisc(proxy: Host, swap: Swap, tmp_path: Path) -> None:
    default = show(proxy)
    proxy.tc(CLASSES)
    assert swap(tmp_path, force=True) == ["True", "[] []"]
    assert show(proxy) == default


def test_record_of_another_network_namespace_counts_as_none(lab: Lab, tmp_path: Path) -> None:
    saved = SavedQdiscs((Qdisc("pfifo", 0x50000, 0xFFFFFFFF, bytes(4)),), restoring=False)
    records = SavedQdiscStore(tmp_path)
    with in_namespace(lab.proxy.namespace):
        records.write(2, saved)
        assert records.load(2) == saved
    with in_namespace(lab.router.namespace):
        assert records.load(2) is None
