"""What `mptcp-throttle doctor` says of a service, from what systemctl shows."""

from __future__ import annotations

from pathlib import Path

import pytest
from examples import examined_host

from mptcp_throttle import systemd_unit
from mptcp_throttle.cli.doctor import service_checks
from mptcp_throttle.programs import ProgramFailed
from mptcp_throttle.systemd_unit import Unit, parse_unit, read_unit

RUNNING = """\
Id=mptcp-throttled.service
LoadState=loaded
ActiveState=active
SubState=running
Result=success
ExecMainCode=0
ExecMainStatus=0
ExecMainPID=4711
NRestarts=0
User=mptcp-throttled
Group=mptcp-throttled
SupplementaryGroups=mptcp-throttle mptcp-xtables
"""


def shown(**changed: str) -> str:
    """What systemctl shows, with these properties instead."""
    properties = dict(line.split("=", 1) for line in RUNNING.splitlines())
    return "".join(f"{name}={value}\n" for name, value in (properties | changed).items())


def test_unit_is_read_whatever_the_order_of_its_properties() -> None:
    unit = parse_unit(RUNNING)
    assert parse_unit("".join(reversed(RUNNING.splitlines(keepends=True)))) == unit
    assert (unit.User, unit.SupplementaryGroups) == ("mptcp-throttled", "mptcp-throttle mptcp-xtables")
    with pytest.raises(ProgramFailed, match="systemctl: shows no NRestarts"):
        parse_unit(RUNNING.replace("NRestarts=0\n", ""))


@pytest.mark.parametrize(
    ("properties", "last_exit"),
    [
        (
            {"ExecMainCode": "1", "ExecMainStatus": "78", "Result": "exit-code"},
            "exit status 78 (the configuration is invalid)",
        ),
        ({"ExecMainCode": "1", "ExecMainStatus": "203", "Result": "exit-code"}, "exit status 203"),
        ({"ExecMainCode": "2", "ExecMainStatus": "9", "Result": "signal"}, "SIGKILL"),
        ({"ExecMainCode": "2", "ExecMainStatus": "9", "Result": "oom-kill"}, "oom-kill, SIGKILL"),
        ({"ExecMainCode": "3", "ExecMainStatus": "6", "Result": "watchdog"}, "watchdog, SIGABRT"),
        (
            {"ExecMainCode": "1", "ExecMainStatus": "77", "Result": "start-limit-hit"},
            "start-limit-hit, exit status 77 (a capability or a file permission is missing)",
        ),
        ({"Result": "resources"}, "resources"),
    ],
)
def test_last_exit_says_how_the_service_ended(properties: dict[str, str], last_exit: str) -> None:
    assert parse_unit(shown(**properties)).last_exit == last_exit


@pytest.fixture
def systemd(monkeypatch: pytest.MonkeyPatch) -> dict[str, str | ProgramFailed | None]:
    """What the programs of systemd print here; None: the program is not installed."""
    answers: dict[str, str | ProgramFailed | None] = {"systemctl": RUNNING, "journalctl": "the reason\n"}

    def answer(name: str, *_: str) -> str | None:
        reply = answers[name]
        if isinstance(reply, ProgramFailed):
            raise reply
        return reply

    monkeypatch.setattr(systemd_unit, "output_of", answer)
    monkeypatch.setattr(systemd_unit, "_RUNNING", Path("/"))
    return answers


def problems() -> set[tuple[str | None, bool]]:
    """Of the services, without the clean-up."""
    return {
        (finding.problem or finding.unchecked, finding.harm)
        for finding in list(service_checks.units(examined_host()))[:2]
    }


FAILED = shown(ActiveState="failed", SubState="failed", ExecMainCode="1", ExecMainStatus="78", Result="exit-code")
RESTARTING = FAILED.replace("ActiveState=failed", "ActiveState=activating").replace(
    "SubState=failed", "SubState=auto-restart"
)
EXIT = "has failed: exit status 78 (the configuration is invalid)"


@pytest.mark.parametrize(
    ("systemctl", "journalctl", "problem", "harm"),
    [
        (RUNNING, "", None, True),
        (FAILED, "one:\n two\n", f"{EXIT}; its last line: one: two", True),
        (RESTARTING, "the reason", f"{EXIT}; its last line: the reason", True),
        (FAILED, "", f"{EXIT}; the journal has no line of it", True),
        (FAILED, None, f"{EXIT}; the journal has no line of it", True),
        (FAILED, "-- No entries --\n", f"{EXIT}; the journal has no line of it", True),
        (FAILED, ProgramFailed("journalctl: no"), f"{EXIT}; its last line cannot be read: journalctl: no", True),
        (shown(NRestarts="3"), "", "has failed before; restarts since then: 3", False),
        (shown(ActiveState="inactive", SubState="dead"), "", "is not started", False),
        (shown(ActiveState="activating", SubState="start"), "", "is activating", False),
        (shown(ActiveState="reloading", SubState="reload"), "", None, True),
        (shown(LoadState="masked", ActiveState="inactive"), "", "cannot be started: masked", False),
        (ProgramFailed("systemctl: no bus"), "", "systemctl: no bus", True),
    ],
)
def test_units_that_fail_are_reported_with_their_last_exit(
    systemd: dict[str, str | ProgramFailed | None],
    systemctl: str | ProgramFailed,
    journalctl: str | ProgramFailed | None,
    problem: str | None,
    harm: bool,
) -> None:
    systemd.update(systemctl=systemctl, journalctl=journalctl)
    assert problems() == {(problem, harm)}


def test_clean_up_is_reported_only_if_it_has_failed(systemd: dict[str, str | ProgramFailed | None]) -> None:
    systemd["systemctl"] = shown(ActiveState="inactive", SubState="dead")
    assert len(list(service_checks.units(examined_host()))) == 2
    systemd["systemctl"] = shown(ActiveState="failed", Result="exit-code", ExecMainPID="0")
    *_, clean_up = service_checks.units(examined_host())
    assert (clean_up.problem, clean_up.harm) == ("has failed: exit-code; its last line: the reason", False)


@pytest.mark.parametrize("systemctl", [None, shown(LoadState="not-found")])
def test_host_without_our_units_has_nothing_to_report(
    systemd: dict[str, str | ProgramFailed | None], systemctl: str | None
) -> None:
    systemd["systemctl"] = systemctl
    assert problems() == set()


@pytest.mark.usefixtures("systemd")
def test_host_without_systemd_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(read_unit("mptcp-throttled"), Unit)
    monkeypatch.setattr(systemd_unit, "_RUNNING", Path("/no/such"))
    assert read_unit("mptcp-throttled") is None
