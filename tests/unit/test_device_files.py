"""Files of devices: what they configure, and which are refused, alone or beside networks and other devices."""

from __future__ import annotations

import shutil
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Final

import pytest
from config_files import SERVICE, write_config
from hypothesis import given
from hypothesis import strategies as st

from mptcp_throttle.config import device_files
from mptcp_throttle.config.changes import changes
from mptcp_throttle.config.load import config_paths, load_config
from mptcp_throttle.config.schema import Config
from mptcp_throttle.errors import ConfigError
from mptcp_throttle.model import AccessNetwork, RateKind
from mptcp_throttle.units import Rate

REPOSITORY: Final = Path(__file__).parents[2]
LTE: Final = "name: lte\nsubnets: [10.1.0.0/24, 'fd00:1::/48']\npreference: 2\ncap: 1mbit\nlimit: 8mbit\n"
WIFI: Final = "name: wifi\nsubnets: [10.2.0.0/24, 10.1.0.128/25]\npreference: 1\n"
PHONE: Final = """\
name: phone
networks:
  lte:
    addresses: [10.1.0.17, 'fd00:1:0:7::5', 10.1.0.18]
    cap: 5mbit
    limit: unlimited
    uplink: {cap: null}
  wifi: {addresses: [10.2.0.16/28]}
"""
TABLET: Final = "name: tablet\nnetworks: {lte: {addresses: [10.1.0.19]}}\n"


def written(directory: Path, *devices: str, service: str = SERVICE, lte: str = LTE) -> Path:
    files = directory / "clients.d"
    shutil.rmtree(files, ignore_errors=True)
    files.mkdir()
    for number, text in enumerate(devices):
        (files / f"{number}.yaml").write_text(text)
    return write_config(directory, service, lte=lte, wifi=WIFI)


def loaded(directory: Path, *devices: str, lte: str = LTE) -> Config:
    return load_config(written(directory, *devices, lte=lte))


def lte_of(config: Config) -> AccessNetwork:
    network = config.network("lte")
    assert network is not None
    return network


def refusals(directory: Path, *devices: str, lte: str = LTE, service: str = SERVICE) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_config(written(directory, *devices, lte=lte, service=service))
    return [line.replace(f"{directory}/clients.d/", "") for line in caught.value.problems]


def device(name: str = "phone", **networks: str) -> str:
    lines = (f"  {network}: {{{text}}}\n" for network, text in networks.items())
    return f"name: {name}\nnetworks:\n{''.join(lines)}"


def with_budget(text: str) -> str:
    return f"{PHONE}budgets: [{{{text}}}]\n"


def test_budget_of_a_device_is_for_all_its_networks_or_for_some(tmp_path: Path) -> None:
    both = with_budget("amount: 5GB, then: {cap: 256kbit}")
    one = with_budget("amount: 5GB, networks: [lte], every: week, rolling: true, then: {limit: 1mbit}")
    config = loaded(tmp_path, both)
    (budget,) = config.devices[0].budgets
    assert (budget.networks, budget.owner, budget.key) == (("lte", "wifi"), "device", "device both month")
    wifi = config.network("wifi")
    assert wifi is not None
    assert [network.devices.clients[0].budgets for network in (lte_of(config), wifi)] == [(budget,), (budget,)]
    changed = loaded(tmp_path, one)
    assert [str(change) for change in changes(config, changed)] == [
        "device phone: budgets (device both month) removed",
        "device phone: budgets (device both rolling week) added",
    ]


@pytest.mark.parametrize(
    ("budget", "problem"),
    [
        ("then: {cap: 256kbit}", "amount: is required"),
        ("amount: 5GB, per: client, then: {cap: 256kbit}", "per: 'client': unknown key; allowed: "),
        ("amount: 5GB, networks: [], then: {cap: 256kbit}", "networks: []: allowed: a list of 1 to 64 access networks"),
        (
            "amount: 5GB, networks: [lte, dsl], then: {cap: 256kbit}",
            "networks[1]: 'dsl': the device has no address there; allowed: lte, wifi",
        ),
        ("amount: 5GB, networks: [lte, lte], then: {cap: 256kbit}", "networks: "),
        (
            "amount: 5GB, starts: Mon, then: {cap: 256kbit}",
            "starts: Mon: does not fit every: month; allowed: null, or a number from 1 to 31",
        ),
        (
            "amount: 5GB, networks: [wifi], then: {cap: 256kbit}",
            "then.cap: 256kbit: never applies on a most preferred network; allowed: limit instead",
        ),
        (
            "amount: 5GB, then: {cap: 5mbit}",
            "then.cap: 5mbit: is not less than the cap 5mbit of lte; allowed: less",
        ),
        ("amount: 5GB, then: {}", "then: has no rate; allowed: cap, limit and uplink in it"),
    ],
)
def test_budget_of_a_device_with_an_error_is_refused(tmp_path: Path, budget: str, problem: str) -> None:
    (line,) = refusals(tmp_path, with_budget(budget))
    assert line.startswith(f"0.yaml:9: budgets[0].{problem}")


