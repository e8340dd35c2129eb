/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The access networks of the configuration. */
#ifndef NETWORKS_H
#define NETWORKS_H

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include "settings.h"

/* A subnet takes up to 200 bytes of memory, its share of the inner nodes included. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, MAX_PREFIXES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct prefix);
	__type(value, struct network);
} networks SEC(".maps");

static __always_inline struct network *network_of(__u32 proxy, const __u8 address[16])
{
	struct prefix key = { .bits = KEY_BITS, .proxy = proxy };

	__builtin_memcpy(key.address, address, sizeof(key.address));
	return bpf_map_lookup_elem(&networks, &key);
}

#endif
