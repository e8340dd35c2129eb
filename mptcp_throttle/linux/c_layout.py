"""C structures as named tuples: each field's type has its format, in the syntax of the module `struct`.

Offsets and padding follow from the fields, by the rules of the machine's C compiler.
"""

from __future__ import annotations

from functools import cache
from struct import Struct, calcsize
from typing import Annotated, Final, NamedTuple, TypeVar, get_type_hints

U8 = Annotated[int, "B"]
U16 = Annotated[int, "H"]
S16 = Annotated[int, "h"]
U32 = Annotated[int, "I"]
U64 = Annotated[int, "Q"]
MAX_U32: Final = 0xFFFF_FFFF

_Layout = TypeVar("_Layout", bound=NamedTuple)


def pack(value: NamedTuple) -> bytes:
    """The structure in memory. Raises struct.error if a number does not fit."""
    return struct_of(type(value)).pack(*value)


def unpack(layout: type[_Layout], data: bytes) -> _Layout:
    """The fields of a structure. Raises struct.error if it has another size."""
    return layout._make(struct_of(layout).unpack(data))


def size_of(layout: type[NamedTuple]) -> int:
    """The size in bytes, padding included."""
    return struct_of(layout).size


def formats(layout: type[NamedTuple]) -> dict[str, str]:
    """The format of each field, by its name."""
    return {name: hint.__metadata__[0] for name, hint in get_type_hints(layout, include_extras=True).items()}


@cache
def struct_of(layout: type[NamedTuple]) -> Struct:
    """For the places where `pack` is too slow: it takes twice the time."""
    of_fields = formats(layout).values()
    # No item of the widest type at the end: a structure is padded to the alignment of its widest member.
    return Struct("".join(of_fields) + "0" + max((text[-1] for text in of_fields), key=calcsize))
