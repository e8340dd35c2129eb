"""The features of the kernel besides HTB classes, and what is said about them wherever they are shown."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple

DOCUMENTS: Final = "/usr/share/doc/mptcp-throttle/docs"
"""Where the package has the documents that remedies name."""


class FeatureName(StrEnum):
    """The features, as `status --json` names them."""

    STEERING = "steering"
    PACING = "pacing"
    UPLINKS = "uplinks"
    DISCARDS = "discards"


class FeatureTexts(NamedTuple):
    """What is said when a feature is in place; what its absence costs; and what to do about it."""

    in_place: str
    drawback: str
    remedy: str


FEATURE_TEXTS: Final[Mapping[FeatureName, FeatureTexts]] = {
    FeatureName.PACING: FeatureTexts(
        "caps are decided in the kernel",
        "missing, so a cap slows down the whole connection",
        f"{DOCUMENTS}/explanation/paces.md says what it needs; daemon.pacing: false does without it",
    ),
    FeatureName.STEERING: FeatureTexts(
        "capped subflows are held back while preferred ones can do without them",
        "missing, so capped subflows carry data that preferred ones could carry",
        f"{DOCUMENTS}/explanation/steering.md says what it needs; daemon.steering: false does without it",
    ),
    FeatureName.DISCARDS: FeatureTexts(
        "clients are kept from discarding segments",
        "not prevented, so connections over several networks may stall",
        f"{DOCUMENTS}/explanation/discards.md says what it needs; daemon.prevent_discards: false does without it",
    ),
}
"""Problems of uplinks are among the errors."""
