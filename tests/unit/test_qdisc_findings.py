"""What `mptcp-throttle doctor` and `setup` say of root qdiscs."""

from __future__ import annotations

import pytest
from pyroute2.netlink.rtnl import TC_H_ROOT

from mptcp_throttle.cli.doctor.kernel_checks import judge_qdiscs
from mptcp_throttle.findings import Finding
from mptcp_throttle.linux.qdisc_kinds import SeenQdisc, root_first
from mptcp_throttle.setup.host_facts import Interface
from mptcp_throttle.setup.proposal import is_in_the_way, why_qdisc

SUBJECT = "root qdisc of eth0"


def qdiscs(*kinds: str, handle: int = 0x8001_0000) -> tuple[SeenQdisc, ...]:
    """A root, and below it one qdisc per further kind."""
    below = (SeenQdisc(kind, (0x8002 + n) << 16, handle + n + 1) for n, kind in enumerate(kinds[1:]))
    return SeenQdisc(kinds[0], handle, TC_H_ROOT), *below


def finding(
    *kinds: str, queues: int = 1, handle: int = 0x8001_0000, force: bool = False, paced: bool = True
) -> Finding:
    return judge_qdiscs("eth0", qdiscs(*kinds, handle=handle), queues, force=force, paced=paced)


@pytest.mark.parametrize("kind", ["pfifo_fast", "noqueue", "pfifo"])
def test_root_qdisc_without_a_loss_has_no_problem(kind: str) -> None:
    assert finding(kind) == Finding(SUBJECT)
    assert finding("htb", "pfifo", handle=0x4D50_0000) == Finding(SUBJECT)  # ours


@pytest.mark.parametrize("kinds", [("cake",), ("htb", "fq_codel"), ("mq", "cake")])
def test_qdisc_that_cannot_be_restored_prevents_caps_without_paces(kinds: tuple[str, ...]) -> None:
    for paced, effect in ((False, "no subflow is throttled there"), (True, "no qdisc guarantees caps there")):
        judged = finding(*kinds, paced=paced)
        assert judged.problem is not None
        assert f"cannot be restored exactly, so {effect}" in judged.problem
        assert judged.harm is not paced


@pytest.mark.parametrize(
    ("kinds", "queues", "losses"),
    [
        (("fq",), 1, "fq: flows share one queue, sockets are not paced (BBR)"),
        (("fq_codel",), 1, "fq_codel: flows share one queue, nothing keeps that queue short"),
        (("codel",), 1, "codel: nothing keeps that queue short"),
        (
            ("mq", "fq"),
            4,
            "mq: 4 transmit queues are filled through one lock, flows share one queue, sockets are not paced (BBR)",
        ),
        (("tbf",), 1, "tbf: other traffic has no rate, unless daemon.other_traffic gives it one"),
        (("prio", "pfifo"), 1, "prio: no traffic comes before other traffic"),
        (("mq", "pfifo_fast"), 8, "mq: 8 transmit queues are filled through one lock"),
    ],
)
def test_what_other_traffic_loses_is_a_remark(kinds: tuple[str, ...], queues: int, losses: str) -> None:
    judged = finding(*kinds, queues=queues)
    assert judged == Finding(SUBJECT, remark=f"while a subflow is throttled, HTB replaces {losses}")


def test_forced_replacement_is_a_remark_about_its_losses() -> None:
    judged = finding("cake", force=True)
    assert judged.problem is None
    assert judged.remark is not None
    assert "flows share one queue" in judged.remark


def test_default_of_the_kernel_comes_back_whatever_it_is() -> None:
    assert finding("cake", handle=0).problem is None
    assert why_qdisc(interface(*qdiscs("cake", handle=0))).endswith("cake, is the kernel's default, which comes back")


def test_qdiscs_are_seen_with_the_root_first_and_without_clsact() -> None:
    root, below = qdiscs("mq", "fq")
    assert root_first([below, SeenQdisc("clsact", 0xFFFF_0000, 0xFFFF_FFF1), root]) == (root, below)
    assert root_first([below]) == root_first([]) == ()


def interface(*tree: SeenQdisc) -> Interface:
    return Interface("eth0", up=True, loopback=False, is_supported=True, addresses=(), qdiscs=tree)


@pytest.mark.parametrize(
    ("tree", "words", "is_obstacle"),
    [
        ((), " is not known", False),
        (qdiscs("htb", "pfifo", handle=0x4D50_0000), " is that of mptcp-throttled", False),
        (
            qdiscs("htb", "pfifo"),
            ", htb, cannot be restored exactly: no qdisc guarantees caps there",
            True,
        ),
        (qdiscs("fq_codel"), ", fq_codel, is of a kind that can be restored", False),
        (
            qdiscs("mq", "htb"),
            ", mq, has htb below it, which cannot be restored exactly: no qdisc guarantees caps there",
            True,
        ),
    ],
)
def test_setup_judges_qdiscs_as_doctor_does(tree: tuple[SeenQdisc, ...], words: str, is_obstacle: bool) -> None:
    assert why_qdisc(interface(*tree)) == f"the root qdisc of eth0{words}"
    assert is_in_the_way(interface(*tree)) is is_obstacle
    if tree:
        assert (judge_qdiscs("eth0", tree, 1, force=False, paced=True).problem is not None) is is_obstacle
