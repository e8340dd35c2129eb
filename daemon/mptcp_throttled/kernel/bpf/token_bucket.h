/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What subflows owe that share a rate. */
#ifndef TOKEN_BUCKET_H
#define TOKEN_BUCKET_H

#include <stdbool.h>
#include <linux/types.h>

/* Unused rate that may be kept without a burst: the interval at which the daemon runs `remind`. Without it each
 * interval would lose that much. */
#define CREDIT_NS 40000000ULL
#define CAS_ATTEMPTS 4

/* The rate that capped subflows share. `ns_per_kib` is how long 1024 bytes take, headers included.
 * Until `paid_at` they are in debt, until `open_until` one of them may send. `last_pulse` is the
 * `open_until` of the subflow that waits longest for its next pulse; it asked for it at
 * `asked_at`. Up to `credit_ns` of unused rate are kept: with a burst, what it takes at the rate.
 * `is_bursting`: they send as if they had no cap, until the burst is used. */
struct bucket {
	__u64 ns_per_kib;
	__u64 paid_at;
	__u64 open_until;
	__u64 last_pulse;
	__u64 asked_at;
	__u64 credit_ns;
	__u32 is_bursting;
	__u32 padding;
};

/* Charges for bytes, 1024 of which take `ns_per_kib`, by moving `paid_at`, until which there is
 * debt; whether there is any then. Up to `credit_ns` of unused rate are kept. */
static __always_inline bool charge(__u64 *paid_at, __u64 ns_per_kib, __u64 bytes, __u64 credit_ns, __u64 now)
{
	__u64 oldest = now > credit_ns ? now - credit_ns : 0;
	__u64 cost = bytes * ns_per_kib >> 10, present = *paid_at;

	if (!cost)
		return present > now;
#pragma unroll 1
	for (int i = 0; i < CAS_ATTEMPTS; i++) {
		__u64 from = present > oldest ? present : oldest;
		__u64 seen = __sync_val_compare_and_swap(paid_at, present, from + cost);

		if (seen == present)
			return from + cost > now;
		present = seen;
	}
	return present > now;
}

#endif
