"""Subnets in files, as `subnets_file` of an access network names them."""

from __future__ import annotations

from ipaddress import ip_network
from pathlib import Path

import pytest
from config_files import write_config

from mptcp_throttle.config import network_files, subnets
from mptcp_throttle.config.changes import changes
from mptcp_throttle.config.load import config_paths, load_config
from mptcp_throttle.config.subnets import read_subnets
from mptcp_throttle.errors import ConfigError

KEY = "lte.yaml:3: subnets_file"
NO_ZONE = ", and packets never have one; allowed:"
LTE = "name: lte\npreference: 2\nsubnets_file: lte.subnets\n"
WIFI = "name: wifi\npreference: 1\nsubnets: [0.0.0.0/0, 172.20.0.0/24]\n"
MANY = "".join(f"10.{number >> 8}.{number & 255}.0/24\n" for number in range(3000))


def refused(directory: Path, content: str | bytes) -> list[str]:
    path = directory / "lte.subnets"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(ConfigError) as caught:
        read_subnets(path, KEY)
    return [line.replace(f"{directory}/", "") for line in caught.value.problems]


def configuration(directory: Path, content: str = MANY, lte: str = LTE) -> Path:
    path = write_config(directory, lte=lte, wifi=WIFI)
    (directory / "networks.d/lte.subnets").write_text(content)
    return path


def problems(path: Path) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    return [line.replace(f"{path.parent}/networks.d/", "") for line in caught.value.problems]


def test_subnets_are_read_without_comments_and_blank_lines(tmp_path: Path) -> None:
    path = tmp_path / "lte.subnets"
    path.write_text("# Bonn\n\n 10.1.0.0/24 # north\r\nfd00:1::/64\n10.1.0.7\n10.1.0.0/24\n")
    expected = {"10.1.0.0/24": 3, "fd00:1::/64": 4, "10.1.0.7/32": 5}
    assert read_subnets(path, KEY) == {ip_network(text): line for text, line in expected.items()}


@pytest.mark.parametrize(
    "content",
    [
        "\ufeff10.1.0.0/24\r\n10.2.0.0/24\r\n",
        "10.1.0.0/24\n\ufeff10.2.0.0/24\n",
        "\ufeff# Bonn\n10.1.0.0/24\n10.2.0.0/24",
    ],
)
def test_byte_order_mark_is_no_part_of_a_subnet(tmp_path: Path, content: str) -> None:
    path = tmp_path / "lte.subnets"
    path.write_bytes(content.encode())
    assert [str(subnet) for subnet in read_subnets(path, KEY)] == ["10.1.0.0/24", "10.2.0.0/24"]


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("10.1.0.1/24", "lte.subnets:1: '10.1.0.1/24': is not a subnet (10.1.0.1/24 has host bits set); allowed: 10"),
        ("\n10.1.0.0/24, x", "lte.subnets:2: '10.1.0.0/24, x': is not a subnet ('10.1.0.0/24, x' does not appear"),
        ("::ffff:10.1.0.0/120", "lte.subnets:1: '::ffff:10.1.0.0/120': is IPv4-mapped, and packets never have"),
        ("fe80::1%eth0", f"lte.subnets:1: 'fe80::1%eth0': has a zone (%eth0){NO_ZONE} fe80::1/128"),
        ("\nfe80::%2/64", f"lte.subnets:2: 'fe80::%2/64': has a zone (%2){NO_ZONE} fe80::/64"),
        ("# none\n", "lte.subnets: has no subnet; allowed: one subnet per line, up to 20000, and comments after #"),
        (b"10.1.0.0/24 # K\xf6ln", f"{KEY}: lte.subnets: is not UTF-8 text (byte 15)"),
        ("#" * (4 << 20) + "\n", f"{KEY}: lte.subnets: is too large; allowed: up to 4MiB"),
    ],
)
def test_subnets_file_with_an_error_is_refused_in_one_line(tmp_path: Path, content: str | bytes, line: str) -> None:
    (refusal,) = refused(tmp_path, content)
    assert refusal.startswith(line)


def test_subnets_file_of_another_kind_is_refused_in_a_few_lines(tmp_path: Path) -> None:
    refusals = refused(tmp_path, "<html>\n" * 500)
    assert len(refusals) == 11
    assert refusals[-1].startswith("lte.subnets: 490 more lines are not subnets; allowed: one subnet per line")


def test_subnets_file_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subnets, "MOST_IN_FILE", 2)
    (refusal,) = refused(tmp_path, "10.1.0.0/24\n10.2.0.0/24\n10.2.0.0/24\n10.3.0.0/24\n10.4.0.0/24\n")
    assert refusal.startswith("lte.subnets:4: '10.3.0.0/24': is one too many; allowed: one subnet per line, up to ")


def test_subnets_of_file_and_list_are_those_of_the_network(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("10.3.0.0/24\n10.1.0.0/24\n")
    path = configuration(tmp_path, lte=f"{LTE.replace('lte.subnets', str(elsewhere))}subnets: [10.1.0.0/24]\n")
    lte = load_config(path).networks[1]
    assert [str(subnet) for subnet in lte.subnets] == ["10.1.0.0/24", "10.3.0.0/24"]
    assert config_paths(path)[-1] == elsewhere


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("null", "lte.yaml:1: subnets: is required; allowed: subnets, subnets_file, or both"),
        ("none", "lte.yaml:3: subnets_file: none: cannot be read: No such file or directory"),
    ],
)
def test_network_without_any_subnet_is_refused(tmp_path: Path, file: str, line: str) -> None:
    assert problems(configuration(tmp_path, lte=LTE.replace("lte.subnets", file))) == [line]


def test_subnet_in_a_file_and_in_another_network_names_both_lines(tmp_path: Path) -> None:
    (refusal,) = problems(configuration(tmp_path, "10.1.0.0/24\n172.20.0.0/24\n"))
    assert refusal.startswith("wifi.yaml:3: subnets[1]: 172.20.0.0/24: is a subnet of network lte too (")
    assert "(lte.subnets:2); allowed: each subnet in one network" in refusal


def test_same_subnets_in_two_files_are_a_bounded_report(tmp_path: Path) -> None:
    path = configuration(tmp_path)
    (tmp_path / "networks.d" / "dsl.yaml").write_text(LTE.replace("lte\n", "dsl\n", 1))
    refusals = problems(path)
    assert len(refusals) == 11
    assert refusals[10] == "2990 more subnets are in two networks; allowed: each subnet in one network"


def test_subnets_of_all_networks_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_files, "MOST_SUBNETS", 3001)
    (refusal,) = problems(configuration(tmp_path))
    assert refusal.endswith("networks.d: 3002 subnets in all networks together; allowed: up to 3001")


def test_changed_content_of_a_subnets_file_is_a_change(tmp_path: Path) -> None:
    before = load_config(configuration(tmp_path))
    assert changes(before, load_config(configuration(tmp_path, f"# again\n{MANY}"))) == ()
    after = load_config(configuration(tmp_path, "10.0.0.0/24\n172.16.0.0/12\n"))
    assert [str(change) for change in changes(before, after)] == [
        "network lte: 2999 subnets removed",
        "network lte: subnet 172.16.0.0/12 added",
    ]
