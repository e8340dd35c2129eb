"""A request that is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from http import HTTPStatus


class Refused(Exception):
    """A request is refused; the answer names the problem in one line."""

    def __init__(self, status: HTTPStatus, problem: str) -> None:
        super().__init__(problem)
        self.status = status
