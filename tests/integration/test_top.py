"""`mptcp-throttle top` in a real terminal, beside a real transfer."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
from contextlib import closing
from typing import Final

from polling import eventually
from proxy_world import EXECUTABLES, FREE, ProxyWorld

COLUMNS: Final = 80
_CONTROL: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_CURSOR_HOME: Final = "\x1b[H"


class Terminal:
    """`top` in a terminal of 80 columns and 24 lines."""

    def __init__(self, world: ProxyWorld) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
        self._before = termios.tcgetattr(slave)
        command = [str(EXECUTABLES / "mptcp-throttle"), "--config", str(world.services.config), "top"]
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": str(COLUMNS), "LINES": "24", "LC_ALL": "C.UTF-8"}
        self._slave = slave
        self.process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment)
        self.output = ""

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._master)
        os.close(self._slave)

    def read(self) -> str:
        """All that has been printed since the last `press`."""
        while select.select([self._master], [], [], 0)[0]:
            self.output += os.read(self._master, 65536).decode(errors="replace")
        return _CONTROL.sub("", self.output.replace(_CURSOR_HOME, "\n"))  # a screen follows another in the same place

    def press(self, keys: str) -> None:
        """Type."""
        self.read()
        self.output = ""
        os.write(self._master, keys.encode())

    def is_as_before(self) -> bool:
        """Whether the settings of the terminal are those before the start."""
        return termios.tcgetattr(self._slave) == self._before


def test_live_view_shows_the_cap_and_takes_keys(world: ProxyWorld) -> None:
    world.begin_capped()
    with closing(Terminal(world)) as terminal:
        eventually(lambda: "cap: wifi is live" in terminal.read(), "the capped subflow")
        terminal.press("s")
        eventually(lambda: "sorted by received" in terminal.read(), "sorted otherwise")
        terminal.press("/cap\r")
        eventually(lambda: "filter 'cap'" in terminal.read(), "filtered")
        terminal.press("p")
        eventually(lambda: ", paused" in terminal.read(), "paused")
        assert max(len(line) for line in terminal.read().splitlines()) <= COLUMNS
        terminal.press("p")
        world.daemon.stop()
        eventually(lambda: "not up to date" in terminal.read(), "the daemon is missed")
        world.start_daemon()
        terminal.press("")
        eventually(lambda: "1 connections" in terminal.read() and "not up" not in terminal.read()[-2000:], "back")
        terminal.press("q")
        assert terminal.process.wait(10) == 0
        assert terminal.is_as_before()
        assert "Traceback" not in terminal.read()


def test_once_prints_what_ss_measures_and_needs_no_terminal(world: ProxyWorld) -> None:
    world.begin_settled()

    def use() -> int:
        printed = world.services.cli("top", "--once", "--filter", "cap").stdout
        found = re.search(r"port \d+ .*? (\d+) %.* cap: wifi is live", printed)
        return int(found[1]) if found else 0

    eventually(lambda: 70 < use() < 130, "what the cap allows")
    answer = world.services.cli_json("top")
    (wifi,) = (network for network in answer["networks"] if network["name"] == "wifi")
    assert wifi["clients"][0]["sent_bps"] > FREE
    (subflow,) = wifi["clients"][0]["subflows"]
    measured = world.acked_rate(subflow["client_port"], 3)
    eventually(lambda: abs(sent_over_wifi(world) / measured - 1) < 0.25, "the rate that ss shows")
    # Without a terminal:
    refused = world.services.cli("top", check=False)
    assert (refused.returncode, refused.stderr) == (2, "top: needs a terminal; allowed without one: top --once\n")


def sent_over_wifi(world: ProxyWorld) -> float:
    """Bits of payload per second, as `top` shows them."""
    answer = world.services.cli_json("top")
    return sum(float(network["sent_bps"]) for network in answer["networks"] if network["name"] == "wifi")
