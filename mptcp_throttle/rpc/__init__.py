"""JSON-RPC 2.0 over Unix sockets: how the services, the command line and the lab talk to each other.

| socket | method | result |
|---|---|---|
| `sniffer.sock` | `status()` | counters, table sizes, capture drops |
| | `snapshot(after)` | `{epoch, revision, connections, next}`: the table, a few thousand connections at a time |
| | `changes(epoch, revision, timeout, patience)` | `{epoch, revision, changes, more}` or `{resync: true}` |
| | `reload()` | `{problems, valid}`; with problems nothing has changed |
| `daemon.sock` | `status()` | networks with rates, kernel state, last errors |
| | `connections()` | every connection, with the decision for each subflow and its reason |
| | `top(number, order, pattern)` | of each access network, the busiest clients with their busiest subflows |
| | `decisions(number)` | the latest decisions that have changed something |
| | `history(name, seconds)` | what an access network or a client has carried, by second, minute or hour |
| | `plan()` | the kernel operations that the present decisions lead to |
| | `set_rate(network, direction, kind, rate, seconds, client)` | the network's status, once applied |
| | `reset_rate(network, client)` | the same |
| | `pause(seconds)`, `resume()` | `{pause}`, null or `{expires_at, seconds_left}`, once applied |
| | `reload()` | `{changes, dropped_overrides, problems, notes, valid}`; with problems nothing has changed |

`wire` encodes connections. One socket connection carries any number of requests (HTTP/1.1 keep-alive).

jsonrpclib-pelix and the standard library do HTTP, JSON-RPC, dispatch, keep-alive and the retry of a call whose
connection was dropped. Ours is what they do not bound:

| ours | bound |
|---|---|
| `bounded_server`: `BoundedReader` | bytes per request; http.server takes 100 header lines of 64 KiB |
| `server`: `_RequestHandler` | no incomplete request is executed, none is unzipped; errors quote 200 characters |
| `bounded_server`: `BoundedServer` | connections (one thread each), seconds that one may wait for its client |
| `client`: `_BoundedSocket` | seconds per call, bytes per answer; pelix has neither bound |
| `client`: `_Transport` | a call can be interrupted from another thread |
"""

from mptcp_throttle.rpc.client import ChangeNotYetAppliedError, RpcClient, RpcError
from mptcp_throttle.rpc.server import RpcServer, peer_uid
from mptcp_throttle.rpc.wire import Json

__all__ = ["ChangeNotYetAppliedError", "Json", "RpcClient", "RpcError", "RpcServer", "peer_uid"]
