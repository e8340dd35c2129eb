"""Elements of nftables maps: encoded as the kernel lists them, and no others are decoded."""

import pytest
from examples import ends

from mptcp_throttle.model import FourTuple
from mptcp_throttled.kernel.classes.nft_elements import MAP_ELEMENT_BYTES, decode_map_element, encode_map_element

FOUR, SIX = ends("10.9.31.74", 33041), ends("fd00:1::2")
# From an NFT_MSG_GETSETELEM of Linux 6.18 on a host with little-endian numbers.
RAW_FOUR = bytes.fromhex("28000100 18000100 14000100 0a091f4a 81110000 0a030002 1f900000 0c000200 08000100 320d504d")
RAW_SIX = bytes.fromhex(
    "40000100 30000100 2c000100 fd000001 00000000 00000000 00000002 9c400000"
    "fd000003 00000000 00000000 00000002 1f900000 0c000200 08000100 0200504d"
)


@pytest.mark.parametrize(("subflow", "minor", "raw"), [(FOUR, 0xD32, RAW_FOUR), (SIX, 2, RAW_SIX)])
def test_map_element_is_encoded_as_the_kernel_lists_it(subflow: FourTuple, minor: int, raw: bytes) -> None:
    version = subflow.client.address.version
    assert encode_map_element(subflow, minor) == raw
    assert len(raw) == MAP_ELEMENT_BYTES[version]
    assert decode_map_element(raw, version) == (subflow, minor)


@pytest.mark.parametrize(
    "raw",
    [
        RAW_FOUR[:-4],
        RAW_FOUR + bytes(4),
        RAW_FOUR.replace(bytes.fromhex("320d504d"), bytes.fromhex("0200514d")),  # not our HTB
        RAW_FOUR.replace(bytes.fromhex("320d504d"), bytes.fromhex("0000504d")),  # HTB itself
        RAW_FOUR.replace(bytes.fromhex("18000100"), bytes.fromhex("18000300")),  # NFTA_SET_ELEM_FLAGS
    ],
)
def test_map_element_that_we_never_add_is_not_decoded(raw: bytes) -> None:
    assert decode_map_element(raw, 4) is None
