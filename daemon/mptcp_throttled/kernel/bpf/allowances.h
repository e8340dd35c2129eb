/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Counting for allowances, and what those that are used up leave to a subflow. */
#ifndef ALLOWANCES_H
#define ALLOWANCES_H

#include "allowance_maps.h"
#include "networks.h"
#include "subflow.h"

/* So little is left that subflows may have hardly anything unsent: it would still leave after the end. Before
 * that, slow subflows of many may not gather more than they send until then. */
#define NEAR_BYTES (16 << 20)
#define SOON_BYTES (64 << 20)

/* What each segment has besides its payload (vocabulary/traffic.py). */
#define TCP_HEADER_BYTES 32
#define DSS_BYTES 12
#define DSS_WITH_DATA_BYTES 28

/* What used-up allowances leave to a subflow; 0: no bound. `lowest` is the number of that with the lowest
 * cap. `is_near` and `is_soon`: so little is left of an allowance. */
struct bounds {
	__u32 cap;
	__u32 limit;
	__u32 lowest;
	__u32 is_near;
	__u32 is_soon;
};

static __always_inline __u32 lower_pace(__u32 pace, __u32 bound)
{
	return bound && (!pace || bound < pace) ? bound : pace;
}

static __always_inline struct numbers *allowances_of(__u32 proxy, const __u8 address[16])
{
	struct prefix key = { .bits = KEY_BITS, .proxy = proxy };

	__builtin_memcpy(key.address, address, sizeof(key.address));
	return bpf_map_lookup_elem(&allowance_numbers, &key);
}

static __always_inline void add_bounds(struct bounds *bounds, __u32 number)
{
	struct allowance *allowance = number ? bpf_map_lookup_elem(&allowances, &number) : NULL;
	struct counted *of_allowance = number ? bpf_map_lookup_elem(&counted, &number) : NULL;
	__s64 left;

	if (!allowance || !of_allowance || !allowance->arming)
		return;
	left = allowance->end - of_allowance->bytes;
	if (left > 0) {
		bounds->is_near |= left < NEAR_BYTES;
		bounds->is_soon |= left < SOON_BYTES;
		return;
	}
	if (lower_pace(bounds->cap, allowance->cap) != bounds->cap) {
		of_allowance->bucket.ns_per_kib = allowance->ns_per_kib;
		of_allowance->bucket.credit_ns = CREDIT_NS;
		bounds->lowest = number;
		bounds->cap = allowance->cap;
	}
	bounds->limit = lower_pace(bounds->limit, allowance->limit);
}

/* Not inlined, so that the verifier looks at it once. Both pointers are never NULL. */
__noinline int find_bounds(__u32 proxy, const struct ends *ends, struct bounds *bounds)
{
	struct numbers *numbers;

	if (!ends || !bounds)
		return 0;
	numbers = allowances_of(proxy, ends->client);
	if (!numbers)
		return 0;
	add_bounds(bounds, numbers->of_client);
	add_bounds(bounds, numbers->of_network);
	return 0;
}

/* The number of the used-up allowance with the lowest cap; 0: there is none. */
__noinline int lowest_allowance(__u32 proxy, const struct ends *ends)
{
	struct numbers *numbers = ends ? allowances_of(proxy, ends->client) : NULL;
	struct bounds bounds = {};

	if (!numbers)
		return 0;
	add_bounds(&bounds, numbers->of_client);
	add_bounds(&bounds, numbers->of_network);
	return bounds.lowest;
}

/* The bucket of the allowance that caps a subflow; NULL: none does. */
static __always_inline struct bucket *bucket_of_allowance(__u32 proxy, const struct ends *ends)
{
	__u32 number = lowest_allowance(proxy, ends);

	return number ? bpf_map_lookup_elem(&counted, &number) : NULL;
}

/* The pace of a capped subflow on a network, whatever its share is; 0: it has no cap. */
static __always_inline __u32 cap_on(const struct network *network, const struct ends *ends)
{
	__u32 number = network->may_be_narrowed ? lowest_allowance(network->proxy, ends) : 0;
	struct allowance *lowest = number ? bpf_map_lookup_elem(&allowances, &number) : NULL;

	return lowest ? lower_pace(network->pace, lowest->cap) : network->pace;
}

