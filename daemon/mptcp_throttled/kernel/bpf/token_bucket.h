/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What subflows owe that share a rate. */
#ifndef TOKEN_BUCKET_H
#define TOKEN_BUCKET_H

#include <stdbool.h>
#include <linux/types.h>

/* Unused rate that may be kept: the interval at which the daemon runs `remind`. Without it each
 * interval would lose that much. */
#define CREDIT_NS 40000000ULL
#define CAS_ATTEMPTS 4

/* Charges for bytes, 1024 of which take `ns_per_kib`, by moving `paid_at`, until which there is
 * debt; whether there is any then. */
static __always_inline bool charge(__u64 *paid_at, __u64 ns_per_kib, __u64 bytes, __u64 now)
{
	__u64 cost = bytes * ns_per_kib >> 10, present = *paid_at;

	if (!cost)
		return present > now;
#pragma unroll 1
	for (int i = 0; i < CAS_ATTEMPTS; i++) {
		__u64 from = present > now - CREDIT_NS ? present : now - CREDIT_NS;
		__u64 seen = __sync_val_compare_and_swap(paid_at, present, from + cost);

		if (seen == present)
			return from + cost > now;
		present = seen;
	}
	return present > now;
}

#endif
