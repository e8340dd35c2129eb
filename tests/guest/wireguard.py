"""Uploads through WireGuard, which needs a kernel with it: test_stock_kernels.py runs this in a guest."""

from __future__ import annotations

from typing import Final

from polling import eventually
from proxy_world import LONG, ethernet_with, hosts, send_rates, serving
from second_interface import TWO_CLIENTS, add_second_interface_of_wireguard, send_small_pulses

from mptcp_throttle.model import RateKind
from mptcp_throttle.units import Rate

NETWORKS: Final = ethernet_with({RateKind.CAP: None, RateKind.UPLINK_CAP: Rate.parse("1mbit")})


def test_capped_uplink_through_wireguard_carries_its_cap() -> None:
    with hosts(TWO_CLIENTS) as built:
        add_second_interface_of_wireguard(built)
        second = built.lab.clients["second"]
        send_small_pulses(second)
        with serving(built, NETWORKS, interfaces=("eth0", "wg0")) as world:
            world.upload(LONG, second)
            eventually(lambda: world.services.status()["daemon"]["capped_uplinks"] == 1, "an uplink capped")
            eventually(lambda: send_rates(second, 1)["eth0"] < 1.5e6, "what was queued is sent")
            rates = send_rates(second, 10)
            assert 0.3e6 < rates["eth0"] < 1.5e6  # an emulated processor beside others does not always carry the cap
            assert rates["wlan0"] > 2 * rates["eth0"]
            counters = world.services.status()["daemon"]["features"]["uplinks"]["counters"]
            assert counters["repeated"] > 0
            assert counters["not_repeated"] == 0