def test_budgets_of_a_device_that_cannot_be_told_apart_are_refused(tmp_path: Path) -> None:
    text = f"{PHONE}budgets: [{{amount: 5GB, then: {{cap: 1mbit}}}}, {{amount: 9GB, then: {{cap: 1mbit}}}}]\n"
    (line,) = refusals(tmp_path, text)
    assert line == ("0.yaml:9: budgets[1]: has the direction and every of an earlier budget; allowed: one such budget")


def test_budget_of_a_device_needs_the_sockets_of_the_proxy(tmp_path: Path) -> None:
    (line,) = refusals(
        tmp_path,
        with_budget("amount: 5GB, then: {cap: 256kbit}"),
        service=f"{SERVICE}sniffer: {{kernel_view: false}}\n",
    )
    assert line.startswith("0.yaml:9: budgets: needs sniffer.kernel_view: true")


def test_device_is_a_client_of_each_of_its_networks(tmp_path: Path) -> None:
    config = loaded(tmp_path, PHONE, TABLET)
    (phone, tablet), lte = lte_of(config).devices.clients, lte_of(config)
    assert [each.name for each in config.devices] == ["phone", "tablet"]
    assert list(map(str, phone.prefixes)) == ["10.1.0.17/32", "10.1.0.18/32", "fd00:1:0:7::/64"]
    assert phone.rates == {RateKind.CAP: Rate(5_000_000), RateKind.LIMIT: None, RateKind.UPLINK_CAP: None}
    assert (tablet.name, tablet.rates) == ("tablet", {})
    for address in ("10.1.0.17", "10.1.0.18", "fd00:1:0:7:1234::1"):
        assert lte.client(ip_address(address)) == ip_address("10.1.0.17")
    assert lte.client(ip_address("10.1.0.20")) == ip_address("10.1.0.20")
    wifi = config.network("wifi")
    assert wifi is not None
    assert [each.name for each in wifi.devices.clients] == ["phone"]
    assert wifi.client(ip_address("10.2.0.31")) == ip_address("10.2.0.16")


def test_rate_without_its_key_is_none_of_the_device(tmp_path: Path) -> None:
    (phone,) = lte_of(loaded(tmp_path, device(lte="addresses: [10.1.0.2], cap: null"))).devices.clients
    assert phone.rates == {RateKind.CAP: None}


def test_addresses_are_joined_by_the_client_prefix_of_the_network(tmp_path: Path) -> None:
    addresses = device(lte="addresses: [10.1.0.2, 10.1.0.3, 10.1.0.0/28]")
    (phone,) = lte_of(loaded(tmp_path, addresses, lte=LTE + "client_prefix: {ipv4: 30}\n")).devices.clients
    assert phone.prefixes == (ip_network("10.1.0.0/28"),)


def test_without_the_directory_there_are_no_devices(tmp_path: Path) -> None:
    path = write_config(tmp_path, SERVICE + "clients_directory: elsewhere\n", lte=LTE, wifi=WIFI)
    assert load_config(path).devices == ()
    assert not any("elsewhere" in str(each) for each in config_paths(path))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/a.yml").write_text(PHONE)
    assert [each.name for each in load_config(path).devices] == ["phone"]
    assert {tmp_path / "elsewhere", tmp_path / "elsewhere/a.yml"} < {*config_paths(path)}