static __always_inline void count_for(__u32 number, __u32 *arming, __u64 sent, __u64 received, bool is_new)
{
	struct allowance *allowance = number ? bpf_map_lookup_elem(&allowances, &number) : NULL;
	struct counted *of_allowance = number ? bpf_map_lookup_elem(&counted, &number) : NULL;
	__u64 bytes = 0, end, before;
	bool is_known;

	if (!allowance || !of_allowance || !allowance->arming) {
		*arming = 0;
		return;
	}
	is_known = *arming == allowance->arming;
	*arming = allowance->arming;
	/* What older sockets have carried, the daemon has counted. */
	if (!is_known && !is_new)
		return;
	if (allowance->counting & COUNTS_DOWN)
		bytes += sent;
	if (allowance->counting & COUNTS_UP)
		bytes += received;
	end = allowance->end;
	before = __sync_fetch_and_add(&of_allowance->bytes, bytes);
	if ((__s64)(end - before - bytes) > 0)
		return;
	before = of_allowance->told;
	if (before != end && __sync_bool_compare_and_swap(&of_allowance->told, before, end))
		bpf_ringbuf_output(&used_up, &number, sizeof(number), 0);
}

/* What `now` exceeds `before` by; nothing if a 32-bit counter behind it has wrapped around. */
static __always_inline __u64 exceeds(__u64 now, __u64 before)
{
	__s64 difference = now - before;

	return difference > 0 ? difference : 0;
}

/* IP bytes as the daemon counts them (vocabulary/traffic.py). */
struct carried {
	__u64 sent;
	__u64 received;
};

static __always_inline void read_carried(struct carried *carried, struct tcp_sock *tp, bool is_ipv4)
{
	bool is_mptcp = BPF_CORE_READ(tp, is_mptcp);
	__u64 header = TCP_HEADER_BYTES + (is_ipv4 ? 20 : 40) + (is_mptcp ? DSS_BYTES : 0);
	__u64 with_data = is_mptcp ? DSS_WITH_DATA_BYTES - DSS_BYTES : 0;

	carried->sent = BPF_CORE_READ(tp, bytes_sent) + header * BPF_CORE_READ(tp, segs_out) +
			with_data * BPF_CORE_READ(tp, data_segs_out);
	carried->received = BPF_CORE_READ(tp, bytes_received) + header * BPF_CORE_READ(tp, segs_in) +
			    with_data * BPF_CORE_READ(tp, data_segs_in);
}

/* Not inlined, so that the verifier looks at it once. No pointer is NULL. */
__noinline int count_for_all(const struct numbers *numbers, struct socket_count *count, const struct carried *carried,
			     bool is_new)
{
	__u64 sent, received;

	if (!numbers || !count || !carried)
		return 0;
	sent = exceeds(carried->sent, count->sent);
	received = exceeds(carried->received, count->received);
	count->sent = carried->sent;
	count->received = carried->received;
	count_for(numbers->of_client, &count->armings[OF_CLIENT], sent, received, is_new);
	count_for(numbers->of_network, &count->armings[OF_NETWORK], sent, received, is_new);
	return 0;
}

/* Counts what a socket has carried, for the allowances of its client. `sk` is a pointer with which
 * programs find what they keep at the socket. `is_new_socket`: it has just been established. */
#define count_carried(sk, tp, proxy, address, is_new_socket) \
	({ \
		struct numbers *numbers__ = allowances_of(proxy, address); \
		struct carried carried__; \
		struct socket_count *count__ = numbers__ ? \
			bpf_sk_storage_get(&socket_counts, sk, 0, BPF_SK_STORAGE_GET_F_CREATE) : NULL; \
		if (count__) { \
			read_carried(&carried__, tp, is_mapped_ipv4(address)); \
			count_for_all(numbers__, count__, &carried__, is_new_socket); \
		} \
	})

#endif
