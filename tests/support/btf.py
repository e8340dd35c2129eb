"""The types in the section `.BTF` of a BPF object file, as clang has written them (Documentation/bpf/btf.rst)."""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

# include/uapi/linux/elf.h: of Elf64_Ehdr e_shoff, e_shentsize, e_shnum and e_shstrndx; Elf64_Shdr
_ELF_HEADER: Final = Struct("<40xQ10xHHH")
_ELF_SECTION: Final = Struct("<I20xQQ24x")

# include/uapi/linux/btf.h: struct btf_header, struct btf_type
_HEADER: Final = Struct("<HBBIIIII")
_TYPE: Final = Struct("<III")
_MAGIC: Final = 0xEB9F
_POINTER_BYTES: Final = 8


class Kind(IntEnum):
    """BTF_KIND_..."""

    VOID = 0
    INT = 1
    PTR = 2
    ARRAY = 3
    STRUCT = 4
    UNION = 5
    ENUM = 6
    FWD = 7
    TYPEDEF = 8
    VOLATILE = 9
    CONST = 10
    RESTRICT = 11
    FUNC = 12
    FUNC_PROTO = 13
    VAR = 14
    DATASEC = 15


_MODIFIERS: Final = {Kind.TYPEDEF, Kind.VOLATILE, Kind.CONST, Kind.RESTRICT}
# What follows struct btf_type: struct btf_array, and the linkage of a variable; one of these for each item: struct
# btf_member, btf_enum, btf_param, btf_var_secinfo.
_DETAILS: Final = {Kind.INT: Struct("<I"), Kind.ARRAY: Struct("<III"), Kind.VAR: Struct("<I")}
_ITEMS: Final = {
    Kind.STRUCT: Struct("<III"),
    Kind.UNION: Struct("<III"),
    Kind.ENUM: Struct("<II"),
    Kind.FUNC_PROTO: Struct("<II"),
    Kind.DATASEC: Struct("<III"),
}


class Member(NamedTuple):
    """A member of a structure; `offset` is in bytes."""

    offset: int
    type: int


class _Type(NamedTuple):
    kind: Kind
    name: str
    size_or_type: int
    details: tuple[tuple[int, ...], ...] = ()


class Btf:
    """The types of an object file, by their numbers."""

    def __init__(self, path: Path) -> None:
        data = section(path, ".BTF")
        magic, _, _, header_bytes, types_at, types_bytes, texts_at, texts_bytes = _HEADER.unpack_from(data)
        assert magic == _MAGIC, path
        self._texts = data[header_bytes + texts_at :][:texts_bytes]
        types = data[header_bytes + types_at :][:types_bytes]
        self._types = [_Type(Kind.VOID, "", 0), *self._read(types)]

    def _read(self, data: bytes) -> Iterator[_Type]:
        at = 0
        while at < len(data):
            name, info, size_or_type = _TYPE.unpack_from(data, at)
            at += _TYPE.size
            kind = Kind(info >> 24 & 0x1F)
            if kind in _ITEMS:
                item, count = _ITEMS[kind], info & 0xFFFF
            else:
                item, count = _DETAILS.get(kind, _TYPE), kind in _DETAILS
            end = at + item.size * count
            yield _Type(kind, _text(self._texts, name), size_or_type, tuple(item.iter_unpack(data[at:end])))
            at = end

    def _plain(self, number: int) -> _Type:
        """Without `const` and the like."""
        while self._types[number].kind in _MODIFIERS:
            number = self._types[number].size_or_type
        return self._types[number]

    def kind(self, number: int) -> Kind:
        """The kind of a type."""
        return self._plain(number).kind

    def name(self, number: int) -> str:
        """The name of a structure or an enumeration, without `struct` or `enum`."""
        return self._plain(number).name

    def size(self, number: int) -> int:
        """The size of a type, in bytes."""
        plain = self._plain(number)
        if plain.kind is Kind.PTR:
            return _POINTER_BYTES
        if plain.kind is Kind.ARRAY:
            ((of_type, _, count),) = plain.details
            return self.size(of_type) * count
        return plain.size_or_type

    def target(self, number: int) -> int:
        """What a pointer points to."""
        plain = self._plain(number)
        assert plain.kind is Kind.PTR
        return plain.size_or_type

    def length(self, number: int) -> int:
        """The number of the items of an array."""
        ((_, _, count),) = self._plain(number).details
        return count

    def members(self, number: int) -> dict[str, Member]:
        """The members of a structure, by their names; it has no bit fields."""
        items = self._plain(number).details
        assert all(bits % 8 == 0 for _, _, bits in items)
        return {_text(self._texts, name): Member(bits // 8, of_type) for name, of_type, bits in items}

    def enumerators(self, number: int) -> dict[str, int]:
        """The values of an enumeration, by their names."""
        return {_text(self._texts, name): value for name, value in self._plain(number).details}

    def variables(self, section: str) -> dict[str, int]:
        """The types of the variables in a section of the object, by their names."""
        sections = [of_type for of_type in self._types if of_type.kind is Kind.DATASEC and of_type.name == section]
        variables = [self._types[number] for of_type in sections for number, _, _ in of_type.details]
        return {variable.name: variable.size_or_type for variable in variables}


def section(path: Path, name: str) -> bytes:
    """The content of a section of an object file; nothing if it has none of this name."""
    elf = path.read_bytes()
    table_at, entry_bytes, count, names_index = _ELF_HEADER.unpack_from(elf)
    sections = [_ELF_SECTION.unpack_from(elf, table_at + entry_bytes * index) for index in range(count)]
    _, names_at, names_bytes = sections[names_index]
    names = elf[names_at : names_at + names_bytes]
    (found,) = [elf[at : at + size] for name_at, at, size in sections if _text(names, name_at) == name] or [b""]
    return found


def _text(texts: bytes, at: int) -> str:
    return texts[at : texts.index(b"\0", at)].decode()
