"""Elements of ipsets: ours are decoded as the kernel lists them, and no others."""

from ipaddress import ip_address

import pytest

from mptcp_throttled.kernel.classes.elements import ELEMENT_BYTES, Element, decode_element, encode_element

# From an IPSET_CMD_LIST of Linux 6.18.
FROM_KERNEL = bytes.fromhex(
    "38000780 0c000180 08000100 0a091f4a 0c001480 08000100 0a030002 06000440 81110000 05000700 06000000"
    "0c001b40 0d320000 ffff0000"
)
ELEMENT = Element(ip_address("10.9.31.74"), 33041, ip_address("10.3.0.2"), 0x0D32_0000, 0xFFFF_0000)
SIX = Element(ip_address("fd00:1::2"), 40000, ip_address("fd00:3::2"), 0x0002_0000, 0xFFFF_0000)


def test_decode_element_reads_what_the_kernel_lists() -> None:
    assert decode_element(FROM_KERNEL, 4) == ELEMENT


@pytest.mark.parametrize(
    "raw",
    [
        FROM_KERNEL[:-4],
        FROM_KERNEL + b"\0" * 4,
        FROM_KERNEL.replace(bytes.fromhex("0500070006"), bytes.fromhex("0500070011")),  # UDP
        FROM_KERNEL.replace(bytes.fromhex("0c001b40"), bytes.fromhex("0c001c40")),  # skbprio
    ],
)
def test_decode_element_returns_none_for_elements_we_never_add(raw: bytes) -> None:
    assert decode_element(raw, 4) is None


@pytest.mark.parametrize(("element", "version"), [(ELEMENT, 4), (SIX, 6)])
def test_encode_element_differs_from_the_listed_in_byte_order_flags(element: Element, version: int) -> None:
    raw = encode_element(element)
    assert len(raw) == ELEMENT_BYTES[version]
    flagged, plain = (bytes([version // 2 - 1, flag]) for flag in (0x40, 0x00))
    assert decode_element(raw.replace(flagged, plain), version) == element
