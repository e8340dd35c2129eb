"""How `benchmarks/soak` keeps what services have in memory small, so that it is full within the warm-up."""

from __future__ import annotations

from pathlib import Path

from mptcp_lab.soak.proxy import limit_page_cache
from mptcp_throttled.accounting.history import History


def test_page_cache_of_the_history_is_as_small_as_the_soak_wants_it(tmp_path: Path) -> None:
    state = tmp_path / "state"
    limit_page_cache(state)
    history = History(state / "history.sqlite", "a boot")
    assert history._database is not None
    assert history._database.execute("PRAGMA cache_size").fetchall() == [(50,)]
    history.close()
