"""The figures of `benchmarks/join-latency`, from what the services noted."""

import pytest

from mptcp_lab.benchmarks.join_latency import networks, paired
from mptcp_lab.topology import WIFI
from mptcp_throttle.model import RateKind

ETHERNET_END, WIFI_END, TRANSFER = "10.1.0.2:5000->10.3.0.2:8080", "10.2.0.2:6000->10.3.0.2:8080", "10.2.0.2:1->x:8081"
SNIFFER = {
    "asked": {f"7 {ETHERNET_END}": 0.5, f"7 {WIFI_END}": 1.0, f"8 {TRANSFER}": 1.0},
    "proved": {f"7 {ETHERNET_END}": 0.6, f"7 {WIFI_END}": 1.25},
    "closed": {f"7 {ETHERNET_END}": 9.0, f"7 {WIFI_END}": 5.0},
}
DAEMON = {
    "delivered": {f"7 {WIFI_END}": 1.5},
    "paced": {ETHERNET_END: 2.0, WIFI_END: 3.0},
    "marked": {ETHERNET_END: 2.5, WIFI_END: 4.0},
}


@pytest.mark.parametrize(("joiner", "paced", "marked"), [(False, 1.0, 1.5), (True, 2.0, 3.0)])
def test_stages_of_a_join_are_those_of_the_capped_subflow(joiner: bool, paced: float, marked: float) -> None:
    assert list(paired(SNIFFER, DAEMON, joiner=joiner)) == [
        {"proved": 0.25, "delivered": 0.5, "paced": paced, "marked": marked, "closed": 4.0}
    ]


def test_stages_that_a_join_did_not_reach_are_left_out() -> None:
    assert list(paired(SNIFFER, {}, joiner=False)) == [{"proved": 0.25, "closed": 4.0}]


@pytest.mark.parametrize("joiner", [False, True])
def test_network_that_joins_is_capped_or_preferred(joiner: bool) -> None:
    preferred, capped = networks(joiner=joiner)
    assert (preferred.preference, preferred.rates) == (1, {})
    assert capped.preference == 2
    assert RateKind.CAP in capped.rates
    assert (capped.subnets[0] == WIFI.v4) == joiner
