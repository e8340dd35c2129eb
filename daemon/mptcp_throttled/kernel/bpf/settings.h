/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What programs and the daemon share; program_layout.py has the same structures. */
#ifndef SETTINGS_H
#define SETTINGS_H

#include <linux/types.h>
#include <bpf/bpf_helpers.h>

/* Puts a type that no map has into the type information of the object, where a test compares it
 * with program_layout.py. libbpf skips the section. */
#define SHARED_WITH_DAEMON(name, type) type *name SEC("shared")

#define PORTS 65536
#define MAX_PROXIES 16 /* mptcp_throttle/proxies.py */

/* Constant once the program is loaded. Sockets of other network namespaces, each with a daemon of
 * its own, may be in the same cgroup. `proxies` has the number of the proxy with each port; 0: none
 * has it. A connection is in the control group if the low 32 bits of the hash of its token are below
 * `control_bound`; 0: there is none. */
struct settings {
	__u64 netns_cookie;
	__u8 proxies[PORTS];
	__u32 htb_handle;
	__u32 control_bound;
	__u64 control_key[2];
};

/* The two ends of a subflow. IPv4 addresses are IPv4-mapped. The client's port is in network byte
 * order, in 32 bits, as in struct bpf_sock_ops. */
struct ends {
	__u8 client[16];
	__u8 proxy[16];
	__u32 client_port;
	__u32 proxy_port;
};

/* The key of an access network: the number of a proxy, whose bits count as well, and a prefix,
 * IPv4-mapped like all addresses. */
struct prefix {
	__u32 bits;
	__u32 proxy;
	__u8 address[16];
};

#define KEY_BITS (32 + 128) /* of a proxy and an address */

/* Twice the most subnets that a configuration may have (mptcp_throttle/config/network_files.py), and one for each
 * proxy: a reload adds the new prefixes before it deletes the old ones. */
#define MAX_PREFIXES (2 * (65535 + MAX_PROXIES))

/* A client of a proxy. */
struct client {
	__u32 proxy;
	__u8 address[16];
};

/* An access network of the proxy with the number `proxy`. `pace` is that of a capped subflow that
 * the daemon has not decided on yet; 0: no cap. For `provisional_ns` a connection's first subflow
 * has that pace too, until a preferred one can have joined. `limited`: the network has a limit, so
 * the daemon gives each subflow a class, capped or not. `steered`: steering.bpf.c holds capped
 * subflows back, so they need no pace. A subflow with a lower rate than `slow_rate` bytes/s may
 * have little unsent, for less preferred ones, which have caps; 0: none has. The bounds, 0 if there
 * is none, within which a path of the network is healthy: the round trip in microseconds, the loss
 * in thousandths, the rate in bytes/s. `has_budgets`: connections without MPTCP are counted, too.
 * `may_be_narrowed`: a stage of these may lower the rates (allowance_maps.h). */
struct network {
	__u32 preference;
	__u32 pace;
	__u64 provisional_ns;
	__u32 limited;
	__u32 steered;
	__u32 max_rtt_us;
	__u32 max_loss;
	__u32 min_rate;
	__u32 slow_rate;
	__u32 proxy;
	__u32 has_budgets;
	__u32 may_be_narrowed;
};

/* A subflow that has closed, with its totals; or a connection without MPTCP, whose `token` is 0.
 * Bytes are payload; those sent include those retransmitted. `own_acks` of `segments_in` were made
 * by steering.bpf.c; for `held_ns`, data waited while it held the subflow back. */
struct closed {
	struct ends ends;
	__u64 cookie;
	__u64 bytes_sent;
	__u64 bytes_retransmitted;
	__u64 bytes_received;
	__u64 held_ns;
	__u32 segments_out;
	__u32 segments_in;
	__u32 data_segments_out;
	__u32 data_segments_in;
	__u32 token;
	__u32 own_acks;
};

/* A connection whose last subflow has closed, and whose first subflow is not older than the program.
 * `lasted_ns` ends with the last data that a client has acknowledged. Bytes are payload, those
 * retransmitted included; `capped_bytes` of `bytes` were sent over networks with a cap. */
struct ended {
	__u64 lasted_ns;
	__u64 bytes;
	__u64 capped_bytes;
	__u32 token;
	__u32 in_control_group;
};

/* Of addresses that are in no access network: the longest prefix may be one of these. */
#define NO_PREFERENCE 0xffffffff

/* Indices of the map `counters`. */
enum counter { TOTALS_LOST, SOCKETS_REFUSED, NOT_COMPARED };

#endif
