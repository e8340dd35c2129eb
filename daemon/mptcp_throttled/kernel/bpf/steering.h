/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What steering.bpf.c, throttle.bpf.c and the daemon share; program_layout.py has the same
 * structures. Times are those of bpf_ktime_get_ns(), which are CLOCK_MONOTONIC. */
#ifndef STEERING_H
#define STEERING_H

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include "settings.h"

#define MAX_STEERED 65536

/* The mark (skb->mark) of a packet that is to become an ACK: which, and what it says. The ingress
 * filter removes it. */
#define ACK_MARK 0x4d500000U
#define ACK_MARK_MASK 0xfffe0000U
#define KEEP_ALIVE_MARK 0x4d520000U /* it becomes a keep-alive for the client instead */
#define ACK_MARK_BACKUP 0x00010000U
#define ACK_MARK_SLOT 0x0000ffffU

/* What MPTCP at the proxy was told of a subflow last: nothing that holds, that it is a backup, that
 * it is regular. */
enum proxy_told { NOTHING_HOLDS, IS_BACKUP, IS_REGULAR };

/* A subflow on an access network that has a cap. `is_capped`: when `looked_at`, its connection had a
 * live preferred subflow, and has had one since `capped_at`. `client_wants_backup` is what the client
 * itself has asked for. `counted` is what its socket had sent when its bucket was charged last,
 * payload alone. `free_bytes` of what it had queued when the cap began are still to be sent, and cost
 * its bucket nothing. `is_uncounted`: it sends through an interface without our filter, so that it is
 * paced instead. `acks` have been made. The one that is on its way has `sequence`, the next byte of
 * the client that the proxy has acknowledged, `acknowledgment`, and `window`, as its header has it. It
 * arrives at `interface`, or at another one if that has no filters any more. For `held_ns` so far, data
 * of its connection has waited for it; that is counted until `held_until`. */
struct steered {
	__u64 told_at;
	__u64 looked_at;
	__u64 capped_at;
	__u64 open_until;
	__u64 counted;
	__u64 held_until;
	__u64 held_ns;
	__u16 told;
	__u16 window;
	__u32 is_capped;
	__u32 client_wants_backup;
	__u32 is_uncounted;
	__u32 slot;
	__u32 interface;
	__u32 sequence;
	__u32 acknowledgment;
	__u32 acks;
	__u32 free_bytes;
};

/* throttle.bpf.c uses the map of steering.bpf.c, or an empty one where that is not loaded. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_STEERED);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct ends);
	__type(value, struct steered);
} steered_subflows SEC(".maps");

/* Indices of the map `counters`. */
enum steering_counter { TOLD_AS_BACKUP, TOLD_AS_REGULAR, TOLD_AGAIN, PULSES, NOT_TOLD, NOT_STEERED };

#endif
