"""Plays a video through the proxy and prints its segments as JSON, as a client program.

`python -m mptcp_lab.player PROXY PORT [--tcp] [--from ADDRESS] --segments N URL...`: a URL for each bitrate, the lowest
first; each segment of that bitrate is the document there. One connection carries all, and stays open. See `playback`.
"""

from __future__ import annotations

import json
import socket
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from mptcp_lab.fetch import IPPROTO_MPTCP, connected, get, proxy_arguments
from mptcp_lab.playback import LADDER, Playback

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from http.client import HTTPConnection


def play(connection: HTTPConnection, urls: Mapping[int, str], segments: int) -> Playback:
    """Play `segments` segments; `urls` are by bitrate (bits/s). Raises OSError or HTTPException."""
    playback = Playback()
    for _ in range(segments):
        time.sleep(playback.seconds_until_room(time.monotonic()))
        requested = time.monotonic()
        bitrate = playback.next_bitrate(requested)
        get(connection, urls[bitrate])
        playback.add(bitrate, requested, time.monotonic())
    return playback


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the segments; their times are of the monotonic clock."""
    parser = proxy_arguments("player", __doc__)
    parser.add_argument("--segments", type=int, required=True, metavar="N")
    parser.add_argument("urls", nargs=len(LADDER), metavar="URL")
    options = parser.parse_args(arguments)
    protocol = socket.IPPROTO_TCP if options.tcp else IPPROTO_MPTCP
    with connected((options.proxy, options.port), protocol, options.source) as connection:
        playback = play(connection, dict(zip(LADDER, options.urls, strict=True)), options.segments)
    print(json.dumps([asdict(segment) for segment in playback.segments]))


if __name__ == "__main__":
    main()
