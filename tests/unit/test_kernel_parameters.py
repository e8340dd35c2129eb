"""How `mptcp-throttle doctor` judges kernel parameters, some of which depend on the kernel version."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest
from examples import examined_host

from mptcp_throttle.cli.doctor import kernel_checks


@pytest.mark.parametrize(
    ("release", "heeds"),
    [("6.1.0-37-amd64", False), ("6.8.12", False), ("6.9.0", True), ("6.12.48+deb13-amd64", True), ("7.0-rc1", True)],
)
def test_tcp_notsent_lowat_is_used_from_kernel_6_9_on(
    monkeypatch: pytest.MonkeyPatch, release: str, heeds: bool
) -> None:
    monkeypatch.setattr(platform, "release", lambda: release)
    assert kernel_checks.heeds_notsent_lowat() == heeds


@pytest.mark.parametrize(
    ("release", "unsent", "single_pages", "remedy"),
    [
        ("6.12.1", "16384", "0", None),
        ("6.12.1", "4294967295", "1", "net.ipv4.tcp_notsent_lowat in systemd/sysctl.d/mptcp-throttle.conf"),
        ("6.1.0", "16384", "0", "net.core.high_order_alloc_disable in systemd/sysctl.d/mptcp-throttle-before-6.9.conf"),
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
