"""The situations of the demo: what is to happen in each, and what is to be expected of it.

The bounds leave room for a busy machine: they tell a cap that works from one that does not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

from mptcp_lab.demo.recording import Recording, Window
from mptcp_lab.topology import WIFI

if TYPE_CHECKING:
    from mptcp_lab.demo.stage import Stage

_SETTLE_SECONDS: Final = 1.5
"""What TCP had in flight when a rate changes must drain before the new rate can be measured."""

_MAX_JOIN_TO_CAP: Final = 0.05
_MAX_LIFT: Final = 1.0
_CAP_MBPS: Final = 1.0

_SET_5: Final = "set-rate ethernet 5mbit"
_SET_8: Final = "set-rate ethernet 8mbit"
_WIFI_LOST: Final = "Wi-Fi lost"


@dataclass(frozen=True, slots=True)
class Expectation:
    """What was expected, what was seen, and whether it held."""

    expected: str
    seen: str
    held: bool


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement on a recording, and the windows of constant conditions that it rests upon."""

    expectations: tuple[Expectation, ...]
    windows: tuple[Window, ...] = ()


@dataclass(frozen=True, slots=True)
class Situation:
    """A download and its circumstances. `full` and `quick` are the sizes of the document in bytes.

    `script` runs while the download does; `judge` sees what was recorded.
    """

    name: str
    title: str
    mptcp: bool
    services: bool
    wifi: Literal["active", "backup"]
    full: int
    quick: int
    script: Callable[[Stage], None]
    judge: Callable[[Recording], Verdict]


def _no_events(_stage: Stage) -> None:
    pass


def _change_rates(stage: Stage) -> None:
    for command, share in ((_SET_5, 1 / 3), (_SET_8, 2 / 3)):
        stage.wait(partial(stage.received, share))
        stage.services.cli(*command.split())
        stage.note(command)


def _lose_wifi(stage: Stage) -> None:
    stage.wait(lambda: stage.received(0.55))
    stage.note(_WIFI_LOST)
    stage.lab.client.leave(WIFI)


def _judge_plain(recording: Recording) -> Verdict:
    ethernet, wifi = (recording.mbps(network, 0, recording.duration) for network in ("ethernet", "wifi"))
    return Verdict(
        (
            _at_least("plain TCP fills Ethernet, which it uses alone", ethernet, 8.0),
            _at_most("nothing over Wi-Fi", wifi, 0.1),
            _never_capped(recording, "nothing is capped"),
            _restored(recording),
        )
    )


def _judge_uncapped(recording: Recording) -> Verdict:
    ethernet, wifi = (recording.mbps(network, 0, recording.duration) for network in ("ethernet", "wifi"))
    return Verdict(
        (
            _at_least("MPTCP adds up both networks (10 + 56 Mb/s)", ethernet + wifi, 50.0),
            _at_least("Ethernet is full", ethernet, 8.0),
        )
    )


def _judge_capped(recording: Recording) -> Verdict:
    capped_at = recording.capped_at
    if capped_at is None:
        return Verdict((_missing("Ethernet is capped"),))
    window = _settled(recording, "1 Mb/s", capped_at, recording.duration)
    return Verdict(
        (_join_to_cap(recording), _held_to(window, _CAP_MBPS), _wifi_carries(window), _restored(recording)), (window,)
    )


def _judge_rate_change(recording: Recording) -> Verdict:
    changes = (recording.capped_at, recording.event(_SET_5), recording.event(_SET_8), recording.duration)
    times = [at for at in changes if at is not None]
    if len(times) < len(changes):
        return Verdict((_missing("Ethernet is capped and its cap changed twice"),))
    rates = (1.0, 5.0, 8.0)
    windows = tuple(
        _settled(recording, f"{rate:g} Mb/s", start, end)
        for rate, start, end in zip(rates, times[:-1], times[1:], strict=True)
    )
    held = (_held_to(window, rate) for window, rate in zip(windows, rates, strict=True))
    return Verdict((_join_to_cap(recording), *held, _restored(recording)), windows)


def _judge_backup(recording: Recording) -> Verdict:
    joined = any(s.network == "wifi" and s.backup for o in recording.observations for s in o.subflows)
    ethernet, wifi = (recording.mbps(network, 0, recording.duration) for network in ("ethernet", "wifi"))
    return Verdict(
        (
            Expectation("Wi-Fi joins as backup", "joined" if joined else "did not join", joined),
            _never_capped(recording, "Ethernet is not capped: there is nothing to move to"),
            _at_least("Ethernet is full", ethernet, 8.0),
            _at_most("Wi-Fi stays idle", wifi, 0.5),
            _restored(recording),
        )
    )


