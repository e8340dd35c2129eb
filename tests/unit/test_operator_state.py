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


def open_store(directory: Path) -> OperatorStore:
    return OperatorStore(directory / "overrides.json", NETWORKS)


def cap(name: str, rate: Rate | None, expires_at: float | None = None) -> Override:
    return Override(name, RateKind.CAP, rate, expires_at)


def test_override_replaces_an_earlier_one_until_reset(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.set(cap("lte", FIVE))
    store.set(cap("ethernet", FIVE))
    store.set(cap("ethernet", None))
    assert store.current(0).overrides == (cap("lte", FIVE), cap("ethernet", None))
    store.reset("ethernet")
    assert store.current(0).overrides == (cap("lte", FIVE),)


def test_operator_state_survives_a_restart_and_expires(tmp_path: Path) -> None:
    before = open_store(tmp_path)
    before.set(cap("ethernet", FIVE, expires_at=100.0))
    before.pause(Pause(200.0))
    again = open_store(tmp_path)
    assert again.current(99.9) == OperatorState((cap("ethernet", FIVE, 100.0),), Pause(200.0))
    assert again.current(100.0) == OperatorState(pause=Pause(200.0))
    assert again.current(200.0) == OperatorState()
    assert open_store(tmp_path).current(0) == OperatorState()


def test_pause_lasts_until_resumed_and_both_are_idempotent(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for _ in range(2):
        store.pause(Pause(None))
        assert open_store(tmp_path).current(1e10) == OperatorState(pause=Pause(None))
    store.pause(Pause(100.0))
    assert store.current(99.9).pause == Pause(100.0)
    for _ in range(2):
        store.pause(None)
        assert open_store(tmp_path).current(0) == OperatorState()


def test_next_expiry_is_the_earliest_one() -> None:
    overrides = (cap("lte", FIVE, 100.0), cap("ethernet", FIVE))
    assert OperatorState().next_expiry is None
    assert OperatorState(overrides[1:], Pause(None)).next_expiry is None
    assert OperatorState(overrides, Pause(90.0)).next_expiry == 90.0
    assert OperatorState(overrides, Pause(110.0)).next_expiry == 100.0


def test_invalid_override_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.set(cap("ethernet", FIVE))
    with pytest.raises(UserError, match="lte: cap 9mbit would be more than limit 8mbit"):
        store.set(cap("lte", Rate.parse("9mbit")))
    with pytest.raises(UserError, match="dsl: no such access network; allowed: wifi, ethernet, lte"):
        store.reset("dsl")
    assert store.current(0).overrides == (cap("ethernet", FIVE),)


def test_overrides_that_no_longer_fit_are_dropped_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = open_store(tmp_path)
    wider = Override("lte", RateKind.LIMIT, Rate.parse("20mbit"), None)
    store.set(cap("ethernet", FIVE))
    store.set(wider)
    store.set(cap("lte", Rate.parse("9mbit")))
    assert store.adopt(NETWORKS) == ()
    assert store.adopt((WIFI, replace(ETHERNET, limit=Rate.parse("3mbit")), LIMITED)) == (
        "override of ethernet cap dropped: ethernet: cap 5mbit would be more than limit 3mbit; allowed: up to it",
    )
    assert store.adopt((ETHERNET, replace(LIMITED, preference=1))) == (
        "override of lte cap dropped: lte: is a most preferred network, where a cap never applies; allowed: --limit",
    )
    assert store.current(0).overrides == open_store(tmp_path).current(0).overrides == (wider,)
    again = OperatorStore(tmp_path / "overrides.json", (WIFI, ETHERNET))
    assert again.current(0) == open_store(tmp_path).current(0) == OperatorState()
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
    store = open_store(tmp_path)
    assert store.current(0) == OperatorState((cap("lte", FIVE, 100.0),))
    store.pause(Pause(None))
    assert json.loads(path.read_text())["version"] == 2
    assert open_store(tmp_path).current(0) == OperatorState((cap("lte", FIVE, 100.0),), Pause(None))


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
    assert open_store(tmp_path).current(0) == OperatorState()


def test_expiry_takes_effect_even_if_it_cannot_be_written(tmp_path: Path) -> None:
    directory = tmp_path / "state"
    directory.mkdir()
    store = open_store(directory)
    store.set(cap("ethernet", FIVE, expires_at=100.0))
    store.pause(Pause(100.0))
    (directory / "overrides.json").unlink()
    directory.rmdir()
    assert store.current(100.0) == OperatorState()


def test_change_that_cannot_be_written_does_not_take_effect(tmp_path: Path) -> None:
    store = OperatorStore(tmp_path / "missing" / "overrides.json", NETWORKS)
    with pytest.raises(UserError, match="cannot be written"):
        store.set(cap("ethernet", FIVE))
    with pytest.raises(UserError, match="cannot be written"):
        store.pause(Pause(None))
    assert store.current(0) == OperatorState()
