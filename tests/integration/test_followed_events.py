"""`mptcp-throttle events`: what happens to a real daemon is told to followers, and none of them holds it up."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from polling import eventually
from proxy_world import EXECUTABLES, Hosts, ProxyWorld, attended, unique

from mptcp_lab.topology import ETHERNET as ETHERNET_LINK
from mptcp_lab.wall_clock import ServicesWithClock
from mptcp_throttle.rpc.wire import MAX_EVENTS


@pytest.fixture
def services(hosts: Hosts) -> ServicesWithClock:
    return ServicesWithClock(hosts.lab.proxy, name=unique("events"))


@pytest.fixture
def world(hosts: Hosts, services: ServicesWithClock) -> Iterator[ProxyWorld]:
    with attended(hosts, services) as running, services:
        yield running


class Follower:
    """A process that follows the events, as JSON in a file, from the start of the daemon on."""

    def __init__(self, world: ProxyWorld) -> None:
        self._output = world.services.directory / "events.json"
        command = (*command_line(world), "--follow", "--json")
        self.process = world.proxy.start("events", *command, output=self._output, machine_files=True)
        self.wait("daemon-started")

    def lines(self) -> list[dict[str, Any]]:
        """What it has printed."""
        return [json.loads(line) for line in self._output.read_text().splitlines()]

    def wait(self, kind: str, network: str | None = None) -> dict[str, Any]:
        """The first event of a kind, once it is printed."""

        def found() -> list[dict[str, Any]]:
            return [line for line in self.lines() if (line["kind"], line["network"]) == (kind, network)]

        eventually(lambda: bool(found()), f"the event {kind}", within=10, seen=self.lines)
        return found()[0]


def command_line(world: ProxyWorld) -> tuple[str, ...]:
    return str(EXECUTABLES / "mptcp-throttle"), "--config", str(world.services.config), "events"


def test_follower_is_told_what_happens_through_a_restart(world: ProxyWorld, services: ServicesWithClock) -> None:
    follower = Follower(world)
    world.begin_capped()
    began, client = follower.wait("cap-began", "ethernet"), str(world.lab.client.address(ETHERNET_LINK, 4))
    assert began["text"] == f"ethernet: cap 1mbit for {client}: wifi is live"
    services.cli("set-rate", "ethernet", "2mbit", "--for", "1h")
    by_hand = follower.wait("rate-set-by-hand", "ethernet")
    assert by_hand["text"].startswith("ethernet: cap 2mbit by hand, until ")
    assert 3500 < by_hand["until"] - time.time() <= 3600

    begin = (datetime.now() + timedelta(hours=2)).replace(second=0, microsecond=0)
    (file,) = services.directory.rglob("ethernet.yaml")
    with file.open("a", encoding="utf-8") as network:
        network.write(f'schedule: [{{when: "{begin:%H:%M}-{begin + timedelta(hours=3):%H:%M}", cap: 3mbit}}]\n')
    services.cli("reload")
    assert "schedule" in follower.wait("configuration-reloaded")["text"]
    services.set_ahead((begin - timedelta(seconds=1.5)).timestamp() - time.time())
    window = follower.wait("window-began", "ethernet")
    assert window["text"].endswith(": cap 3mbit")
    assert begin.timestamp() <= window["at"] < begin.timestamp() + 1

    instance, printed = window["instance"], len(follower.lines())
    world.daemon.stop()
    eventually(lambda: "waiting for the daemon: " in follower.process.log_text(), "missed")
    world.start_daemon()
    eventually(lambda: follower.lines()[-1]["instance"] != instance, "told of the other instance")
    started = follower.lines()[printed]
    assert (started["kind"], started["number"]) == ("daemon-started", 1)
    assert started["text"] == "throttling on eth0, networks wifi, ethernet"
    numbers = [(line["instance"], line["number"], line["missed"]) for line in follower.lines()]
    assert numbers[:printed] == [(instance, n + 1, 0) for n in range(printed)]

    os.kill(follower.process.pid, signal.SIGINT)
    assert follower.process.wait(30) == 130
    assert "Traceback" not in follower.process.log_text()
    recent = services.cli("events", "--number", "1000").stdout.splitlines()
    assert recent[0].endswith("  daemon-started          throttling on eth0, networks wifi, ethernet")


def test_follower_ends_with_the_reader_of_its_pipe(world: ProxyWorld) -> None:
    script = '"$@" --follow --number 1 | head -n 1; echo "status ${PIPESTATUS[0]}"'
    process = world.proxy.start("piped", "bash", "-c", script, "bash", *command_line(world), machine_files=True)
    assert process.wait(15) == 0
    first, second = process.log_text().splitlines()
    assert " daemon-started " in first
    assert second == "status 141"


def test_reader_that_does_not_read_holds_up_no_request(world: ProxyWorld) -> None:
    command = (*command_line(world), "--follow", "--json", "--number", "1")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        fcntl.fcntl(reader.stdout, fcntl.F_SETPIPE_SZ, 4096)
        (started,) = [json.loads(reader.stdout.readline())]
        answers = []
        for _ in range(MAX_EVENTS):
            began = time.monotonic()
            world.services.ask("reload")
            answers.append(time.monotonic() - began)
        assert max(answers) < 1
        latest = world.services.ask("events")["latest"]
        assert latest >= started["number"] + MAX_EVENTS
        expected, lines = started["number"] + 1, []
        for line in reader.stdout:
            event = json.loads(line)
            assert event["number"] == expected + event["missed"]
            expected = event["number"] + 1
            lines.append(event)
            if event["number"] == latest:
                break
        reader.send_signal(signal.SIGTERM)
    assert sum(event["missed"] for event in lines) == latest - started["number"] - len(lines) > 0
