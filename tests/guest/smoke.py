"""The main job where users run it: on a stock kernel, with its default qdisc. Run there by test_stock_kernels.py."""

from __future__ import annotations

import time

from polling import eventually
from proxy_world import proxy_world

from mptcp_lab.kernel_dump import kernel_state
from mptcp_lab.meter import PathMeter
from mptcp_lab.topology import Topology

SECONDS = 5


def test_the_capped_path_carries_its_cap_and_fq_codel_is_back_afterwards() -> None:
    with proxy_world(Topology(proxy_qdisc="fq_codel")) as work:
        before = kernel_state(work.lab.proxy)
        assert "qdisc fq_codel " in before["tc qdisc show dev eth0"]
        with PathMeter(work.lab.client.namespace, ("eth0", "wlan0")) as meter:
            download = work.download()
            work.wait_capped()
            start = time.monotonic() + 1.5  # what the router had queued at 10 Mb/s arrives
            time.sleep(1.5 + SECONDS)
            assert download.running
            work.abort(download)
            series = meter.series()
        ethernet, wifi = (series.rate(interface, start, start + SECONDS) for interface in ("eth0", "wlan0"))
        assert 0.7e6 < ethernet < 1.2e6
        assert wifi > ethernet
        eventually(lambda: work.services.status()["daemon"]["qdisc"] == "original", "original qdisc back", within=20)
        assert kernel_state(work.lab.proxy) == before
