"""The demo's choice of a mark back end reaches the services of its scenarios, and no other scenario."""

from __future__ import annotations

import socket
from contextlib import closing
from pathlib import Path

import pytest
from page_server import canned_daemon, first_event, free_port
from polling import eventually

from mptcp_lab import demo
from mptcp_lab.scenario.files import chosen
from mptcp_lab.watched_page import watching
from mptcp_throttle.config.schema import Sockets
from mptcp_throttle.errors import UserError
from mptcp_throttle.model import ClassifierKind


@pytest.mark.parametrize("situation", demo.FULL_SITUATIONS)
def test_chosen_marks_are_those_of_the_services(situation: str) -> None:
    (experiment,) = chosen([f"demo/{situation}:short"])
    throttle = demo._with_classifier(experiment, ClassifierKind.RULES).scenario.throttle
    assert (throttle is None) == (experiment.scenario.throttle is None)
    assert throttle is None or throttle.classifier is ClassifierKind.RULES


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
