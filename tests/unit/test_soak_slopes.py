"""Slopes of what a long run samples: a leak is found, and noise and warm-ups are not taken for one."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Final

import pytest

from mptcp_lab.soak.bounds import BOUNDS, Snapshot, judge_all
from mptcp_lab.soak.slopes import FEWEST, Sample, Slope, Verdict, judge, slope_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROUND_HOURS: Final = 25 / 3600
ROUNDS: Final = 288
"""Of two hours."""

MEMORY_BOUND: Final = 1024.0


def noise(seed: int, likeness: float, size: float) -> Iterator[float]:
    """An autoregressive process: each value resembles the one before."""
    chance, value = random.Random(seed), 0.0  # noqa: S311
    while True:
        value = likeness * value + chance.gauss(0, size * math.sqrt(1 - likeness**2))
        yield value


def samples(height: Callable[[float], float], disturbance: Iterator[float], rounds: int = ROUNDS) -> list[Sample]:
    hours = [number * ROUND_HOURS for number in range(rounds)]
    return [Sample(at, 40_000 + height(at) + next(disturbance)) for at in hours]


def verdict(taken: list[Sample]) -> Verdict:
    return judge(slope_of(taken), MEMORY_BOUND)


@pytest.mark.parametrize("likeness", [0.0, 0.6, 0.9])
def test_slope_of_leak_is_beyond_its_bound(likeness: float) -> None:
    leaks = [samples(lambda at: 3 * MEMORY_BOUND * at, noise(seed, likeness, 200)) for seed in range(5)]
    assert [verdict(each) for each in leaks] == [Verdict.BEYOND] * 5


@pytest.mark.parametrize("likeness", [0.0, 0.6, 0.9])
def test_slope_of_noise_is_within_its_bound(likeness: float) -> None:
    steady = [samples(lambda _: 0.0, noise(seed, likeness, 200)) for seed in range(5)]
    assert [verdict(each) for each in steady] == [Verdict.WITHIN] * 5


def test_slope_of_warm_up_is_within_its_bound() -> None:
    warm = samples(lambda at: 20_000 * (1 - math.exp(-at / 0.1)), noise(1, 0.6, 200))
    assert warm[-1].value - warm[0].value > 5 * MEMORY_BOUND
    assert verdict(warm) is Verdict.WITHIN


def test_slope_of_step_that_comes_once_is_not_beyond_its_bound() -> None:
    slope = slope_of(samples(lambda at: 8192.0 if at > 1.7 else 0.0, noise(1, 0.3, 50)))
    assert slope is not None
    assert slope.per_hour < MEMORY_BOUND
    assert judge(slope, MEMORY_BOUND) is not Verdict.BEYOND


def test_slope_of_noisy_short_run_is_undecided() -> None:
    assert verdict(samples(lambda _: 0.0, noise(1, 0.5, 500), 24)) is Verdict.UNDECIDED


def test_interval_has_the_true_slope_as_often_as_it_says() -> None:
    right = 0
    for seed in range(60):
        likeness, rounds = random.Random(seed).choice((0.0, 0.5, 0.7)), 12 + seed % 30  # noqa: S311
        slope = slope_of(samples(lambda at: 5000 * at, noise(seed, likeness, 100), rounds))
        assert slope is not None
        right += slope.low <= 5000 <= slope.high
    assert right >= 54


def test_slope_of_one_object_in_each_round_is_exact() -> None:
    leak = [Sample(number * ROUND_HOURS, float(number)) for number in range(12)]
    slope = slope_of(leak)
    assert slope is not None
    assert slope.per_hour == pytest.approx(144)
    assert slope.low > 140
    assert slope_of([Sample(each.hours, 7.0) for each in leak]) == Slope(0, 0, 0, 8)


def test_slope_compares_samples_of_one_life_only() -> None:
    """Each life begins lower than the one before has ended, and leaks."""
    lives = [
        Sample(life + number * ROUND_HOURS, 3 * MEMORY_BOUND * number * ROUND_HOURS + value, life)
        for life in range(3)
        for number, value in zip(range(60), noise(life, 0.5, 20), strict=False)
    ]
    assert verdict(lives) is Verdict.BEYOND
    assert verdict([Sample(hours, value) for hours, value, _ in lives]) is not Verdict.BEYOND


def test_slope_of_few_samples_is_not_known() -> None:
    short = [Sample(float(number), 0.0) for number in range(FEWEST)]
    assert slope_of(short) is None
    assert slope_of([]) is None
    assert judge(None, 1.0) is Verdict.UNDECIDED


def test_judgement_has_each_quantity_with_its_slope() -> None:
    def values(number: int) -> dict[str, float]:
        return {name: 10.0 * number if name == "BPF maps" else 5.0 for name in BOUNDS}

    taken = [Snapshot(n * ROUND_HOURS, values(n), {"sniffer": 1, "daemon": 1}) for n in range(20)]
    judged = {each.name: each for each in judge_all(taken)}
    assert judged.keys() == BOUNDS.keys()
    assert {name for name, each in judged.items() if each.verdict is not Verdict.WITHIN} == {"BPF maps"}
    assert (judged["BPF maps"].first, judged["BPF maps"].last, judged["BPF maps"].most) == (0, 190, 190)
