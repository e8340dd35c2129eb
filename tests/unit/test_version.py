"""`--version` of all programs."""

from __future__ import annotations

import os
import sys
import tomllib
from pathlib import Path

import pytest

import mptcp_lab.scenario.lab_cli
import mptcp_sniffer.main
import mptcp_throttle.cli
import mptcp_throttle.follow_namespace
import mptcp_throttle_web.main
import mptcp_throttled.main

PROJECT = Path(__file__).parents[2] / "pyproject.toml"
VERSION = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["version"]


@pytest.mark.parametrize(
    "name",
    [
        "mptcp-throttle",
        "mptcp-throttle-namespace",
        "mptcp-sniffer",
        "mptcp-throttled",
        "mptcp-throttle-web",
        "mptcp-lab",
    ],
)
def test_version_is_shown_by_every_program(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--version"])
    programs = {
        "mptcp-throttle": mptcp_throttle.cli.main,
        "mptcp-throttle-namespace": mptcp_throttle.follow_namespace.main,
        "mptcp-sniffer": mptcp_sniffer.main.main,
        "mptcp-throttled": mptcp_throttled.main.main,
        "mptcp-throttle-web": mptcp_throttle_web.main.main,
        "mptcp-lab": lambda: mptcp_lab.scenario.lab_cli.run("mptcp-lab"),
    }
    with pytest.raises(SystemExit) as end:
        programs[name]()
    assert (end.value.code, capsys.readouterr().out) == (os.EX_OK, f"{name} {VERSION}\n")
