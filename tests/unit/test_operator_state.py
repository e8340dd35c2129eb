import json
from dataclasses import replace
from pathlib import Path

import pytest
from examples import ETHERNET, WIFI, cap, network
from worlds import ManualClock

from mptcp_throttle.errors import UserError
from mptcp_throttle.model import RateKind
from mptcp_throttle.units import Rate
from mptcp_throttled.control.operator_state import OperatorStore
from mptcp_throttled.vocabulary.operator import OperatorState, Override, Pause

FIVE = Rate.parse("5mbit")
LIMITED = network("lte", 4, 2, cap="1mbit", limit="8mbit")
NETWORKS = (WIFI, ETHERNET, LIMITED)


def open_store(directory: Path, clock: ManualClock | None = None) -> OperatorStore:
    return OperatorStore(directory / "overrides.json", NETWORKS, clock or ManualClock())


def test_override_replaces_an_earlier_one_until_reset(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.set(cap("lte", FIVE))
    store.set(cap("ethernet", FIVE))
    store.set(cap("ethernet", None))
    assert store.current().overrides == (cap("lte", FIVE), cap("ethernet", None))
    store.reset("ethernet")
    assert store.current().overrides == (cap("lte", FIVE),)


def test_resume_says_whether_there_was_a_pause(tmp_path: Path) -> None:
    clock = ManualClock()
    store = open_store(tmp_path, clock)
    store.pause(Pause(None))
    assert [store.resume(), store.resume()] == [True, False]
    store.pause(Pause(clock.now + 1))
    clock.now += 2
    assert (store.resume(), store.current().pause) == (False, None)


def test_operator_state_survives_a_restart_and_expires(tmp_path: Path) -> None:
    clock = ManualClock()
    before = open_store(tmp_path, clock)
    before.set(cap("ethernet", FIVE, 1100.0))
    before.pause(Pause(1200.0))
    again = open_store(tmp_path, clock)
    clock.now = 1099.9
    assert again.current() == OperatorState((cap("ethernet", FIVE, 1100.0),), Pause(1200.0))
    clock.now = 1100.0
    assert again.current() == OperatorState(pause=Pause(1200.0))
    clock.now = 1200.0
    assert again.current() == OperatorState()
    assert open_store(tmp_path).current() == OperatorState()


@pytest.mark.parametrize("step", [-3600.0, 3600.0])
def test_operator_state_lasts_as_long_if_the_wall_clock_is_set(tmp_path: Path, step: float) -> None:
    clock = ManualClock()
    store = open_store(tmp_path, clock)
    store.set(cap("ethernet", FIVE, 1500.0))
    store.pause(Pause(1060.0))
    clock.epoch += step
    clock.now = 1059.9
    assert store.current().pause == Pause(1060.0)
    clock.now = 1060.0
    assert store.current().pause is None
    # Nor after a restart, since the file has been written again.
    assert open_store(tmp_path, clock).current().overrides == (cap("ethernet", FIVE, 1500.0),)


def test_operator_state_written_before_the_wall_clock_was_set_back_ends(tmp_path: Path) -> None:
    clock = ManualClock()
    open_store(tmp_path, clock).pause(Pause(1060.0))
    clock.now, clock.epoch = 5.0, 0.0  # after a boot, without a battery for the clock
    store = open_store(tmp_path, clock)
    clock.now = 64.9
    assert store.current().pause is not None
    clock.now = 65.0
    assert store.current().pause is None


def test_operator_state_is_not_written_again_without_a_reason(tmp_path: Path) -> None:
    clock = ManualClock()
    store = open_store(tmp_path, clock)
    store.pause(Pause(1060.0))
    (tmp_path / "overrides.json").unlink()
    clock.epoch += 0.9
    store.current()
    assert not (tmp_path / "overrides.json").exists()


def test_pause_lasts_until_resumed_and_both_are_idempotent(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for _ in range(2):
        store.pause(Pause(None))
        assert open_store(tmp_path).current() == OperatorState(pause=Pause(None))
    store.pause(Pause(1100.0))
    assert store.current().pause == Pause(1100.0)
    for _ in range(2):
        store.pause(None)
        assert open_store(tmp_path).current() == OperatorState()


def test_operator_state_expires_if_any_of_it_does() -> None:
    overrides = (cap("lte", FIVE, 100.0), cap("ethernet", FIVE))
    assert not OperatorState().expires
    assert not OperatorState(overrides[1:], Pause(None)).expires
    assert OperatorState(overrides).expires
    assert OperatorState(overrides[1:], Pause(90.0)).expires


def test_invalid_override_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.set(cap("ethernet", FIVE))
    with pytest.raises(UserError, match="lte: cap 9mbit would be more than limit 8mbit"):
        store.set(cap("lte", Rate.parse("9mbit")))
    with pytest.raises(UserError, match="dsl: no such access network; allowed: wifi, ethernet, lte"):
        store.reset("dsl")
    assert store.current().overrides == (cap("ethernet", FIVE),)


def test_overrides_that_no_longer_fit_are_dropped_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = open_store(tmp_path)
    wider = Override("lte", RateKind.LIMIT, Rate.parse("20mbit"), None)
    store.set(cap("ethernet", FIVE))
    store.set(wider)
    store.set(cap("lte", Rate.parse("9mbit")))
    assert store.adopt(NETWORKS) == ()
    assert store.adopt((WIFI, ETHERNET.with_rates({RateKind.LIMIT: Rate.parse("3mbit")}), LIMITED)) == (
        "override of ethernet cap dropped: ethernet: cap 5mbit would be more than limit 3mbit; allowed: up to it",
    )
    assert store.adopt((ETHERNET, replace(LIMITED, preference=1))) == (
        "override of lte cap dropped: lte: is a most preferred network, where a cap never applies; allowed: --limit",
    )
    assert store.current().overrides == open_store(tmp_path).current().overrides == (wider,)
    again = OperatorStore(tmp_path / "overrides.json", (WIFI, ETHERNET), ManualClock())
    assert again.current() == open_store(tmp_path).current() == OperatorState()
    assert len(caplog.messages) == 3
    assert caplog.messages[-1] == (
        "override of lte limit dropped: lte: no such access network; allowed: wifi, ethernet"
    )


def saved(rate: str, expires_at: str) -> str:
    item = (
        f'{{"network": "lte", "direction": "downlink", "kind": "cap", "rate_bps": {rate}, "expires_at": {expires_at}}}'
    )
    return f'{{"format": 1, "overrides": [{item}], "pause": null}}'


def test_file_of_format_1_is_read(tmp_path: Path) -> None:
    path = tmp_path / "overrides.json"
    path.write_text(saved("5000000", "1700001100.0"))
    store = open_store(tmp_path)
    assert store.current() == OperatorState((cap("lte", FIVE, 1100.0),))
    store.pause(Pause(None))
    assert json.loads(path.read_text())["format"] == 1
    assert open_store(tmp_path).current() == OperatorState((cap("lte", FIVE, 1100.0),), Pause(None))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "[" * 100_000,
        '{"format": 2, "overrides": [], "pause": null}',
        '{"version": 2, "overrides": [], "pause": null}',
        '{"format": 1}',
        saved("8000000", "null").replace("downlink", "sideways"),
        saved("1e400", "null"),
        saved("8000000", "1e400"),
        saved("8000000", "NaN"),
        saved("8000000", '"tomorrow"'),
        '{"format": 1, "overrides": [], "pause": true}',
        '{"format": 1, "overrides": [], "pause": {"expires_at": NaN}}',
        '{"format": 1, "overrides": [], "pause": {"expires_at": 1700000000, "seconds_left": null}}',
    ],
)
def test_unusable_file_means_an_empty_operator_state(tmp_path: Path, text: str) -> None:
    (tmp_path / "overrides.json").write_text(text)
    assert open_store(tmp_path).current() == OperatorState()


def test_expiry_takes_effect_even_if_it_cannot_be_written(tmp_path: Path) -> None:
    directory = tmp_path / "state"
    directory.mkdir()
    clock = ManualClock()
    store = open_store(directory, clock)
    store.set(cap("ethernet", FIVE, 1100.0))
    store.pause(Pause(1100.0))
    (directory / "overrides.json").unlink()
    directory.rmdir()
    clock.now = 1100.0
    assert store.current() == OperatorState()


def test_change_that_cannot_be_written_does_not_take_effect(tmp_path: Path) -> None:
    store = OperatorStore(tmp_path / "missing" / "overrides.json", NETWORKS, ManualClock())
    with pytest.raises(UserError, match="cannot be written"):
        store.set(cap("ethernet", FIVE))
    with pytest.raises(UserError, match="cannot be written"):
        store.pause(Pause(None))
    assert store.current() == OperatorState()
