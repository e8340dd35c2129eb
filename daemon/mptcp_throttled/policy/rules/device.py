"""Devices: their own rates replace those of the network, whichever window of its schedule holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mptcp_throttled.vocabulary.terms import RuleName, Term

if TYPE_CHECKING:
    from mptcp_throttled.vocabulary.terms import RuleInput, Terms


def apply(terms: Terms, given: RuleInput) -> Terms:
    """The terms with the device's own rates; kinds without an own rate stay those of the network."""
    device = None if given.client is None else given.network.devices.by_first.get(given.client)
    if device is None or not device.rates:
        return terms
    own = {kind: Term(rate, "own rate of the device", rule=RuleName.DEVICE) for kind, rate in device.rates.items()}
    return {**terms, **own}
