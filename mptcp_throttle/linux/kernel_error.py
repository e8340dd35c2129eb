"""The exception for every operation that the kernel refuses."""

from __future__ import annotations

import errno


class KernelError(Exception):
    """The kernel refused `what`; `number` is the errno it answered, `remedy` a hint for the operator."""

    def __init__(self, what: str, number: int, remedy: str = "") -> None:
        name = errno.errorcode.get(number, str(number))
        super().__init__(f"{what}: {name}{f' ({remedy})' if remedy else ''}")
        self.number = number
