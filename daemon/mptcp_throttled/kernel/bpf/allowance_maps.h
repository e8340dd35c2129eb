/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What is left of budgets until their next stage, and the rates of that stage. The daemon says where
 * a stage begins; the programs count to there, and apply its rates from then on, until the daemon
 * does. throttle.bpf.c and steering.bpf.c share these maps. */
#ifndef ALLOWANCE_MAPS_H
#define ALLOWANCE_MAPS_H

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include "settings.h"
#include "token_bucket.h"

#define MAX_ALLOWANCES 1024 /* number 0 is none */

/* Which IP bytes an allowance counts, seen from the client. */
enum counting { COUNTS_DOWN = 1, COUNTS_UP = 2 };

/* The stage is reached when `counted` has `end` bytes. `arming` is another number each time the daemon
 * gives the element to a budget. From the end on, a subflow with a live preferred path has at most the
 * pace `cap`, any other at most `limit`, in bytes/s of payload; 0: there is none. 1024 bytes of what the
 * subflows with a cap share take `ns_per_kib`. */
struct allowance {
	__u64 end;
	__u64 ns_per_kib;
	__u32 arming;
	__u32 counting;
	__u32 cap;
	__u32 limit;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_ALLOWANCES);
	__type(key, __u32);
	__type(value, struct allowance);
} allowances SEC(".maps");

/* What the programs have counted for the allowance with the same number, for whatever budgets it had.
 * `told` is the end that the daemon was told of last. Subflows with a cap share the `bucket`. */
struct counted {
	struct bucket bucket;
	__u64 bytes;
	__u64 told;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_ALLOWANCES);
	__type(key, __u32);
	__type(value, struct counted);
} counted SEC(".maps");

/* The allowances of an address: that of its client, and that of all clients of its network. */
#define OF_CLIENT 0
#define OF_NETWORK 1
#define PER_ADDRESS 2
struct numbers {
	__u32 of_client;
	__u32 of_network;
};

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, MAX_PREFIXES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct prefix);
	__type(value, struct numbers);
} allowance_numbers SEC(".maps");

/* The numbers of allowances that have been used up, for the daemon. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 14);
} used_up SEC(".maps");

/* Of a socket: the IP bytes to and from the client when they were counted last, and the armings of
 * the allowances that they were counted for. */
struct socket_count {
	__u64 sent;
	__u64 received;
	__u32 armings[PER_ADDRESS];
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct socket_count);
} socket_counts SEC(".maps");

#endif
