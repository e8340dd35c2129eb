"""A feature of the kernel that a test releases at its end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from mptcp_throttled.vocabulary.features import Feature

F = TypeVar("F", bound=Feature)


@contextmanager
def released(feature: F) -> Iterator[F]:
    """The feature, until the end of the block."""
    try:
        yield feature
    finally:
        assert feature.release() == ()
