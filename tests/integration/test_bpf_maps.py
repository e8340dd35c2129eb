"""Maps of a loaded program, many elements at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttle.linux.libbpf import BpfMap, BpfObject
from mptcp_throttle.proxies import ONE_PROXY
from mptcp_throttled.kernel.program_layout import OBJECTS, pack_settings

VALUE = b"abcd"


def key(number: int) -> bytes:
    return number.to_bytes(40, "big")


@pytest.fixture
def classes() -> Iterator[BpfMap]:
    with closing(BpfObject(OBJECTS / "throttle.bpf.o", pack_settings(0, ONE_PROXY, 0))) as loaded:
        yield loaded.map("classes")


def present(map_: BpfMap, number: int) -> bool:
    try:
        return map_.get(key(number)) == VALUE
    except KernelError:
        return False


def test_elements_are_deleted_although_some_of_them_are_not_there(classes: BpfMap) -> None:
    classes.update({key(number): VALUE for number in range(10)})
    classes.delete_all([key(number) for number in (20, 3, 21, 22, 4, 23)])
    assert [number for number in range(10) if not present(classes, number)] == [3, 4]


def test_cleared_map_is_empty(classes: BpfMap) -> None:
    classes.update({key(number): VALUE for number in range(5000)})
    classes.clear()
    assert not any(present(classes, number) for number in range(5000))
    classes.clear()
