from pathlib import Path

import pytest

from mptcp_throttle.config import load_config
from mptcp_throttle.errors import ConfigError
from mptcp_throttle.model import Per
from mptcp_throttle.units import Rate

REPOSITORY = Path(__file__).parents[2]

SERVICE = "proxy: {interface: eth0, ports: [8080]}\n"
ETHERNET = "name: ethernet\nsubnets: [10.1.0.0/24, 'fd00:1::/64']\npreference: 2\ncap: 1mbit\n"
WIFI = "name: wifi\nsubnets: [10.2.0.0/24]\npreference: 1\n"


def write(directory: Path, service: str, **networks: str) -> Path:
    (directory / "networks.d").mkdir()
    for name, text in networks.items():
        (directory / "networks.d" / f"{name}.yaml").write_text(text)
    path = directory / "service.yaml"
    path.write_text(service)
    return path


def problems(directory: Path, service: str, **networks: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_config(write(directory, service, **networks))
    return [line.replace(f"{directory}/", "") for line in caught.value.problems]


def test_networks_come_in_order_of_preference_with_defaults_filled_in(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, SERVICE, ethernet=ETHERNET, wifi=WIFI))
    assert [network.name for network in config.networks] == ["wifi", "ethernet"]
    ethernet = config.network("ethernet")
    assert ethernet is not None
    assert ethernet.cap == Rate(1_000_000)
    assert ethernet.limit is None
    assert ethernet.per is Per.CLIENT
    assert config.proxy.ports == (8080,)
    assert config.daemon.mark_mask == 0xFFFF0000


@pytest.mark.parametrize("path", ["config/mptcp-throttle.yaml", "config/examples/seed/mptcp-throttle.yaml"])
def test_the_shipped_configurations_are_valid(path: str) -> None:
    assert load_config(REPOSITORY / path).networks


def test_the_seeds_set_up_is_what_the_seed_had() -> None:
    config = load_config(REPOSITORY / "config/examples/seed/mptcp-throttle.yaml")
    ethernet, wifi = config.network("ethernet"), config.network("wifi")
    assert ethernet is not None
    assert wifi is not None
    assert (ethernet.cap, wifi.limit, config.daemon.other_traffic) == (
        Rate(1_000_000),
        Rate(40_000_000),
        Rate(50_000_000),
    )
    assert config.proxy.ports == (8080,)


@pytest.mark.parametrize(
    ("service", "line"),
    [
        (SERVICE + "colour: red\n", "service.yaml:2: colour: 'red': unknown key; allowed: daemon, "),
        (
            SERVICE + "sniffer: {histroy: 5}\n",
            "service.yaml:2: sniffer.histroy: 5: unknown key; allowed: audit_interval, capture_buffer, ",
        ),
        ("proxy: {interface: eth0, ports: ['a']}\n", "service.yaml:1: proxy.ports[0]: 'a': allowed: a valid integer"),
        ("proxy: {interface: eth0, ports: []}\n", "service.yaml:1: proxy.ports: []: allowed: have at least 1 item"),
        (
            "proxy: {interface: eth0, ports: [0]}\n",
            "service.yaml:1: proxy.ports[0]: 0: allowed: greater than or equal to 1",
        ),
        ("proxy: {ports: [8080]}\n", "service.yaml:1: proxy.interface: is required"),
        ("proxy: 5\n", "service.yaml:1: proxy: 5: is not a mapping; allowed: lines of the form"),
        (SERVICE + "daemon: {linger: 5}\n", "service.yaml:2: daemon.linger: 5: is not a duration; allowed: "),
        (
            SERVICE + "daemon: {audit_interval: 1ms}\n",
            "service.yaml:2: daemon.audit_interval: '1ms': is too small; allowed: ",
        ),
        (
            SERVICE + "daemon: {mark_mask: 0xf0f0}\n",
            "service.yaml:2: daemon.mark_mask: 61680: allowed: 8 to 16 adjacent bits",
        ),
        (SERVICE + "daemon: {other_traffic: 0}\n", "service.yaml:2: daemon.other_traffic: 0: is not a rate; allowed: "),
        (SERVICE + SERVICE, "service.yaml:2: proxy: is given twice (first in line 1)"),
        ("", "service.yaml: is empty; allowed: a mapping of options"),
        ("# nothing\n", "service.yaml: is empty; allowed: a mapping of options"),
        ("- a\n", "service.yaml:1: is not a mapping; allowed: "),
        ("a: b: c\n", "service.yaml:1: is not valid YAML: "),
        (
            SERVICE + "networks_directory: elsewhere\n",
            "service.yaml:2: networks_directory: elsewhere: cannot be read: No such",
        ),
    ],
)
def test_a_bad_service_file_is_refused_in_one_line(tmp_path: Path, service: str, line: str) -> None:
    found = problems(tmp_path, service, ethernet=ETHERNET)
    assert len(found) == 1
    assert found[0].startswith(line)


