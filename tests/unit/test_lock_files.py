"""The lock files agree, and each has all of the one that is installed where less is needed."""

import re
from pathlib import Path
from typing import Final

import pytest

REPOSITORY: Final = Path(__file__).parents[2]


def _locked(name: str) -> dict[str, str]:
    """The version and hashes of each package of a lock file."""
    text = (REPOSITORY / name).read_text(encoding="utf-8")
    return dict(re.findall(r"^([a-z0-9-]+)==((?:.*\\\n)+.*)$", text, re.MULTILINE))


@pytest.mark.parametrize(
    ("less", "more"),
    [("requirements.lock", "requirements-demo.lock"), ("requirements-demo.lock", "requirements-dev.lock")],
)
def test_larger_environment_has_all_of_the_smaller(less: str, more: str) -> None:
    assert len(_locked(less)) > 20
    assert _locked(less).items() <= _locked(more).items()
