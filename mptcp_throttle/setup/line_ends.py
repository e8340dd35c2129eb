"""Line ends of configuration files: those of other systems (CR LF) are kept, and are no difference."""

from __future__ import annotations

from difflib import SequenceMatcher


def without_carriage_returns(text: str) -> str:
    """The text with LF at the ends of its lines."""
    return text.replace("\r\n", "\n")


def with_line_ends_of(before: str, text: str) -> str:
    """A text with LF, changed from `before`: its lines end as they did before, new ones as most did."""
    *lines, rest = before.split("\n")
    new = text.split("\n")
    most = "\r" if 2 * before.count("\r\n") > before.count("\n") else ""
    ends = [most] * len(new)
    matcher = SequenceMatcher(None, [*(line.removesuffix("\r") for line in lines), rest], new, autojunk=False)
    for old_from, new_from, count in matcher.get_matching_blocks():
        for at, line in enumerate(lines[old_from : old_from + count], new_from):
            ends[at] = "\r" if line.endswith("\r") else ""
    ends[-1] = ""  # no line end follows
    return "\n".join(line + end for line, end in zip(new, ends, strict=True))
