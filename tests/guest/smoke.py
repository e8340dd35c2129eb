"""The main task on a stock kernel, with its default qdisc and with fq; run in the guest by test_stock_kernels.py."""

from __future__ import annotations

import pytest
from capped_path import SATURATED, wait_within_cap
from proxy_world import proxy_world

from mptcp_lab.kernel_dump import kernel_state
from mptcp_lab.process import wait_until
from mptcp_lab.topology import Topology
from mptcp_throttle.units import Rate


# A socket that has sent through fq is not paced by TCP any more (SK_PACING_FQ): the class alone holds it.
@pytest.mark.parametrize(("qdisc", "classifier"), [("fq_codel", "auto"), ("fq", "nft")])
def test_capped_path_carries_its_cap_and_the_qdisc_is_restored(qdisc: str, classifier: str) -> None:
    with proxy_world(Topology(wifi=SATURATED, proxy_qdisc=qdisc), daemon={"classifier": classifier}) as work:
        before = kernel_state(work.lab.proxy)
        download = work.download()
        # How much less it is depends on how often the emulated processor, not Wi-Fi, is the limit: no pulses then.
        wait_within_cap(work, Rate.parse("1mbit"))
        work.abort(download)
        wait_until(lambda: work.services.status()["daemon"]["qdisc"] == "original", "original qdisc restored", 20)
        assert kernel_state(work.lab.proxy) == before