@pytest.mark.parametrize(
    ("network", "line"),
    [
        (ETHERNET + "limitt: 3\n", "networks.d/e.yaml:5: limitt: 3: unknown key; allowed: cap, limit, name, per, "),
        (ETHERNET.replace("1mbit", "0"), "networks.d/e.yaml:4: cap: 0: is not a rate; allowed: a number with bit"),
        (ETHERNET.replace("1mbit", "-1mbit"), "networks.d/e.yaml:4: cap: '-1mbit': is not a rate; allowed: a number"),
        (ETHERNET + "limit: 500kbit\n", "networks.d/e.yaml:4: cap: 1mbit: is more than limit; allowed: up to 500kbit"),
        (ETHERNET + "per: host\n", "networks.d/e.yaml:5: per: 'host': allowed: network, client, subflow"),
        (
            ETHERNET.replace("preference: 2", "preference: 0"),
            "networks.d/e.yaml:3: preference: 0: allowed: greater than",
        ),
        (
            ETHERNET.replace("preference: 2", "preference: yes"),
            "networks.d/e.yaml:3: preference: True: allowed: a valid",
        ),
        (
            ETHERNET.replace("10.1.0.0/24", "10.1.0.1/24"),
            "networks.d/e.yaml:2: subnets[0]: '10.1.0.1/24': is not a subnet",
        ),
        (ETHERNET.replace("name: ethernet", "name: Ether net"), "networks.d/e.yaml:1: name: 'Ether net': allowed: "),
        ("", "networks.d/e.yaml: is empty; allowed: a mapping of options"),
    ],
)
def test_a_bad_network_file_is_refused_in_one_line(tmp_path: Path, network: str, line: str) -> None:
    found = problems(tmp_path, SERVICE, e=network)
    assert len(found) == 1
    assert found[0].startswith(line)


def test_all_problems_are_reported_at_once(tmp_path: Path) -> None:
    assert len(problems(tmp_path, SERVICE, e="name: e\npreference: x\n", f=ETHERNET + "per: host\n")) == 3


def test_overlapping_subnets_name_both_places(tmp_path: Path) -> None:
    assert problems(tmp_path, SERVICE, ethernet=ETHERNET, wifi=WIFI.replace("10.2.0.0/24", "10.0.0.0/8")) == [
        "networks.d/wifi.yaml:2: subnets[0]: 10.0.0.0/8: overlaps 10.1.0.0/24 of networks.d/ethernet.yaml:2;"
        " allowed: subnets that have no address in common"
    ]


def test_two_networks_may_not_share_a_name(tmp_path: Path) -> None:
    found = problems(tmp_path, SERVICE, a=WIFI, b=WIFI.replace("10.2.0.0", "10.3.0.0"))
    assert found[0].startswith("networks.d/b.yaml:1: name: wifi: is taken by ")


def test_without_any_network_there_is_nothing_to_do(tmp_path: Path) -> None:
    assert problems(tmp_path, SERVICE) == [
        "networks.d: has no access network; allowed: one NAME.yaml per access network"
    ]


def test_an_unreadable_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^.*missing.yaml: cannot be read: No such file or directory$"):
        load_config(tmp_path / "missing.yaml")


def test_a_file_that_is_not_text_is_one_line(tmp_path: Path) -> None:
    path = write(tmp_path, SERVICE, ethernet=ETHERNET)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="is not UTF-8 text"):
        load_config(path)
