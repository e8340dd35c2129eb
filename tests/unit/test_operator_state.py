import json
from dataclasses import replace
from pathlib import Path

import pytest
from examples import ETHERNET, WIFI, network

from mptcp_throttle.errors import UserError
from mptcp_throttle.units import Rate
from mptcp_throttled.operator_state import OperatorState, OperatorStore, Pause
from mptcp_throttled.policy.decide import RateKind
from mptcp_throttled.policy.overrides import Override

FIVE = Rate.parse("5mbit")
LIMITED = network("lte", 4, 2, cap="1mbit", limit="8mbit")
NETWORKS = (WIFI, ETHERNET, LIMITED)


def store(directory: Path) -> OperatorStore:
    return OperatorStore(directory / "overrides.json", NETWORKS)


def cap(name: str, rate: Rate | None, expires_at: float | None = None) -> Override:
    return Override(name, RateKind.CAP, rate, expires_at)


def test_override_replaces_an_earlier_one_until_reset(tmp_path: Path) -> None:
    wishes = store(tmp_path)
    wishes.set(cap("lte", FIVE))
    wishes.set(cap("ethernet", FIVE))
    wishes.set(cap("ethernet", None))
    assert wishes.current(0).overrides == (cap("lte", FIVE), cap("ethernet", None))
    wishes.reset("ethernet")
    assert wishes.current(0).overrides == (cap("lte", FIVE),)


def test_operator_state_survives_a_restart_and_expires(tmp_path: Path) -> None:
    before = store(tmp_path)
    before.set(cap("ethernet", FIVE, expires_at=100.0))
    before.pause(Pause(200.0))
    again = store(tmp_path)
    assert again.current(99.9) == OperatorState((cap("ethernet", FIVE, 100.0),), Pause(200.0))
    assert again.current(100.0) == OperatorState(pause=Pause(200.0))
    assert again.current(200.0) == OperatorState()
    assert store(tmp_path).current(0) == OperatorState()


def test_pause_lasts_until_resumed_and_both_are_idempotent(tmp_path: Path) -> None:
    wishes = store(tmp_path)
    for _ in range(2):
        wishes.pause(Pause(None))
        assert store(tmp_path).current(1e10) == OperatorState(pause=Pause(None))
    wishes.pause(Pause(100.0))
    assert wishes.current(99.9).pause == Pause(100.0)
    for _ in range(2):
        wishes.pause(None)
        assert store(tmp_path).current(0) == OperatorState()


def test_next_expiry_is_the_earliest_one() -> None:
    overrides = (cap("lte", FIVE, 100.0), cap("ethernet", FIVE))
    assert OperatorState().next_expiry is None
    assert OperatorState(overrides[1:], Pause(None)).next_expiry is None
    assert OperatorState(overrides, Pause(90.0)).next_expiry == 90.0
    assert OperatorState(overrides, Pause(110.0)).next_expiry == 100.0


def test_invalid_override_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    wishes = store(tmp_path)
    wishes.set(cap("ethernet", FIVE))
    with pytest.raises(UserError, match="lte: cap 9mbit would be more than limit 8mbit"):
        wishes.set(cap("lte", Rate.parse("9mbit")))
    with pytest.raises(UserError, match="dsl: no such access network; allowed: wifi, ethernet, lte"):
        wishes.reset("dsl")
    assert wishes.current(0).overrides == (cap("ethernet", FIVE),)


def test_overrides_that_no_longer_fit_are_dropped_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    wishes = store(tmp_path)
    wider = Override("lte", RateKind.LIMIT, Rate.parse("20mbit"), None)
    wishes.set(cap("ethernet", FIVE))
    wishes.set(wider)
    wishes.set(cap("lte", Rate.parse("9mbit")))
    assert wishes.adopt(NETWORKS) == ()
    assert wishes.adopt((WIFI, replace(ETHERNET, limit=Rate.parse("3mbit")), LIMITED)) == (
        "override of ethernet cap dropped: ethernet: cap 5mbit would be more than limit 3mbit; allowed: up to it",
    )
    assert wishes.adopt((ETHERNET, replace(LIMITED, preference=1))) == (
        "override of lte cap dropped: lte: is a most preferred network, where a cap never applies; allowed: --limit",
    )
    assert wishes.current(0).overrides == store(tmp_path).current(0).overrides == (wider,)
    again = OperatorStore(tmp_path / "overrides.json", (WIFI, ETHERNET))
    assert again.current(0) == store(tmp_path).current(0) == OperatorState()
    assert len(caplog.messages) == 3
    assert caplog.messages[-1] == (
        "override of lte limit dropped: lte: no such access network; allowed: wifi, ethernet"
    )


def saved(rate: str, expires_at: str) -> str:
    item = f'{{"network": "lte", "rule": "cap", "rate_bps": {rate}, "expires_at": {expires_at}}}'
    return f'{{"version": 1, "overrides": [{item}]}}'


def test_file_of_version_1_is_read_and_written_as_version_2(tmp_path: Path) -> None:
    path = tmp_path / "overrides.json"
    path.write_text(saved("5000000", "100.0"))
    wishes = store(tmp_path)
    assert wishes.current(0) == OperatorState((cap("lte", FIVE, 100.0),))
    wishes.pause(Pause(None))
    assert json.loads(path.read_text())["version"] == 2
    assert store(tmp_path).current(0) == OperatorState((cap("lte", FIVE, 100.0),), Pause(None))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "[" * 100_000,
        '{"version": 3, "overrides": []}',
        '{"version": 1}',
        saved("1e400", "null"),
        saved("8000000", "1e400"),
        saved("8000000", "NaN"),
        saved("8000000", '"tomorrow"'),
        '{"version": 2, "overrides": [], "pause": true}',
        '{"version": 2, "overrides": [], "pause": {"expires_at": NaN}}',
    ],
)
def test_unusable_file_means_an_empty_operator_state(tmp_path: Path, text: str) -> None:
    (tmp_path / "overrides.json").write_text(text)
    assert store(tmp_path).current(0) == OperatorState()


def test_expiry_takes_effect_even_if_it_cannot_be_written(tmp_path: Path) -> None:
    directory = tmp_path / "state"
    directory.mkdir()
    wishes = store(directory)
    wishes.set(cap("ethernet", FIVE, expires_at=100.0))
    wishes.pause(Pause(100.0))
    (directory / "overrides.json").unlink()
    directory.rmdir()
    assert wishes.current(100.0) == OperatorState()


def test_change_that_cannot_be_written_does_not_take_effect(tmp_path: Path) -> None:
    wishes = OperatorStore(tmp_path / "missing" / "overrides.json", NETWORKS)
    with pytest.raises(UserError, match="cannot be written"):
        wishes.set(cap("ethernet", FIVE))
    with pytest.raises(UserError, match="cannot be written"):
        wishes.pause(Pause(None))
    assert wishes.current(0) == OperatorState()
