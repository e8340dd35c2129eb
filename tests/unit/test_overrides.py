import math
from pathlib import Path

import pytest
from tables import ETHERNET, WIFI, network

from mptcp_throttle.errors import UserError
from mptcp_throttle.rpc import Json
from mptcp_throttle.units import Rate
from mptcp_throttled.overrides import Override, OverrideStore, effective, requested_override
from mptcp_throttled.policy import Rule

FIVE = Rate.parse("5mbit")
LIMITED = network("lte", 4, 2, cap="1mbit", limit="8mbit")
NETWORKS = (WIFI, ETHERNET, LIMITED)


def store(directory: Path) -> OverrideStore:
    return OverrideStore(directory / "overrides.json", NETWORKS)


def cap(name: str, rate: Rate | None, expires_at: float | None = None) -> Override:
    return Override(name, Rule.CAP, rate, expires_at)


def test_an_override_takes_the_place_of_the_configured_rate(tmp_path: Path) -> None:
    overrides = store(tmp_path)
    overrides.set(cap("ethernet", FIVE))
    assert [n.cap for n in effective(NETWORKS, overrides.current(0))] == [None, FIVE, LIMITED.cap]
    overrides.set(cap("ethernet", None))
    assert effective(NETWORKS, overrides.current(0))[1].cap is None
    overrides.reset("ethernet")
    assert effective(NETWORKS, overrides.current(0)) == NETWORKS


def test_overrides_survive_a_restart_and_end_when_they_expire(tmp_path: Path) -> None:
    store(tmp_path).set(cap("ethernet", FIVE, expires_at=100.0))
    again = store(tmp_path)
    assert again.current(99.9) == (cap("ethernet", FIVE, 100.0),)
    assert again.current(100.0) == ()
    assert store(tmp_path).current(0) == ()


@pytest.mark.parametrize(
    ("override", "line"),
    [
        (cap("dsl", FIVE), "dsl: no such access network; allowed: wifi, ethernet, lte"),
        (cap("wifi", FIVE), "wifi: is a most preferred network, where a cap never applies; allowed: --limit"),
        (cap("lte", Rate.parse("9mbit")), "lte: cap 9mbit would be more than limit 8mbit"),
        (Override("lte", Rule.LIMIT, Rate.parse("500kbit"), None), "lte: cap 1mbit would be more than limit 500kbit"),
    ],
)
def test_a_senseless_override_is_refused_and_changes_nothing(tmp_path: Path, override: Override, line: str) -> None:
    overrides = store(tmp_path)
    overrides.set(cap("ethernet", FIVE))
    with pytest.raises(UserError) as refused:
        overrides.set(override)
    assert str(refused.value).startswith(line)
    assert overrides.current(0) == (cap("ethernet", FIVE),)


def saved(rate: str, expires_at: str) -> str:
    item = f'{{"network": "lte", "rule": "cap", "rate_bps": {rate}, "expires_at": {expires_at}}}'
    return f'{{"version": 1, "overrides": [{item}]}}'


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "[" * 100_000,
        '{"version": 2, "overrides": []}',
        '{"version": 1}',
        saved("1e400", "null"),
        saved("8000000", "1e400"),
        saved("8000000", "NaN"),
        saved("8000000", '"tomorrow"'),
    ],
)
def test_an_unusable_file_means_no_override(tmp_path: Path, text: str) -> None:
    (tmp_path / "overrides.json").write_text(text)
    assert store(tmp_path).current(0) == ()


def test_what_set_rate_asks_for_becomes_an_override() -> None:
    assert requested_override("lte", "cap", "5mbit", 60, 1000.0) == cap("lte", FIVE, 1060.0)
    assert requested_override("lte", "limit", None, None, 1000.0) == Override("lte", Rule.LIMIT, None, None)


@pytest.mark.parametrize(
    ("argument", "value", "line"),
    [
        ("network", 5, "network: 5: allowed: the name of an access network"),
        ("rule", "foo", "rule: 'foo': allowed: cap, limit"),
        ("rule", ["cap"], "rule: ['cap']: allowed: cap, limit"),
        ("rate", "fast", "rate: 'fast': is not a rate; allowed: a number with bit, kbit"),
        ("rate", 5, "rate: 5: is not text; allowed: a number with bit, kbit"),
        ("rate", int("9" * 400), f"rate: {'9' * 57}...: is not text; allowed: a number with bit"),
        *(
            ("seconds", value, f"seconds: {value!r}: allowed: a number above 0, up to 315360000; or null")
            for value in (-5, 0, 315360001, math.nan, math.inf, True, "5", [5])
        ),
    ],
)
def test_what_set_rate_cannot_take_is_refused_by_the_name_of_the_argument(
    argument: str, value: Json, line: str
) -> None:
    arguments = {"network": "lte", "rule": "cap", "rate": "5mbit", "seconds": 60, argument: value}
    with pytest.raises(UserError) as refused:
        requested_override(**arguments, now=1000.0)
    assert str(refused.value).startswith(line)


def test_an_override_ends_in_time_even_if_that_cannot_be_written(tmp_path: Path) -> None:
    directory = tmp_path / "state"
    directory.mkdir()
    overrides = store(directory)
    overrides.set(cap("ethernet", FIVE, expires_at=100.0))
    (directory / "overrides.json").unlink()
    directory.rmdir()
    assert overrides.current(100.0) == ()


def test_what_cannot_be_written_is_not_in_force(tmp_path: Path) -> None:
    overrides = OverrideStore(tmp_path / "missing" / "overrides.json", NETWORKS)
    with pytest.raises(UserError, match="cannot be written"):
        overrides.set(cap("ethernet", FIVE))
    assert overrides.current(0) == ()
