"""Which connection of a listener is closed to make room."""

from mptcp_throttle_web.connections import ConnectionBounds


class Aborted:
    """A connection that tells whether it has been closed."""

    def __init__(self) -> None:
        self.is_closed = False

    def abort(self) -> None:
        self.is_closed = True


def admitted(bounds: ConnectionBounds, number: int) -> list[Aborted]:
    connections = [Aborted() for _ in range(number)]
    assert all(bounds.admit(each) for each in connections)
    return connections


def test_longest_wait_for_a_request_gives_way_first() -> None:
    bounds = ConnectionBounds(3)
    first, second, third = admitted(bounds, 3)
    for each in (first, second, first):
        bounds.begin_wait(each)
    bounds.begin_unread(third)
    admitted(bounds, 1)
    assert [each.is_closed for each in (first, second, third)] == [False, True, False]
    admitted(bounds, 1)
    assert [each.is_closed for each in (first, second, third)] == [True, True, False]


def test_longest_unread_one_gives_way_if_none_waits() -> None:
    bounds = ConnectionBounds(2)
    first, second = admitted(bounds, 2)
    for each in (second, first):
        bounds.begin_wait(each)
        bounds.end_wait(each)
        bounds.begin_unread(each)
    bounds.end_unread(second)
    admitted(bounds, 1)
    assert [first.is_closed, second.is_closed] == [True, False]


def test_new_one_gives_way_if_all_are_served() -> None:
    bounds = ConnectionBounds(1)
    (served,) = admitted(bounds, 1)
    refused = Aborted()
    assert not bounds.admit(refused)
    assert (served.is_closed, refused.is_closed) == (False, True)


def test_one_that_leaves_makes_room() -> None:
    bounds = ConnectionBounds(1)
    (left,) = admitted(bounds, 1)
    bounds.begin_wait(left)
    bounds.leave(left)
    admitted(bounds, 1)
    assert not left.is_closed
