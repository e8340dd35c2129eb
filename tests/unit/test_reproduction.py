"""The document of the seeds' experiments is what the kept results say."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from mptcp_lab.scenario.kept import read_all
from mptcp_lab.scenario.lab_cli import report_of
from mptcp_lab.scenario.report import as_markdown

REPOSITORY: Final = Path(__file__).parents[2]
MEASURED, DOCUMENT = Path("lab/measured"), Path("docs/contribute/reproduction.md")


@pytest.fixture(autouse=True)
def in_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)


def test_document_is_the_report_of_the_kept_results() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == as_markdown(report_of(MEASURED, DOCUMENT), DOCUMENT.parent)
    assert len(DOCUMENT.read_text(encoding="utf-8").splitlines()) < 400
    assert len(DOCUMENT.read_text(encoding="utf-8").split()) < 9000


def test_kept_results_were_measured_at_commits_without_changes() -> None:
    commits = {result.name: result.commit for result in read_all(MEASURED)}
    assert {name: commit for name, commit in commits.items() if not commit or commit.endswith("-dirty")} == {}
