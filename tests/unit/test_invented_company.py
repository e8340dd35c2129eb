"""What the page for browsers and its pictures say, against what the daemon says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import page_answers
import page_company

import mptcp_throttle_web
from mptcp_throttled.vocabulary.events import EventKind

STATIC: Final = Path(mptcp_throttle_web.__file__).parent / "static"
DOCUMENTS: Final = Path(__file__).parents[2] / "docs"


def test_each_kind_of_event_has_a_group_on_the_page() -> None:
    lists = re.findall(r"kinds: \[([^]]*)\]", (STATIC / "events.js").read_text(encoding="utf-8"))
    kinds = [kind for kinds in lists for kind in re.findall(r'"([^"]*)"', kinds)]
    assert sorted(kinds) == sorted([*EventKind, "decision"])


def test_reasons_of_the_invented_company_are_in_the_documents() -> None:
    known = set(re.findall(r"`([^`]*)`", (DOCUMENTS / "howto/monitor.md").read_text(encoding="utf-8")))
    reasons = {shown["reason"] for row in page_answers.clients() for shown in row["networks"]}
    assert {*(reason.partition(";")[0] for reason in reasons), page_company.PAUSED} <= known


def test_rates_of_the_invented_company_are_not_exceeded() -> None:
    row = page_answers.clients()[0]
    for seconds in (600, 3600):
        history = page_answers.client_history(row, "lte", seconds)
        began = page_company.at(26, 13, 47)
        later = [sent for at, sent in zip(history["start"], history["sent"], strict=True) if at > began]
        assert later
        assert max(later) <= row["networks"][1]["rate_bps"]
    assert sum(page_answers.client_history(row, None, 600)["held"]) == row["held_back_ms"]


def keys_of(answer: Any) -> Iterator[str]:  # noqa: ANN401
    """Those of all objects in it."""
    if isinstance(answer, dict):
        yield from map(str, answer)
    children = answer.values() if isinstance(answer, dict) else answer if isinstance(answer, list) else ()
    for child in children:
        yield from keys_of(child)


def test_answers_of_the_invented_company_have_documented_keys_only() -> None:
    reference = (DOCUMENTS / "reference/json.md").read_text(encoding="utf-8")
    known = {name for words in re.findall(r"`([^`]*)`", reference) for name in re.findall(r"[a-z_0-9]+", words)}
    first = page_answers.clients()[0]
    answers = (
        page_answers.budgets(),
        page_answers.clients(),
        page_answers.one_client(first),
        page_answers.saved(),
        page_answers.timeline(),
        page_answers.waiting(page_company.NOW),
    )
    assert {*keys_of([*answers])} - known == set()