@pytest.mark.parametrize("name", [".phone.yaml", "phone.yaml~", "phone.yaml.dpkg-old"])
def test_hidden_files_and_copies_are_ignored(tmp_path: Path, name: str) -> None:
    path = written(tmp_path)
    (tmp_path / "clients.d" / name).write_text("{")
    assert load_config(path).devices == ()


def test_directory_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    path = write_config(tmp_path, SERVICE + "clients_directory: service.yaml\n", lte=LTE, wifi=WIFI)
    with pytest.raises(ConfigError, match=r"service\.yaml:2: clients_directory: .*: cannot be read: Not a directory"):
        load_config(path)


def test_shipped_example_is_valid_with_the_shipped_networks(tmp_path: Path) -> None:
    shutil.copytree(REPOSITORY / "config/networks.d", tmp_path / "networks.d")
    shutil.copytree(REPOSITORY / "config/examples/clients.d", tmp_path / "clients.d")
    shutil.copy(REPOSITORY / "config/mptcp-throttle.yaml", tmp_path)
    (alice,) = load_config(tmp_path / "mptcp-throttle.yaml").devices
    assert alice.rates["lte"][RateKind.UPLINK_CAP] == Rate(1_000_000)


SOME: Final = "addresses: [10.1.0.2]"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", ": is empty; allowed: a mapping of options"),
        ("name: phone\n", ":1: networks: is required"),
        ("networks: {lte: {addresses: [10.1.0.2]}}\n", ":1: name: is required"),
        (device("Phone", lte=SOME), ":1: name: 'Phone': allowed: up to 32 of a-z, 0-9, - and _, no - or _ first"),
        (device("10.1.0.2", lte=SOME), ":1: name: '10.1.0.2': allowed: up to 32 of a-z"),
        (device("fd00::1", lte=SOME), ":1: name: 'fd00::1': allowed: up to 32 of a-z"),
        (device("lte", lte=SOME), ":1: name: lte: is taken by an access network; allowed: a different name for each"),
        ("name: phone\nnetworks: {}\n", ":2: networks: {}: allowed: 1 to 64 access networks by their names"),
        ("name: phone\nnetworks: [lte]\n", ":2: networks: ['lte']: allowed: 1 to 64 access networks by their names"),
        (device(dsl=SOME), ":3: networks.dsl: is not an access network; allowed: wifi, lte"),
        (device(lte="cap: 1mbit"), ":3: networks.lte.addresses: is required"),
        (device(lte="addresses: []"), ":3: networks.lte.addresses: []: allowed: a list of 1 to 64 addresses"),
        (
            device(lte="addresses: [phone]"),
            ":3: networks.lte.addresses[0]: 'phone': is not an address; allowed: such as",
        ),
        (device(lte="addresses: [10.1.0.17/24]"), ":3: networks.lte.addresses[0]: '10.1.0.17/24': is not a subnet"),
        (device(lte="addresses: ['fe80::1%eth0']"), ":3: networks.lte.addresses[0]: 'fe80::1%eth0': has a zone"),
        (device(lte=f"{SOME}, cap: fast"), ":3: networks.lte.cap: 'fast': is not a rate; allowed: "),
        (device(lte=f"{SOME}, colour: red"), ":3: networks.lte.colour: 'red': unknown key; allowed: addresses, cap, "),
        (
            device(lte=f"{SOME}, uplink: {{up: 1mbit}}"),
            ":3: networks.lte.uplink.up: '1mbit': unknown key; allowed: cap",
        ),
        (
            device(lte="addresses: [10.1.0.2, 10.2.0.2]"),
            ":3: networks.lte.addresses[1]: 10.2.0.2: is in wifi; allowed: an address or a prefix in lte",
        ),
        # The longest of the subnets around an address counts.
        (device(lte="addresses: [10.1.0.130]"), ":3: networks.lte.addresses[0]: 10.1.0.130: is in wifi; allowed: "),
        (device(lte="addresses: [10.0.0.0/8]"), ":3: networks.lte.addresses[0]: 10.0.0.0/8: is in no access network; "),
        (
            device(wifi="addresses: [10.2.0.2], cap: 1mbit"),
            ":3: networks.wifi.cap: 1mbit: never applies on a most preferred network; allowed: null, or limit instead",
        ),
        (
            device(lte=f"{SOME}, cap: 9mbit"),
            ":3: networks.lte.cap: 9mbit: is more than the limit of lte; allowed: up to 8mbit",
        ),
        (
            device(lte=f"{SOME}, cap: 3mbit, limit: 2mbit"),
            ":3: networks.lte.cap: 3mbit: is more than limit; allowed: up to 2mbit",
        ),
        (
            device(lte=f"{SOME}, limit: 500kbit"),
            ":3: networks.lte.limit: 500kbit: is less than the cap 1mbit of lte; allowed: as much, or a lower cap",
        ),
        (
            device(lte=f"{SOME}, uplink: {{cap: 3mbit, limit: 2mbit}}"),
            ":3: networks.lte.uplink.cap: 3mbit: is more than limit; allowed: up to 2mbit",
        ),
    ],
)
def test_device_that_is_wrong_is_refused_in_one_line(tmp_path: Path, text: str, line: str) -> None:
    (problem,) = refusals(tmp_path, text)
    assert problem.startswith(f"0.yaml{line}")


