"""Links of BPF programs, as another program of root sees and detaches them."""

from __future__ import annotations

import ctypes
import os
import re
from typing import Final

from mptcp_lab.process import descriptor_texts

_FIELD: Final = re.compile(r"^(\w+):\s*(\S+)$", re.MULTILINE)
_TARGETS: Final = ("cgroup_id", "ifindex")


def links_of(pid: int) -> dict[int, bool]:
    """The links to cgroups and interfaces of which a process has descriptors, by id; whether they are attached."""
    links = {}
    for text in descriptor_texts(pid):
        fields = dict(_FIELD.findall(text))
        for target in _TARGETS:
            if "link_id" in fields and target in fields:
                links[int(fields["link_id"])] = fields[target] != "0"
    return links


def detach(link: int) -> None:
    """What `bpftool link detach id LINK` does."""
    libbpf = ctypes.CDLL("libbpf.so.1", use_errno=True)
    descriptor = libbpf.bpf_link_get_fd_by_id(link)
    assert descriptor >= 0
    try:
        assert libbpf.bpf_link_detach(descriptor) == 0
    finally:
        os.close(descriptor)