def _judge_wifi_lost(recording: Recording) -> Verdict:
    capped_at, lost_at = recording.capped_at, recording.event(_WIFI_LOST)
    if capped_at is None or lost_at is None:
        return Verdict((_missing("Ethernet is capped before Wi-Fi is lost"),))
    before = _settled(recording, "with Wi-Fi", capped_at, lost_at)
    after = _settled(recording, "without Wi-Fi", lost_at, recording.duration)
    lifted_at = recording.uncapped_after(lost_at)
    if lifted_at is None:
        return Verdict((_missing("the cap is lifted when Wi-Fi is lost"),), (before, after))
    return Verdict(
        (
            _held_to(before, _CAP_MBPS),
            _at_most("the cap is lifted when Wi-Fi is lost", lifted_at - lost_at, _MAX_LIFT, "s"),
            _at_least("Ethernet is full again", after.mbps["ethernet"], 7.5),
            _restored(recording),
        ),
        (before, after),
    )


def _settled(recording: Recording, label: str, start: float, end: float) -> Window:
    """The window without its first moments; of a very short one, the second half."""
    return recording.window(label, min(start + _SETTLE_SECONDS, (start + end) / 2), end)


def _at_least(what: str, value: float, bound: float, unit: str = "Mb/s") -> Expectation:
    return Expectation(f"{what}: {bound:g} {unit} or more", f"{value:.2f} {unit}", value >= bound)


def _at_most(what: str, value: float, bound: float, unit: str = "Mb/s") -> Expectation:
    return Expectation(f"{what}: {bound:g} {unit} or less", f"{value:.2f} {unit}", value <= bound)


def _held_to(window: Window, rate: float) -> Expectation:
    # Above the cap nothing is excused. Below it, the capped path also waits for what only Wi-Fi can deliver.
    low, high = 0.7 * rate, 1.1 * rate
    seen = window.mbps["ethernet"]
    return Expectation(f"Ethernet carries {low:.2g} to {high:.2g} Mb/s", f"{seen:.2f} Mb/s", low <= seen <= high)


def _wifi_carries(window: Window) -> Expectation:
    ethernet, wifi = window.mbps["ethernet"], window.mbps["wifi"]
    share = wifi / (ethernet + wifi)
    return Expectation("Wi-Fi carries the rest: 75 % or more of all", f"{share:.0%}", share >= 0.75)


def _join_to_cap(recording: Recording) -> Expectation:
    seconds = recording.join_to_cap
    if seconds is None:
        return _missing("time from JOIN to cap")
    expected = f"from JOIN to cap: {_MAX_JOIN_TO_CAP * 1000:g} ms or less"
    return Expectation(expected, f"{seconds * 1000:.1f} ms", seconds <= _MAX_JOIN_TO_CAP)


def _never_capped(recording: Recording, expected: str) -> Expectation:
    held = recording.capped_at is None
    return Expectation(expected, f"asked {len(recording.observations)} times" if held else "was capped", held)


def _restored(recording: Recording) -> Expectation:
    held = bool(recording.kernel_restored)
    return Expectation("the services leave the kernel as it was", "identical" if held else "differs", held)


def _missing(expected: str) -> Expectation:
    return Expectation(expected, "did not happen", held=False)


_SEED_SIZE: Final = 100_000_000

SITUATIONS: Final = (
    Situation(
        name="plain-tcp",
        title="plain TCP beside our services",
        mptcp=False,
        services=True,
        wifi="active",
        full=_SEED_SIZE,
        quick=6_000_000,
        script=_no_events,
        judge=_judge_plain,
    ),
    Situation(
        name="mptcp-uncapped",
        title="MPTCP without our services",
        mptcp=True,
        services=False,
        wifi="active",
        full=_SEED_SIZE,
        quick=30_000_000,
        script=_no_events,
        judge=_judge_uncapped,
    ),
    Situation(
        name="capped-1mbit",
        title="Ethernet capped to 1 Mb/s",
        mptcp=True,
        services=True,
        wifi="active",
        full=_SEED_SIZE,
        quick=30_000_000,
        script=_no_events,
        judge=_judge_capped,
    ),
    Situation(
        name="rate-change",
        title="cap set to 5, then 8 Mb/s in mid-transfer",
        mptcp=True,
        services=True,
        wifi="active",
        full=_SEED_SIZE,
        quick=42_000_000,
        script=_change_rates,
        judge=_judge_rate_change,
    ),
    Situation(
        name="backup",
        title="Wi-Fi joined as backup",
        mptcp=True,
        services=True,
        wifi="backup",
        full=_SEED_SIZE,
        quick=6_000_000,
        script=_no_events,
        judge=_judge_backup,
    ),
    Situation(
        name="wifi-lost",
        title="Wi-Fi lost in mid-transfer",
        mptcp=True,
        services=True,
        wifi="active",
        full=_SEED_SIZE,
        quick=18_000_000,
        script=_lose_wifi,
        judge=_judge_wifi_lost,
    ),
)
"""In the order in which they are run."""