def test_cap_above_the_limit_of_a_window_is_refused(tmp_path: Path) -> None:
    window = LTE + "schedule: [{when: '08:00-18:00', limit: 2mbit}]\n"
    assert refusals(tmp_path, device(lte=f"{SOME}, cap: 3mbit"), lte=window) == [
        "0.yaml:3: networks.lte.cap: 3mbit: is more than the limit of lte (08:00-18:00); allowed: up to 2mbit"
    ]
    assert loaded(tmp_path, device(lte=f"{SOME}, cap: 3mbit, limit: 4mbit"), lte=window).devices


def test_cap_may_be_null_on_a_most_preferred_network(tmp_path: Path) -> None:
    assert loaded(tmp_path, device(wifi="addresses: [10.2.0.2], cap: unlimited, limit: 2mbit")).devices


@pytest.mark.parametrize(
    ("first", "second", "more", "line"),
    [
        ("10.1.0.2", "10.1.0.2", "", "10.1.0.2: belongs to device a (0.yaml:3)"),
        ("10.1.0.0/28", "10.1.0.2", "", "10.1.0.2: belongs to device a (0.yaml:3)"),
        (
            "'fd00:1:0:7::5'",
            "'fd00:1:0:7::6'",
            "",
            "fd00:1:0:7::6: belongs to device a (0.yaml:3), as client_prefix.ipv6 of lte is 64",
        ),
        (
            "10.1.0.2",
            "10.1.0.3",
            "client_prefix: {ipv4: 24}\n",
            "10.1.0.3: belongs to device a (0.yaml:3), as client_prefix.ipv4 of lte is 24",
        ),
    ],
)
def test_address_of_two_devices_is_refused(tmp_path: Path, first: str, second: str, more: str, line: str) -> None:
    devices = device("a", lte=f"addresses: [{first}]"), device("b", lte=f"addresses: [10.1.0.99, {second}]")
    network = LTE.replace("10.1.0.0/24", "10.1.0.0/25") + more
    named = [each for each in refusals(tmp_path, *devices, lte=network) if f"{second.strip(chr(39))}:" in each]
    assert named == [f"1.yaml:3: networks.lte.addresses[1]: {line}; allowed: each address in one device"]


def test_prefix_in_networks_of_two_proxies_may_be_of_two_devices(tmp_path: Path) -> None:
    service = "proxies: {work: {interface: eth0, ports: [80]}, guests: {interface: eth1, ports: [81]}}\n"
    networks = {
        name: f"name: {name}\nsubnets: [10.1.0.0/24]\npreference: 1\nproxy: {name}\n" for name in ("work", "guests")
    }
    path = written(tmp_path, device("a", work=SOME), device("b", guests=SOME))
    path = write_config(tmp_path, service, **networks)
    found = [network.devices.clients[0].name for network in load_config(path).networks]
    assert sorted(found) == ["a", "b"]


def test_name_of_two_devices_is_refused_with_both_files(tmp_path: Path) -> None:
    (problem,) = refusals(tmp_path, device(lte=SOME), device(lte="addresses: [10.1.0.3]"))
    taken = "1.yaml:1: name: phone: is taken by 0.yaml"
    assert problem == f"{taken}; allowed: a different name for each device and access network"


