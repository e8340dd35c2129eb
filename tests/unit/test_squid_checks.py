"""What `mptcp-throttle doctor` says of Squid's configuration."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from examples import examined_host

from mptcp_throttle.cli.doctor import proxy_checks
from mptcp_throttle.findings import Finding
from mptcp_throttle.model import RateKind
from mptcp_throttle.ports import Ports
from mptcp_throttle.units import Rate

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where Squid's configuration is, if the test writes it."""
    path = tmp_path / "squid.conf"
    monkeypatch.setattr(proxy_checks, "CONFIGURATION", path)
    return path


def findings() -> list[Finding]:
    """Of a host where an access network has a rate for uplinks."""
    host = examined_host()
    capped = host.config.networks[-1].with_rates({RateKind.UPLINK_CAP: Rate.parse("1mbit")})
    return list(proxy_checks.uploads(replace(host, config=replace(host.config, networks=(capped,)))))


def test_host_without_squid_or_rates_for_uplinks_has_nothing_to_report(configuration: Path) -> None:
    assert not configuration.exists()
    assert findings() == []
    configuration.write_text("http_port 8080\n")
    assert list(proxy_checks.uploads(examined_host())) == []


@pytest.mark.parametrize(
    ("lines", "is_enough"),
    [
        ("", False),
        ("# client_request_buffer_max_size 64 MB", False),
        ("client_request_buffer_max_size 512 KB", False),
        ("client_request_buffer_max_size 64 MB", True),
        ("client_request_buffer_max_size 0.5 GB", True),
        ("  client_request_buffer_max_size 67108864 bytes", True),
        ("client_request_buffer_max_size 64 MB\nclient_request_buffer_max_size 1 MB", False),
        ("include /no/such/*.conf", False),
        (f"include {REPOSITORY}/config/squid/*.conf", True),
        ("include {own}\nclient_request_buffer_max_size 64 MB", True),
    ],
)
def test_small_buffer_is_a_note_with_its_remedy(configuration: Path, lines: str, is_enough: bool) -> None:
    configuration.write_text(f"{lines.format(own=configuration)}\nhttp_port 8080\n")
    (finding,) = findings()
    assert (finding.problem is None, finding.unchecked) == (is_enough, None)
    assert not (finding.problem and finding.harm)


DEBIAN = "acl localnet src 10.0.0.0/8\nhttp_access deny manager\nhttp_access allow localhost\nhttp_access deny all\n"


@pytest.mark.parametrize(
    ("lines", "is_found"),
    [
        ("", True),
        ("# http_access allow localnet\n", True),
        ("http_access allow localhost manager\n", True),
        ("http_access allow localnet\n", False),
        ("http_access allow all\n", False),
    ],
)
def test_squid_that_serves_this_host_alone_is_a_note(configuration: Path, lines: str, is_found: bool) -> None:
    configuration.write_text(f"{lines}{DEBIAN}http_port 8080\n")
    (finding,) = proxy_checks.access(examined_host())
    assert (finding.problem is not None) is is_found
    assert finding.problem is None or (finding.remedy or "").startswith("`http_access allow` for the subnets")
    assert not (finding.problem and finding.harm)


def test_squid_on_other_ports_is_not_the_proxy(configuration: Path) -> None:
    assert list(proxy_checks.access(examined_host())) == []
    configuration.write_text(f"{DEBIAN}http_port 3128\n")
    assert list(proxy_checks.access(examined_host())) == []


@pytest.mark.parametrize(
    ("lines", "listed"),
    [
        ("http_port 3128\n", "3128"),
        ("http_port 10.0.0.1:3128 name=a\nhttp_port [::]:3129\n", "3128, 3129"),
        ("http_port 3128\nhttp_port 0.0.0.0:8080\n", None),
        ("# http_port 3128\n", None),
    ],
)
def test_port_without_a_listener_names_the_ports_of_squid(
    configuration: Path, monkeypatch: pytest.MonkeyPatch, lines: str, listed: str | None
) -> None:
    monkeypatch.setattr(proxy_checks, "_listening", lambda _: Ports())
    (without,) = proxy_checks.listeners(examined_host())
    configuration.write_text(lines)
    (finding,) = proxy_checks.listeners(examined_host())
    assert (finding.problem, finding.harm) == ("no process listens on it", True)
    hint = (
        f"; Squid's http_port is {listed}: set proxy.ports to it, or write `http_port 8080` into a file in"
        " /etc/squid/conf.d, and `http_access allow` for the subnets of the clients"
    )
    assert finding.remedy == f"{without.remedy}{'' if listed is None else hint}"


def test_configuration_that_cannot_be_read_is_not_checked(configuration: Path) -> None:
    configuration.mkdir()
    (finding,) = findings()
    assert finding.unchecked == f"{configuration}: cannot be read: Is a directory"
