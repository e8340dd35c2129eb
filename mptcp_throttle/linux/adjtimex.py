"""Whether the wall clock is synchronised, as adjtimex(2) tells."""

from __future__ import annotations

import ctypes
from typing import Final

_STA_UNSYNC: Final = 0x0040  # include/uapi/linux/timex.h


class _Timex(ctypes.Structure):
    """The beginning of struct timex (include/uapi/linux/timex.h), and room for the rest."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 256),
    )


def is_clock_synchronised() -> bool:
    """Whether a program such as chronyd or systemd-timesyncd keeps the clock right; true if the kernel does not tell.

    Containers with a strict system call filter are not told.
    """
    timex = _Timex()
    if ctypes.CDLL(None).adjtimex(ctypes.byref(timex)) < 0:
        return True
    return not timex.status & _STA_UNSYNC
