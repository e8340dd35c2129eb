"""The demo's comparison with the thesis, on this machine's kernel."""

import json
import os
from pathlib import Path

from proxy_world import EXECUTABLES

from mptcp_lab.process import run


def test_demo_shows_the_default_beside_the_method_of_the_thesis(tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    command = (EXECUTABLES / "python", "-m", "mptcp_lab.demo", "--as-in-the-thesis")
    done = run([*command, "--output", tmp_path / "out", "--json", results], check=False, timeout=120)
    assert done.returncode == os.EX_OK, done.stdout + done.stderr
    default, thesis = json.loads(results.read_text())["runs"]
    assert (default["name"], thesis["name"]) == ("capped-1mbit", "as-in-the-thesis")
    assert thesis["goodput_mbps"] < default["goodput_mbps"]

    used = {name: log_of(tmp_path / "out", name) for name in (default["name"], thesis["name"])}
    assert "classifier in use: socket" in used["capped-1mbit"]
    assert "classifier in use: rules" in used["as-in-the-thesis"]


def log_of(out: Path, situation: str) -> str:
    return (out / "native/demo" / situation / "short/logs-1/mptcp-throttled.log").read_text()
