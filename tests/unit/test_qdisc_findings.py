"""What `mptcp-throttle doctor` says of root qdiscs."""

from __future__ import annotations

import pytest

from mptcp_throttle.cli.doctor.qdisc_checks import judge
from mptcp_throttle.findings import Finding

SUBJECT = "root qdisc of eth0"


def finding(*kinds: str, queues: int = 1, is_ours: bool = False, force: bool = False) -> Finding:
    return judge("eth0", kinds, queues, is_ours=is_ours, force=force)


@pytest.mark.parametrize("kind", ["pfifo_fast", "noqueue", "pfifo", "tbf"])
def test_root_qdisc_without_a_loss_has_no_problem(kind: str) -> None:
    assert finding(kind) == Finding(SUBJECT)


def test_own_htb_has_no_problem() -> None:
    assert finding("htb", "pfifo", is_ours=True) == Finding(SUBJECT)


@pytest.mark.parametrize("kinds", [("cake",), ("htb", "fq_codel"), ("mq", "cake")])
def test_qdisc_that_cannot_be_restored_prevents_caps(kinds: tuple[str, ...]) -> None:
    found = finding(*kinds)
    assert found.problem is not None
    assert "cannot be restored exactly" in found.problem
    assert found.harm


@pytest.mark.parametrize(
    ("kinds", "queues", "losses"),
    [
        (("fq",), 1, "fq: flows share one queue"),
        (("fq_codel",), 1, "fq_codel: flows share one queue, nothing keeps that queue short"),
        (("codel",), 1, "codel: nothing keeps that queue short"),
        (("mq", "fq"), 4, "mq: 4 transmit queues are filled through one lock, flows share one queue"),
        (("mq", "pfifo_fast"), 8, "mq: 8 transmit queues are filled through one lock"),
    ],
)
def test_what_other_traffic_loses_is_a_remark(kinds: tuple[str, ...], queues: int, losses: str) -> None:
    found = finding(*kinds, queues=queues)
    assert found == Finding(SUBJECT, remark=f"while anybody is throttled, HTB is in place of {losses}")


def test_forced_replacement_is_a_remark_about_its_losses() -> None:
    found = finding("cake", force=True)
    assert found.problem is None
    assert found.remark is not None
    assert "flows share one queue" in found.remark
