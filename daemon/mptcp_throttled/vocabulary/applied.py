"""What the kernel has after a step of the loop, and what has happened in the step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mptcp_throttle.model import FourTuple
from mptcp_throttled.vocabulary import operations as op
from mptcp_throttled.vocabulary.decision import Decision
from mptcp_throttled.vocabulary.kernel_plan import UNTOUCHED, KernelPlan


@dataclass(frozen=True, slots=True)
class Applied:
    """What the kernel has after a step, and what has happened in it.

    `plan` is the part of the plan that the kernel has, `errors` are what it refuses. The subflows of the delta may have
    changed, those of the classes in `retried`, and with `is_full` all. `repairs` are the operations that put right what
    another program had changed. `durations` are how long the reconciles took, in seconds. `without_qdisc`: the classes
    of `plan` are only noted, as no interface can have HTB.
    """

    plan: KernelPlan = UNTOUCHED
    errors: tuple[str, ...] = ()
    retried: frozenset[int] = frozenset()
    is_full: bool = False
    repairs: tuple[op.Operation, ...] = ()
    durations: tuple[float, ...] = ()
    without_qdisc: bool = False


@dataclass(frozen=True, slots=True)
class UplinkStep:
    """What a step has tried to apply: decisions, None for subflows that have ended.

    `repairs` is 1 if another program had removed or displaced a filter, which is put back. `window_problems` are why
    windows are not bounded, for each attempt.
    """

    tried: Mapping[FourTuple, Decision | None]
    repairs: int = 0
    window_problems: tuple[str, ...] = ()
