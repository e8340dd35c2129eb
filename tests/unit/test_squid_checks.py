"""What `mptcp-throttle doctor` says of Squid's configuration."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from examples import examined_host

from mptcp_throttle.cli.doctor import squid_checks
from mptcp_throttle.findings import Finding
from mptcp_throttle.units import Rate

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where Squid's configuration is, if the test writes it."""
    path = tmp_path / "squid.conf"
    monkeypatch.setattr(squid_checks, "_CONFIGURATION", path)
    return path


def findings() -> list[Finding]:
    """Of a host where an access network has a rate for uplinks."""
    host = examined_host()
    capped = replace(host.config.networks[-1], uplink_cap=Rate.parse("1mbit"))
    return list(squid_checks.uploads(replace(host, config=replace(host.config, networks=(capped,)))))


def test_host_without_squid_has_nothing_to_report(configuration: Path) -> None:
    assert not configuration.exists()
    assert findings() == []


def test_host_without_rates_for_uplinks_has_nothing_to_report(configuration: Path) -> None:
    configuration.write_text("http_port 8080\n")
    assert list(squid_checks.uploads(examined_host())) == []


def test_shipped_configuration_is_enough(configuration: Path) -> None:
    configuration.write_text(f"http_port 8080\ninclude {REPOSITORY}/config/squid/*.conf\n")
    (finding,) = findings()
    assert (finding.problem, finding.unchecked) == (None, None)


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
    ],
)
def test_small_buffer_is_a_note_with_its_remedy(configuration: Path, lines: str, is_enough: bool) -> None:
    configuration.write_text(f"{lines}\nhttp_port 8080\n")
    (finding,) = findings()
    assert (finding.problem is None) is is_enough
    assert not (finding.problem and finding.harm)


def test_file_that_includes_itself_is_read(configuration: Path) -> None:
    configuration.write_text(f"include {configuration}\nclient_request_buffer_max_size 64 MB\n")
    (finding,) = findings()
    assert finding.problem is None


def test_configuration_that_cannot_be_read_is_not_checked(configuration: Path) -> None:
    configuration.mkdir()
    (finding,) = findings()
    assert finding.unchecked == f"{configuration}: cannot be read: Is a directory"
