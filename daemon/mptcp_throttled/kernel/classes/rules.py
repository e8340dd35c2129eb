"""The classifier `rules`: one MARK rule per subflow in our chain, which matches address and port of both ends.

Easy to read with iptables-save, but every packet is compared with every rule, and every change writes the whole table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from typing import Any

from mptcp_throttle.model import Endpoint, FourTuple
from mptcp_throttled.kernel.classes.iptables import OwnChain, target_of
from mptcp_throttled.kernel.classes.nft_tables import OwnTables
from mptcp_throttled.vocabulary.class_ids import mark_shift
from mptcp_throttled.vocabulary.kernel_state import IP_VERSIONS, AssignmentState


class RulesClassifier:
    """The classifier `rules`. `mask` has the bits of the fwmark that name the class."""

    kind = "rules"
    needs_filter = True

    def __init__(self, mask: int) -> None:
        self._mask = mask
        self._chains = {version: OwnChain(version) for version in IP_VERSIONS}
        self._tables = OwnTables()  # of the classifier `nft`

    def close(self) -> None:
        self._tables.close()

    def require(self) -> None:
        self._chains[4].require_table()

    def read(self) -> dict[int, AssignmentState]:
        states = {}
        with_table = self._tables.present()
        for version, chain in self._chains.items():
            state = chain.read(self._parse)
            if version in with_table:
                states[version] = AssignmentState({} if state is None else state.assignments, altered=True)
            elif state is not None:
                states[version] = state
        return states

    def count(self) -> dict[int, int | None]:
        return {version: None if state.altered else len(state.assignments) for version, state in self.read().items()}

    def make(self, ip_version: int, assignments: Mapping[FourTuple, int]) -> None:
        chain = self._chains[ip_version]
        chain.make(lambda: self._rules(chain, assignments))
        self._tables.remove(ip_version)

    def change(self, ip_version: int, add: Mapping[FourTuple, int], remove: Mapping[FourTuple, int]) -> None:
        chain = self._chains[ip_version]
        chain.change(
            f"add {len(add)} marks, remove {len(remove)}",
            lambda: (self._rules(chain, add), self._rules(chain, remove)),
        )

    def remove(self, ip_version: int) -> None:
        self._chains[ip_version].remove()
        self._tables.remove(ip_version)

    def _parse(self, rules: Sequence[Any]) -> AssignmentState:
        assignments: dict[FourTuple, int] = {}
        altered = False
        for rule in rules:
            ends = _ends_of(rule)
            minor = self._minor_of(rule)
            if ends is None or minor is None or ends in assignments:
                altered = True
            else:
                assignments[ends] = minor
        return AssignmentState(assignments, altered)

    def _rules(self, chain: OwnChain, assignments: Mapping[FourTuple, int]) -> list[Any]:
        return [self._rule(chain, *assignment) for assignment in assignments.items()]

    def _rule(self, chain: OwnChain, ends: FourTuple, minor: int) -> Any:
        rule = chain.new_rule()
        rule.src = str(ends.proxy.address)
        rule.dst = str(ends.client.address)
        match = rule.create_match("tcp")
        match.sport = str(ends.proxy.port)
        match.dport = str(ends.client.port)
        rule.create_target("MARK").set_xmark = f"{minor << mark_shift(self._mask):#x}/{self._mask:#x}"
        return rule

    def _minor_of(self, rule: Any) -> int | None:
        # Reading the parameters of a rule that is not ours can fail in many ways.
        if target_of(rule) != "MARK":
            return None
        # iptables shows --set-mark as --set-xmark, and so does python-iptables.
        value, _, mask = rule.target.parameters.get("set_xmark", "").partition("/")
        try:
            return int(value, 0) >> mark_shift(self._mask) if int(mask, 0) == self._mask else None
        except ValueError:
            return None


def _ends_of(rule: Any) -> FourTuple | None:
    if len(rule.matches) != 1 or rule.matches[0].name != "tcp":
        return None
    ports = rule.matches[0].parameters
    try:
        return FourTuple(
            Endpoint(ip_address(rule.dst.partition("/")[0]), int(ports["dport"])),
            Endpoint(ip_address(rule.src.partition("/")[0]), int(ports["sport"])),
        )
    except (KeyError, ValueError):
        return None
