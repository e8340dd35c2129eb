"""A device with a cap of its own: its addresses share it, the other client keeps that of the network."""

from __future__ import annotations

import os
from typing import Final

from polling import eventually
from proxy_world import ProxyWorld, receive_rates

from mptcp_lab.topology import Client, ClientSpec, Topology

TOPOLOGY: Final = Topology(clients=(ClientSpec("one"), ClientSpec("two")))
CAP: Final = 1_000_000


def addresses_of(world: ProxyWorld, client: Client) -> tuple[str, str]:
    """Those over Ethernet: IPv4, IPv6."""
    ethernet = world.lab.topology.ethernet
    return str(client.address(ethernet, 4)), str(client.address(ethernet, 6))


def write_device(world: ProxyWorld, client: Client, *rates: str) -> None:
    """The client's file; the daemon reads it at the next reload."""
    directory = world.services.config.parent / "clients.d"
    directory.mkdir(exist_ok=True)
    addresses = ", ".join(f"'{address}'" for address in addresses_of(world, client))
    lines = [f"addresses: [{addresses}]", *rates]
    text = "\n".join(["name: phone", "networks:", "  ethernet:", *(f"    {line}" for line in lines)])
    (directory / "phone.yaml").write_text(f"{text}\n")


def caps(world: ProxyWorld) -> dict[str, int | None]:
    """The rates of the capped subflows, by address."""
    return {subflow.client: subflow.rate for subflow in world.capped()}


def test_budget_of_a_device_is_used_in_both_networks_and_narrows_it(world: ProxyWorld) -> None:
    phone, other = world.lab.clients.values()
    (v4, v6), (rest, _) = addresses_of(world, phone), addresses_of(world, other)
    over_wifi = str(phone.address(world.lab.topology.wifi, 4))
    directory = world.services.config.parent / "clients.d"
    directory.mkdir(exist_ok=True)
    (directory / "phone.yaml").write_text(
        "name: phone\nnetworks:\n"
        f"  ethernet: {{addresses: ['{v4}', '{v6}']}}\n  wifi: {{addresses: ['{over_wifi}']}}\n"
        "budgets: [{amount: 12MB, every: day, then: {cap: 256kbit}}]\n"
    )
    world.services.cli("reload")
    for client in (phone, other):
        world.download(client=client)
    world.wait_settled(2)
    eventually(lambda: caps(world) == {v4: 256_000, rest: CAP}, "spent by the phone alone", within=30)
    (spent,) = world.services.cli_json("budgets", "phone")["budgets"]
    assert (spent["device"], spent["networks"], spent["per"]) == ("phone", ["ethernet", "wifi"], "device")
    assert spent["used"] >= 12_000_000
    # The cap of Ethernet lets it carry an eighth of that in the time.
    history = world.services.cli_json("history", "ethernet")["periods"]
    assert sum(period["ip_sent"] for period in history) < 12_000_000
    explained = world.services.cli("explain", "phone", "ethernet").stdout
    assert "  cap: 256kbit (12 MB per day used" in explained
    assert "of this device in ethernet and wifi used" in explained
    world.services.cli("budget", "add", "phone", "1GB")
    eventually(lambda: caps(world) == {v4: CAP, rest: CAP}, "more added")
    events = world.services.ask("events")["events"]
    assert "budget-spent" in {event["kind"] for event in events if event["text"].startswith("device phone: ")}


def names(world: ProxyWorld) -> dict[str, str | None]:
    """The names of devices that `connections` gives for addresses over Ethernet."""
    connections = world.services.cli_json("connections")["connections"]
    subflows = (subflow for connection in connections for subflow in connection["subflows"])
    return {subflow["client"]: subflow["device"] for subflow in subflows if subflow["network"] == "ethernet"}


def test_addresses_of_a_device_share_its_own_cap_from_a_reload_on(world: ProxyWorld) -> None:
    phone, other = world.lab.clients.values()
    (v4, v6), (rest, _) = addresses_of(world, phone), addresses_of(world, other)
    for client in (phone, other):
        world.download(client=client)
    world.download(client=phone, family=6)
    world.wait_settled(3)
    assert names(world) == {v4: None, v6: None, rest: None}
    assert len(world.class_counters()) == 3

    write_device(world, phone, "cap: 4mbit")
    assert world.services.cli("reload").stdout == "reloaded: device phone added\n"
    eventually(lambda: caps(world) == {v4: 4 * CAP, v6: 4 * CAP, rest: CAP}, "the cap of the device", within=2)
    # Both downloads together have the rate once.
    eventually(lambda: 3.2e6 < receive_rates(phone, 3)["eth0"] < 4.5e6, "4 Mb/s for 3 s")
    assert receive_rates(other, 3)["eth0"] < 1.25e6
    assert names(world) == {v4: "phone", v6: "phone", rest: None}
    shown = world.services.cli("connections").stdout
    assert "(phone)" in shown
    assert "wifi is live; cap: own rate of the device" in shown
    for name in ("phone", v4, v6):
        explained = world.services.cli("explain", name, "ethernet").stdout
        assert f"phone in ethernet: {v4}, " in explained
        assert "ethernet, downloads: 4mbit for 2 subflows (wifi is live; cap: own rate of the device)\n" in explained
        assert "  cap: 4mbit (own rate of the device); otherwise 1mbit\n" in explained
    assert f"client={v4}:" in world.daemon.log_text()
    assert " device=phone network=ethernet direction=downlink rate=4mbit " in world.daemon.log_text()

    world.services.cli("set-rate", "--client", "phone", "ethernet", "2mbit")
    assert caps(world) == {v4: 2 * CAP, v6: 2 * CAP, rest: CAP}
    world.services.cli("reset-rate", "--client", "phone", "ethernet")
    assert caps(world) == {v4: 4 * CAP, v6: 4 * CAP, rest: CAP}


def test_invalid_device_changes_nothing_and_a_removed_one_loses_its_cap(world: ProxyWorld) -> None:
    phone, _ = world.lab.clients.values()
    v4, _ = addresses_of(world, phone)
    write_device(world, phone, "cap: 4mbit")
    world.services.cli("reload")
    world.begin_settled(phone)
    assert caps(world) == {v4: 4 * CAP}
    write_device(world, phone, "cap: fast")
    refused = world.services.cli("reload", check=False)
    file = world.services.config.parent / "clients.d/phone.yaml"
    assert (refused.returncode, refused.stdout) == (os.EX_CONFIG, "")
    assert refused.stderr.startswith(f"{file}:5: networks.ethernet.cap: 'fast': is not a rate; allowed: ")
    assert caps(world) == {v4: 4 * CAP}
    write_device(world, phone, "cap: 3mbit")
    assert world.services.cli("reload").stdout == "reloaded: device phone: ethernet.cap 4mbit -> 3mbit\n"
    eventually(lambda: caps(world) == {v4: 3 * CAP}, "the new cap", within=2)
    file.unlink()
    assert world.services.cli("reload").stdout == "reloaded: device phone removed\n"
    eventually(lambda: caps(world) == {v4: CAP}, "the cap of the network", within=2)
    eventually(lambda: receive_rates(phone, 3)["eth0"] < 1.25e6, "1 Mb/s for 3 s", within=20)
