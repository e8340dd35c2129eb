/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Over which subflows no DATA_ACKs arrive: a middlebox removes the options of MPTCP from what their
 * clients send, so that TCP is acknowledged and MPTCP is not. steering.bpf.c finds them. */
#ifndef DATA_ACKS_H
#define DATA_ACKS_H

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include "settings.h"

#define MAX_WATCHED 16384
/* A subflow is sick for at least so long: each change costs decisions, and is logged. */
#define LEAST_SICK_NS 5000000000ULL

/* Subflows whose ACKs are looked at, until one has a DATA_ACK: how many had none. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_WATCHED);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct ends);
	__type(value, __u32);
} watched_subflows SEC(".maps");

/* Those of them that are sick, and since when (bpf_ktime_get_ns()). The daemon reads which. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_WATCHED);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct ends);
	__type(value, __u64);
} subflows_without_data_acks SEC(".maps");

static __always_inline bool is_without_data_acks(const struct ends *ends)
{
	return bpf_map_lookup_elem(&subflows_without_data_acks, ends);
}

/* When the subflow has closed, or is well. */
static __always_inline void unwatch(const struct ends *ends)
{
	bpf_map_delete_elem(&watched_subflows, ends);
	bpf_map_delete_elem(&subflows_without_data_acks, ends);
}

/* When a DATA_ACK has arrived. */
static __always_inline void note_well(const struct ends *ends)
{
	__u64 *since = bpf_map_lookup_elem(&subflows_without_data_acks, ends);

	if (!since || bpf_ktime_get_ns() - *since >= LEAST_SICK_NS)
		unwatch(ends);
}

#endif
