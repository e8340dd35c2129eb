"""Nearly right input: pieces of it are changed, missing, doubled, or those of another input."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_SECONDS: Final = float(os.environ.get("MUTATING_SECONDS", "0"))
_LEAST: Final = 60
_MOST_SECONDS: Final = 30.0


class TooLong(BaseException):
    """An input has kept its reader busy for half a minute. No reader takes this for an error of the input."""


def mutations(
    inputs: Sequence[bytes],
    pieces: Sequence[bytes] = (),
    seed: int = 1,
    *,
    words: Sequence[bytes] = (),
    least: int = _LEAST,
) -> Iterator[bytes]:
    """At least this many inputs, always the same for a seed; more for the seconds that MUTATING_SECONDS names.

    They are made of these `inputs`, of `pieces` that mean something in them, and of `words` that replace as many bytes
    at an even offset: lengths and types.
    """
    chance, end, made = random.Random(seed), time.monotonic() + _SECONDS, 0  # noqa: S311
    while made < least or time.monotonic() < end:
        data = chance.choice(inputs)
        for _ in range(chance.choice((1, 1, 2, 5))):
            if words and chance.random() < 0.7:
                data = _with_word(chance, data, chance.choice(words))
            else:
                data = _mutated(chance, data, inputs, pieces)
        yield data
        made += 1


def check(
    use: Callable[[bytes], None],
    inputs: Sequence[bytes],
    pieces: Sequence[bytes] = (),
    seed: int = 1,
    *,
    words: Sequence[bytes] = (),
    least: int = _LEAST,
) -> None:
    """Call `use` with each of the `mutations`. An exception of it fails the test, and shows what it was given.

    It also fails if `use` goes on for half a minute.
    """
    with _alarm():
        for number, data in enumerate(mutations(inputs, pieces, seed, words=words, least=least)):
            signal.setitimer(signal.ITIMER_REAL, _MOST_SECONDS)
            try:
                use(data)
            except (Exception, TooLong) as error:
                raise AssertionError(f"input {number} of seed {seed}: {data!r}") from error


@contextmanager
def _alarm() -> Iterator[None]:
    def interrupt(*_: object) -> None:
        raise TooLong

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def _with_word(chance: random.Random, data: bytes, word: bytes) -> bytes:
    at = 2 * chance.randrange(len(data) // 2 + 1)
    return data[:at] + word + data[at + len(word) :]


def _mutated(chance: random.Random, data: bytes, inputs: Sequence[bytes], pieces: Sequence[bytes]) -> bytes:
    start = chance.randrange(len(data) + 1)
    end = min(len(data), start + chance.choice((0, 1, 2, 4, 16, 64, 1024)))
    other = chance.choice(inputs)
    at = chance.randrange(len(other) + 1)
    between: tuple[bytes, ...] = (
        chance.randbytes(chance.choice((1, 1, 2, 8))),
        b"",
        data[start:end] * 2,
        other[at : at + chance.choice((1, 8, 64))],
        *((chance.choice(pieces),) * 3 if pieces else ()),
    )
    return data[:start] + chance.choice(between) + data[end:]
