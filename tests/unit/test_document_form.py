"""The form of documents: short lines, short sentences, a README of two screens, and an index that leads everywhere."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

REPOSITORY: Final = Path(__file__).parents[2]
DOCUMENTS: Final = sorted([*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md")])
PRINTED: Final = REPOSITORY / "docs/contribute/reproduction.md"
"""What the seed found, in its own lists of figures, is part of the scenarios that this is printed from."""

INDEX: Final = REPOSITORY / "docs/index.md"

README_LINES: Final = 120
LINE_CHARACTERS: Final = 400
SENTENCE_WORDS: Final = 40
QUESTIONS: Final = 11


def prose(text: str) -> Iterator[tuple[int, str]]:
    """Each line with its number, without those of tables and of blocks, of which an empty one is left."""
    fence = ""
    for number, line in enumerate(text.splitlines(), 1):
        opened = re.match(r" *(```+)", line)
        if fence:
            fence = "" if line.strip() == fence else fence
            yield number, ""
        elif opened:
            fence = opened[1]
            yield number, ""
        else:
            yield number, "" if line.lstrip().startswith("|") else line


def sentences(text: str) -> Iterator[tuple[int, str]]:
    """Each sentence with the number of the line in which its paragraph begins; code and links count as one word."""
    paragraph, began = "", 0
    for number, line in (*prose(text), (0, "")):
        begins = not line.strip() or re.match(r" *([*-]|\d+\.|#+) ", line)
        if begins and paragraph:
            plain = re.sub(r"`[^`]*`", "code", paragraph)
            plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", plain)
            yield from ((began, sentence) for sentence in re.split(r"(?<=[.!?])[\"')*]*\s+", plain))
            paragraph = ""
        if line.strip():
            began = began if paragraph else number
            paragraph += f" {line.strip()}"


def test_readme_is_short() -> None:
    lines = (REPOSITORY / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= README_LINES


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_document_has_no_long_line(document: Path) -> None:
    lines = prose(document.read_text(encoding="utf-8"))
    assert not [number for number, line in lines if len(line) > LINE_CHARACTERS]


@pytest.mark.parametrize("document", [path for path in DOCUMENTS if path != PRINTED], ids=lambda path: path.name)
def test_document_has_no_long_sentence(document: Path) -> None:
    found = sentences(document.read_text(encoding="utf-8"))
    assert not [(line, sentence) for line, sentence in found if len(sentence.split()) > SENTENCE_WORDS]


def test_sentences_are_counted_without_code_tables_and_blocks() -> None:
    text = "# A heading\n\nOne `a b`\ntwo. [Three four](x.md#y).\n* Five.\n\n| six |\n\n```\nseven.\n```\n"
    assert list(sentences(text)) == [
        (1, " # A heading"),
        (3, " One code two."),
        (3, "Three four."),
        (5, " * Five."),
    ]


def test_index_leads_to_every_document() -> None:
    linked = {
        (INDEX.parent / link.partition("#")[0]).resolve()
        for link in re.findall(r"\]\(([^)]*)\)", INDEX.read_text(encoding="utf-8"))
    }
    top = REPOSITORY / "README.md"
    assert not [str(path) for path in DOCUMENTS if path not in {top, INDEX} and path not in linked]


def test_index_answers_the_questions_of_an_operator() -> None:
    text = INDEX.read_text(encoding="utf-8")
    assert len(re.findall(r"^\d+\. \[[^\]]+\]\(howto/\w+\.md#[\w-]+\)$", text, re.MULTILINE)) == QUESTIONS
