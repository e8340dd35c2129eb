"""The demo's choice of a classifier reaches the services of its scenarios, and no other scenario."""

from __future__ import annotations

import socket
from contextlib import closing
from pathlib import Path

import pytest
from page_server import canned_daemon, first_event
from polling import eventually

from mptcp_lab import demo
from mptcp_lab.free_port import free_port
from mptcp_lab.scenario.files import chosen
from mptcp_lab.scenario.plan import Addresses
from mptcp_lab.scenario.scenario_schema import Method
from mptcp_lab.scenario.stage import THESIS
from mptcp_lab.watched_page import watching
from mptcp_throttle.config.load import load_config
from mptcp_throttle.config.schema import Sockets
from mptcp_throttle.errors import UserError
from mptcp_throttle.model import ClassifierKind


@pytest.mark.parametrize("situation", demo.FULL_SITUATIONS)
def test_chosen_marks_are_those_of_the_services(situation: str) -> None:
    (experiment,) = chosen([f"demo/{situation}:short"])
    throttle = demo._with_classifier(experiment, ClassifierKind.RULES).scenario.throttle
    assert (throttle is None) == (experiment.scenario.throttle is None)
    assert throttle is None or throttle.classifier is ClassifierKind.RULES


def test_demo_of_the_thesis_has_the_networks_of_its_configuration() -> None:
    experiments = [chosen([f"demo/{name}:short"])[0].scenario for name in demo.BOTH_METHODS]
    throttles = [scenario.throttle for scenario in experiments if scenario.throttle is not None]
    assert [throttle.method for throttle in throttles] == [Method.DEFAULT, Method.THESIS]
    config = load_config(THESIS)
    links = Addresses(experiments[1])
    for name, network in throttles[1].networks.items():
        ours = config.network(name)
        assert ours is not None
        assert (network.preference, network.per, network.rates) == (ours.preference, ours.per, ours.rates)
        assert ours.subnets == (links.subnet(network.link, 4),)


def test_demo_of_the_thesis_keeps_its_classifier() -> None:
    (experiment,) = chosen(["demo/as-in-the-thesis:short"])
    assert demo._with_classifier(experiment, ClassifierKind.NFT) is experiment


def test_watched_page_shows_the_daemon_that_runs(tmp_path: Path) -> None:
    port = free_port()
    with watching(tmp_path / "page", port) as watch:
        assert watch.address == f"http://127.0.0.1:{port}/"
        assert first_event(port)["problem"] is not None
        for name in ("first", "second"):
            with canned_daemon(tmp_path / name):
                watch.follow(Sockets.below(tmp_path / name / "run").daemon)
                eventually(lambda: first_event(port)["problem"] is None, "the daemon is shown")
            eventually(lambda: first_event(port)["problem"] is not None, "it is missed")


@pytest.mark.parametrize("port", [-1, 0, 65536, 99999])
def test_watching_on_what_is_no_port_is_refused(tmp_path: Path, port: int) -> None:
    with pytest.raises(UserError, match=f"^--watch {port}: is no port; allowed: 1 to 65535$"), watching(tmp_path, port):
        pass
    assert list(tmp_path.iterdir()) == []


def test_watching_on_a_port_that_is_taken_is_refused(tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        port = other.getsockname()[1]
        with pytest.raises(UserError, match=f"--watch {port}: Address already in use"), watching(tmp_path, port):
            pass
