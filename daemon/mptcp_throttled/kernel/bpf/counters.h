/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What a program counts, by the indices that it has an enumeration for. */
#ifndef COUNTERS_H
#define COUNTERS_H

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>

#define MAX_COUNTERS 8

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_COUNTERS);
	__type(key, __u32);
	__type(value, __u64);
} counters SEC(".maps");

static __always_inline void count(__u32 which)
{
	__u64 *value = bpf_map_lookup_elem(&counters, &which);

	if (value)
		__sync_fetch_and_add(value, 1);
}

#endif