def test_reload_parses_changed_files_only(tmp_path: Path) -> None:
    before = loaded(tmp_path, PHONE, TABLET).devices
    phone, tablet = loaded(tmp_path, PHONE, TABLET.replace("10.1.0.19", "10.1.0.20")).devices
    assert phone is before[0]
    assert tablet.addresses["lte"] == (ip_network("10.1.0.20/32"),)


def test_of_many_problems_the_first_are_named(tmp_path: Path) -> None:
    *named, rest = refusals(tmp_path, *["{"] * 15)
    assert [line.partition(":")[0] for line in named] == sorted(f"{number}.yaml" for number in range(15))[:10]
    assert rest == "5 more problems of devices; allowed: files without any"


def test_problems_of_devices_and_of_other_files_are_reported_at_once(tmp_path: Path) -> None:
    lines = refusals(tmp_path, "name: 5\n", service=SERVICE + "colour: red\n")
    assert [line.rpartition("/")[2].partition(": ")[0] for line in lines[:3]] == [
        "service.yaml:2",
        "0.yaml:1",
        "0.yaml:1",
    ]


def test_devices_and_their_addresses_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    devices = PHONE, TABLET
    monkeypatch.setattr(device_files, "_MAX_PREFIXES", 4)
    assert refusals(tmp_path, *devices) == [
        f"{tmp_path}/clients.d: 5 addresses of all devices together; allowed: up to 4"
    ]
    monkeypatch.setattr(device_files, "MAX_DEVICES", 1)
    assert refusals(tmp_path, *devices) == [f"{tmp_path}/clients.d: 2 devices; allowed: up to 1"]


ADDRESSES: Final = st.lists(st.integers(0, 40).map("10.1.0.{}".format), min_size=1, max_size=5)


@given(st.lists(ADDRESSES, min_size=1, max_size=4))
def test_each_address_is_in_the_device_that_names_it_or_is_refused(
    tmp_path_factory: pytest.TempPathFactory, addresses: list[list[str]]
) -> None:
    directory = tmp_path_factory.mktemp("devices")
    devices = [device(f"d{n}", lte=f"addresses: [{', '.join(each)}]") for n, each in enumerate(addresses)]
    every = [address for each in addresses for address in {*each}]
    if len({*every}) < len(every):
        assert any("belongs to device" in line for line in refusals(directory, *devices))
        return
    network = lte_of(loaded(directory, *devices))
    for number in range(41):
        client = network.devices.find(ip_address(f"10.1.0.{number}"))
        owners = [f"d{n}" for n, each in enumerate(addresses) if f"10.1.0.{number}" in each]
        assert owners == ([] if client is None else [client.name])


def lines(before: Config, after: Config) -> list[str]:
    differences = changes(before, after)
    assert not any(change.restart for change in differences)
    return list(map(str, differences))


def test_changes_of_devices_are_named(tmp_path: Path) -> None:
    before = loaded(tmp_path, PHONE, TABLET)
    changed = PHONE.replace("5mbit", "4mbit").replace("    limit: unlimited\n", "").replace(", 10.1.0.18", "")
    assert lines(before, loaded(tmp_path, changed, device("watch", lte=SOME))) == [
        "device tablet removed",
        "device watch added",
        "device phone: lte.addresses 10.1.0.17, fd00:1:0:7::5, 10.1.0.18 -> 10.1.0.17, fd00:1:0:7::5",
        "device phone: lte.cap 5mbit -> 4mbit",
        "device phone: lte.limit null -> (that of the network)",
    ]
    without = device(
        lte="addresses: [10.1.0.17, 'fd00:1:0:7::5', 10.1.0.18], cap: 5mbit, limit: null, uplink: {cap: null}"
    )
    assert lines(before, loaded(tmp_path, TABLET, without)) == ["device phone: wifi.addresses removed"]


def test_of_many_changed_devices_the_number_is_named(tmp_path: Path) -> None:
    few, many = [
        [device(f"d{n}", lte=f"addresses: [10.1.0.{n}], cap: {rate}") for n in range(30)] for rate in ("1mbit", "2mbit")
    ]
    before, after, none = loaded(tmp_path, *few), loaded(tmp_path, *many), loaded(tmp_path)
    *named, rest = lines(before, after)
    assert (len(named), rest) == (20, "10 more devices changed")
    assert lines(none, before) == ["30 devices added"]
    assert lines(before, none) == ["30 devices removed"]
