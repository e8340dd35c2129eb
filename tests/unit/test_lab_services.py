"""The files that the lab's services are configured by say what the lab was asked for."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_network
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from mptcp_lab.services import WIFI_FIRST, Services
from mptcp_lab.topology import ETHERNET
from mptcp_throttle.config.load import load_config
from mptcp_throttle.model import Budget, Counting, Device, Every, Per, RateKind, Stage, Window
from mptcp_throttle.units import Rate
from mptcp_throttle.when import When

if TYPE_CHECKING:
    from pathlib import Path

STAGES = (Stage(0.5, {RateKind.CAP: Rate(500_000)}), Stage(1.0, {RateKind.CAP: Rate(256_000)}))


def test_files_of_the_lab_give_the_networks_and_devices_back(tmp_path: Path) -> None:
    wifi, ethernet = WIFI_FIRST
    night = Window(When.parse("01:00-06:00"), {RateKind.CAP: None, RateKind.UPLINK_LIMIT: Rate(8000)}, counts=False)
    budgets = tuple(
        Budget(5_000_000, Per.CLIENT, Counting.DOWN, every, starts, None, STAGES, rollover)
        for every, starts, rollover in ((Every.DAY, 0, False), (Every.WEEK, 3, True), (Every.MONTH, 15, False))
    )
    device = Device("phone", {"ethernet": (ip_network(ETHERNET.v4[7]),)}, {"ethernet": {RateKind.CAP: None}})
    networks = (wifi, replace(ethernet, schedule=(night,), budgets=budgets))
    proxy: Any = SimpleNamespace(directory=tmp_path)
    services = Services(proxy, networks, devices=[device], time_zone="UTC")
    config = load_config(services.config)
    assert str(config.time_zone) == "UTC"
    assert config.devices == (device,)
    read = config.network("ethernet")
    assert read is not None
    assert (read.schedule, read.budgets) == ((night,), budgets)
