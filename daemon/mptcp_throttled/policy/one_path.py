"""Since when a connection has been on one access network only, after it had subflows on several.

Only a subflow that has ended is a lost path: a stalled one may recover. What a connection had before the daemon knew it
does not count: one that is known with one access network only, as after a restart, has lost none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from immutables import Map

    from mptcp_throttle.model import Token
    from mptcp_throttled.vocabulary.decision import Decision, Previous


def update_one_path(
    since: Map[Token, float], previous: Previous, present: Mapping[Token, tuple[Decision, ...]], now: float
) -> Map[Token, float]:
    """Since when, by connection, updated at `now` for those with `previous` decisions. In monotonic seconds.

    Connections that have ended are removed.
    """
    changed = since.mutate()
    for token, before in previous.items():
        after = present.get(token, ())
        networks = {decision.network for decision in after}
        # Two subflows in no access network may be on two paths.
        if len(networks) != 1 or None in networks:
            changed.pop(token, None)
        elif _has_lost_a_path(before, after):
            changed[token] = now
    return changed.finish()


def _has_lost_a_path(before: tuple[Decision, ...], after: tuple[Decision, ...]) -> bool:
    """Whether a subflow on another access network than the present one has ended. (A reload may merge networks.)"""
    live = {decision.subflow.ends for decision in after}
    had = {decision.network for decision in before} - {None}
    ended = {decision.network for decision in before if decision.subflow.ends not in live} & had
    return len(had) > 1 and not ended <= {decision.network for decision in after}
