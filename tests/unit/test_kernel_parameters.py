"""How `mptcp-throttle doctor` judges kernel parameters, some of which depend on the kernel version."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest
from examples import examined_host

from mptcp_throttle.cli.doctor import kernel_checks
from mptcp_throttle.cli.doctor.kernel_checks import Limits, judge_limits


@pytest.mark.parametrize(
    ("release", "respects"),
    [("6.1.0-37-amd64", False), ("6.8.12", False), ("6.9.0", True), ("6.12.48+deb13-amd64", True), ("7.0-rc1", True)],
)
def test_tcp_notsent_lowat_is_used_from_kernel_6_9_on(
    monkeypatch: pytest.MonkeyPatch, release: str, respects: bool
) -> None:
    monkeypatch.setattr(platform, "release", lambda: release)
    assert kernel_checks.respects_notsent_lowat() == respects


@pytest.mark.parametrize(
    ("release", "unsent", "single_pages", "remedy"),
    [
        ("6.12.1", "16384", "0", None),
        (
            "6.12.1",
            "4294967295",
            "1",
            "net.ipv4.tcp_notsent_lowat in /usr/lib/sysctl.d/30-mptcp-throttle.conf: run `sysctl --system`",
        ),
        (
            "6.1.0",
            "16384",
            "0",
            "install /usr/share/doc/mptcp-throttle/examples/mptcp-throttle-before-6.9.conf in /etc/sysctl.d, and run "
            "`sysctl --system`",
        ),
        ("6.1.0", "4294967295", "1", None),
        ("6.1.0", "16384", None, None),
    ],
)
def test_unsent_data_is_judged_by_the_parameter_of_this_kernel(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    release: str,
    unsent: str,
    single_pages: str | None,
    remedy: str | None,
) -> None:
    monkeypatch.setattr(platform, "release", lambda: release)
    for name, text in (("_UNSENT", unsent), ("_SINGLE_PAGES", single_pages)):
        if text is not None:
            (tmp_path / name).write_text(text + "\n")
        monkeypatch.setattr(kernel_checks, name, tmp_path / name)
    (finding,) = kernel_checks.unsent_data(examined_host())
    assert finding.subject == "unsent data"
    assert finding.remedy == remedy
    assert (finding.problem is None, finding.harm) == (remedy is None, remedy is None)


@pytest.mark.parametrize(
    ("subflows", "add_addr_accepted", "networks", "expected"),
    [
        (1, 0, 2, []),
        (0, 0, 1, []),
        (0, 0, 2, [("are refused", True)]),
        (0, 8, 2, [("are refused", True)]),
        (2, 0, 4, [("are refused after the first 2 of a connection", False)]),
        (2, 1, 2, [("are opened by the proxy itself, to up to 1 addresses that a client announces", False)]),
    ],
)
def test_limits_are_judged_by_the_number_of_access_networks(
    subflows: int, add_addr_accepted: int, networks: int, expected: list[tuple[str, bool]]
) -> None:
    findings = judge_limits(Limits(subflows, add_addr_accepted), networks)
    assert [(finding.problem, finding.harm) for finding in findings] == expected


@pytest.mark.parametrize(
    ("parameters", "managers"),
    [
        ({"path_manager": "kernel", "pm_type": "0"}, []),
        ({"path_manager": "userspace", "pm_type": "1"}, ["userspace"]),
        ({"path_manager": "loaded", "pm_type": "0"}, ["loaded"]),
        ({"pm_type": "0"}, []),
        ({"pm_type": "1"}, ["userspace"]),
        ({}, []),
    ],
)
def test_path_manager_is_known_by_the_parameter_of_this_kernel(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, parameters: dict[str, str], managers: list[str]
) -> None:
    for name, value in parameters.items():
        (tmp_path / name).write_text(value + "\n")
    monkeypatch.setattr(kernel_checks, "_MPTCP", tmp_path)
    monkeypatch.setattr(kernel_checks, "read_limits", lambda: Limits(2, 0))
    monkeypatch.setattr(kernel_checks, "receives_events", lambda: False)
    problems = [finding.problem for finding in kernel_checks._path_manager(networks=2)]
    assert problems == [
        f"are decided by the path manager {name!r}, which may refuse them or open some" for name in managers
    ]
