"""What the kernel refuses, as one exception."""

from __future__ import annotations

import errno


class KernelError(Exception):
    """The kernel refused: `what` was tried, and the `errno` number it answered."""

    def __init__(self, what: str, number: int, remedy: str = "") -> None:
        name = errno.errorcode.get(number, str(number))
        super().__init__(f"{what}: {name}{f' ({remedy})' if remedy else ''}")
        self.number = number
