import json
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path

import pytest
from examples import ETHERNET, WIFI, cap, network
from worlds import ManualClock

from mptcp_throttle.errors import UserError
from mptcp_throttle.model import ClientPrefix, RateKind
from mptcp_throttle.units import Rate
from mptcp_throttled.control.operator_state import MAX_CLIENTS, OperatorStore
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


def of_client(address: str, rate: Rate | None, end: float | None = None, name: str = "ethernet") -> Override:
    return replace(cap(name, rate, end), client=ip_address(address))


def test_rates_of_a_client_are_set_and_reset_apart_from_its_networks(tmp_path: Path) -> None:
    store, client = open_store(tmp_path), ip_address("10.1.0.2")
    store.set(cap("ethernet", FIVE))
    store.set(of_client("10.1.0.2", FIVE))
    store.set(of_client("10.1.0.2", None))
    store.set(of_client("10.1.0.3", FIVE))
    overrides = cap("ethernet", FIVE), of_client("10.1.0.2", None), of_client("10.1.0.3", FIVE)
    assert open_store(tmp_path).current().overrides == store.current().overrides == overrides
    store.reset("ethernet")
    assert store.current().overrides == overrides[1:]
    store.reset("ethernet", client)
    assert open_store(tmp_path).current().overrides == store.current().overrides == overrides[2:]


def test_addresses_of_one_prefix_have_one_override(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.set(of_client("fd00:1::2", FIVE))
    store.set(of_client("fd00:1::3", None))
    assert store.current().overrides == (of_client("fd00:1::3", None),)
    store.reset("ethernet", ip_address("fd00:1::9"))
    assert store.current() == OperatorState()


def test_override_of_a_client_ends_by_itself_and_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    clock = ManualClock()
    open_store(tmp_path, clock).set(of_client("10.1.0.2", None, 1100.0))
    store = open_store(tmp_path, clock)
    clock.now = 1099.9
    assert store.current().overrides == (of_client("10.1.0.2", None, 1100.0),)
    clock.now = 1100.0
    assert open_store(tmp_path, clock).current() == store.current() == OperatorState()
    assert "override of ethernet 10.1.0.2 cap expired" in caplog.messages


def test_earlier_versions_find_no_override_of_a_client(tmp_path: Path) -> None:
    open_store(tmp_path).set(of_client("10.1.0.2", None))
    document = json.loads((tmp_path / "overrides.json").read_text())
    assert (document["format"], document["overrides"]) == (1, [])
    assert [item["client"] for item in document["client_overrides"]] == ["10.1.0.2"]


@pytest.mark.parametrize(
    ("override", "line"),
    [
        (of_client("10.2.0.2", FIVE), "10.2.0.2: is in wifi; allowed: an address in ethernet"),
        (of_client("192.0.2.1", FIVE), "192.0.2.1: is in no access network; allowed: an address in ethernet"),
        (of_client("10.2.0.2", FIVE, name="wifi"), "wifi: is a most preferred network, where a cap never applies"),
        (of_client("10.4.0.2", FIVE, name="dsl"), "dsl: no such access network; allowed: wifi, ethernet, lte"),
        (
            of_client("10.4.0.2", Rate.parse("9mbit"), name="lte"),
            "lte 10.4.0.2: cap 9mbit would be more than limit 8mbit; allowed: up to it",
        ),
    ],
)
def test_override_of_a_client_must_fit_its_network(tmp_path: Path, override: Override, line: str) -> None:
    store = open_store(tmp_path)
    with pytest.raises(UserError) as refused:
        store.set(override)
    assert str(refused.value).startswith(line)
    assert store.current() == OperatorState()


def test_rate_of_a_network_must_fit_those_of_its_clients(tmp_path: Path) -> None:
    store, wide = open_store(tmp_path), of_client("10.4.0.2", Rate.parse("7mbit"), name="lte")
    store.set(wide)
    with pytest.raises(UserError, match=r"lte 10\.4\.0\.2: cap 7mbit would be more than limit 6mbit"):
        store.set(Override("lte", RateKind.LIMIT, Rate.parse("6mbit"), None))
    assert store.current().overrides == (wide,)


def test_number_of_clients_with_rates_of_their_own_is_bounded(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for number in range(MAX_CLIENTS):
        store.set(of_client(f"10.1.0.{number + 1}", FIVE))
    store.set(of_client("10.1.0.1", None))
    store.set(cap("ethernet", FIVE))
    with pytest.raises(UserError, match="too many clients with rates of their own; allowed: up to 100;"):
        store.set(of_client("10.1.1.1", FIVE))
    store.reset("ethernet", ip_address("10.1.0.7"))
    store.set(of_client("10.1.1.1", FIVE))


def test_override_of_a_client_that_has_moved_is_dropped_alone(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for address in ("10.1.0.2", "fd00:1::2"):
        store.set(of_client(address, FIVE))
    fewer = replace(ETHERNET, subnets=ETHERNET.subnets[1:], client_prefix=ClientPrefix(ipv6=128))
    assert store.adopt((WIFI, fewer, LIMITED)) == (
        "override of ethernet 10.1.0.2 cap dropped: 10.1.0.2: is in no access network; allowed: an address in ethernet",
    )
    assert store.current().overrides == (of_client("fd00:1::2", FIVE),)


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
        '{"format": 1, "overrides": [], "client_overrides": [{"client": "10.1.0.2"}], "pause": null}',
        saved("8000000", "null").replace('"overrides"', '"overrides": [], "client_overrides"'),
        '{"format": 1, "overrides": [], "pause": {"expires_at": NaN}}',
        '{"format": 1, "overrides": [], "pause": {"expires_at": 1700000000, "seconds_left": null}}',
    ],
)
def test_unusable_file_means_an_empty_operator_state(tmp_path: Path, text: str) -> None:
    (tmp_path / "overrides.json").write_text(text)
    assert open_store(tmp_path).current() == OperatorState()
    assert (tmp_path / "overrides.json").read_text() == text


def test_file_of_a_later_version_is_kept_and_named_in_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, later = tmp_path / "overrides.json", '{"format": 2, "rates": ["5mbit"]}'
    path.write_text(later)
    store = open_store(tmp_path)
    assert store.current() == OperatorState()
    assert path.read_text() == later
    assert caplog.messages == [f"{path}: cannot be used (format 2; allowed: 1): there is no override and no pause"]
    for rate in (FIVE, None):
        store.set(cap("ethernet", rate))
    assert open_store(tmp_path).current().overrides == (cap("ethernet", None),)
    assert (tmp_path / "overrides.unusable").read_text() == later


def test_rates_are_set_after_an_unusable_file_was_removed_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "overrides.json"
    path.write_text("{")
    store = open_store(tmp_path)
    path.unlink()
    store.set(cap("ethernet", FIVE))
    assert open_store(tmp_path).current().overrides == (cap("ethernet", FIVE),)


def test_file_that_cannot_be_read_stays(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "overrides.json").mkdir()
    assert open_store(tmp_path).current() == OperatorState()
    assert (tmp_path / "overrides.json").is_dir()
    assert caplog.messages == [
        f"{tmp_path}/overrides.json: cannot be read (Is a directory): there is no override and no pause"
    ]


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
