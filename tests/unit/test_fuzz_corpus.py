"""Replays the corpus of the fuzzers (tests/fuzz/fuzz_options.py and fuzz_tracker.py), and what is nearly right."""

from pathlib import Path

import mutated_bytes
import options_target
import pytest
import tracker_target

CORPUS = Path(__file__).parents[1] / "fuzz" / "corpus"
OPTIONS = sorted((CORPUS / "options").iterdir())
TRACKER = sorted((CORPUS / "tracker").iterdir())


@pytest.mark.parametrize("file", OPTIONS, ids=lambda file: file.name)
def test_corpus_of_options_is_decoded_consistently(file: Path) -> None:
    options_target.check(file.read_bytes())


@pytest.mark.parametrize("file", TRACKER, ids=lambda file: file.name)
def test_corpus_of_segments_leaves_the_table_consistent(file: Path) -> None:
    tracker_target.check(file.read_bytes())


def test_options_that_are_nearly_right_are_decoded_consistently() -> None:
    mutated_bytes.check(options_target.check, [file.read_bytes() for file in OPTIONS])


def test_segments_that_are_nearly_right_leave_the_table_consistent() -> None:
    mutated_bytes.check(tracker_target.check, [file.read_bytes() for file in TRACKER])
