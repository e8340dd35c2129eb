from dataclasses import replace
from pathlib import Path

import pytest
from worlds import configuration

from mptcp_throttle.errors import ConfigError
from mptcp_throttle.ports import Ports
from mptcp_throttle.proxies import Proxies
from mptcp_throttled.control.running_config import Judgement, RunningConfig, judge

CONFIG = configuration()
FASTER = configuration(linger="1s")
INTERFACE = Proxies.only(Ports.of([8080]), ("eth1",))
ELSEWHERE = replace(FASTER, proxies=INTERFACE, state_directory=Path("/y"))
INVALID = ConfigError(["lte.yaml:4: cap: 'fast': is not a rate", "lte.yaml:5: colour: unknown key"])


def test_reload_is_refused_as_a_whole_if_a_key_needs_a_restart() -> None:
    verdict = judge(CONFIG, ELSEWHERE)
    assert verdict.changes == ()
    assert verdict.valid
    assert verdict.problems == (
        "proxy.interfaces eth0 -> eth1: needs a restart of mptcp-sniffer and mptcp-throttled",
        "state_directory /var/lib/x -> /y: needs a restart of mptcp-throttled",
    )


def test_reload_tells_invalid_files_from_a_needed_restart() -> None:
    assert judge(CONFIG, INVALID) == Judgement(problems=tuple(INVALID.problems), valid=False)


def test_last_valid_configuration_stays_in_force_with_the_problem(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    settings = RunningConfig(CONFIG, 1.0)
    assert settings.status() == {"loaded_at": 1.0, "problems": []}
    for refused, count in ((INVALID, 2), (ELSEWHERE, 2)):
        caplog.clear()
        problems = settings.take(refused, 2.0).problems
        assert settings.config is CONFIG
        assert settings.status() == {"loaded_at": 1.0, "problems": list(problems)}
        assert caplog.messages == [f"reload refused: {problem}" for problem in problems]
        assert len(problems) == count
    caplog.clear()
    assert [str(change) for change in settings.take(FASTER, 3.0).changes] == ["daemon.linger 5s -> 1s"]
    assert settings.config is FASTER
    assert settings.status() == {"loaded_at": 3.0, "problems": []}
    settings.take(FASTER, 4.0)
    assert caplog.messages == ["reloaded: daemon.linger 5s -> 1s", "reloaded: nothing changed"]
