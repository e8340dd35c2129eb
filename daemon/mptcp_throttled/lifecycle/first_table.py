"""The wait of a daemon that starts for the sniffer's table: without it, its first step would free all subflows."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from mptcp_throttled.control.inbox import Inbox, Message
from mptcp_throttled.control.source import Follower

# As long as a call to the sniffer may take (`control/source.py`).
_PART_SECONDS: Final = 3.0
# A table of 50 000 connections takes 5 s; systemd gives a service 90 s to start.
_LONGEST_SECONDS: Final = 30.0


def wait_for_table(follower: Follower, inbox: Inbox, is_stopping: Callable[[], bool]) -> list[Message[Any]]:
    """Wait for the first update of the table; returns the requests that have come until then.

    The wait also ends after 3 s without a part of the table, or once `is_stopping`; other messages do not end it.
    Without a sniffer, the follower delivers an update at once. The wait is bounded: a table may change faster than it
    is read.
    """
    requests: list[Message[Any]] = []
    now = time.monotonic()
    end, parts, due = now + _LONGEST_SECONDS, follower.parts, now + _PART_SECONDS
    while follower.empty and not is_stopping() and now < min(due, end):
        requests += inbox.wait(min(due, end) - now)
        now = time.monotonic()
        if follower.parts > parts:
            parts, due = follower.parts, now + _PART_SECONDS
    return requests
