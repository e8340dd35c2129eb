"""Where the lab makes calls into the kernel fail or end the process; in production nothing is ever set here."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_inject: Callable[[str], None] | None = None


def set_faults(inject: Callable[[str], None] | None) -> None:
    """Call `inject` with the name of every call into the kernel before it is made.

    An OSError that it raises is taken for the kernel's answer.
    """
    global _inject
    _inject = inject


def fault_point(what: str) -> None:
    """A call into the kernel, named as an operator would type it, is about to be made."""
    if _inject is not None:
        _inject(what)
