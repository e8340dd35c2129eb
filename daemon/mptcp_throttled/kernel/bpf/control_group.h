/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Which connections are in the control group: their downloads have no cap. A keyed hash of the token
 * tells; the daemon computes the same (vocabulary/control_group.py). */
#ifndef CONTROL_GROUP_H
#define CONTROL_GROUP_H

#include "constants.h"
#include "subflow.h"

struct sip {
	__u64 v0, v1, v2, v3;
};

static __always_inline __u64 rotated(__u64 number, int bits)
{
	return number << bits | number >> (64 - bits);
}

static __always_inline void sip_rounds(struct sip *sip, int rounds)
{
#pragma unroll
	for (int i = 0; i < rounds; i++) {
		sip->v0 += sip->v1;
		sip->v2 += sip->v3;
		sip->v1 = rotated(sip->v1, 13) ^ sip->v0;
		sip->v3 = rotated(sip->v3, 16) ^ sip->v2;
		sip->v0 = rotated(sip->v0, 32) + sip->v3;
		sip->v2 += sip->v1;
		sip->v3 = rotated(sip->v3, 21) ^ sip->v0;
		sip->v1 = rotated(sip->v1, 17) ^ sip->v2;
		sip->v2 = rotated(sip->v2, 32);
	}
}

/* SipHash-2-4 (Aumasson and Bernstein, 2012) of the four bytes of the token, the lowest first. Not
 * inlined, so that the verifier looks at it once. */
__noinline int token_is_below(__u32 token, __u32 bound)
{
	__u64 k0 = settings.control_key[0], k1 = settings.control_key[1];
	__u64 block = token | (__u64)sizeof(token) << 56;
	struct sip sip = {
		.v0 = k0 ^ 0x736f6d6570736575ULL,
		.v1 = k1 ^ 0x646f72616e646f6dULL,
		.v2 = k0 ^ 0x6c7967656e657261ULL,
		.v3 = k1 ^ 0x7465646279746573ULL ^ block,
	};

	sip_rounds(&sip, 2);
	sip.v0 ^= block;
	sip.v2 ^= 0xff;
	sip_rounds(&sip, 4);
	return (__u32)(sip.v0 ^ sip.v1 ^ sip.v2 ^ sip.v3) < bound;
}

static __always_inline bool has_control_group(void)
{
	return settings.control_bound;
}

static __always_inline bool in_control_group(__u32 token)
{
	return has_control_group() && token_is_below(token, settings.control_bound);
}

/* The token by which the proxy knows the connection. A subflow that the proxy has opened has none in
 * its own context. */
static __always_inline __u32 token_of(struct mptcp_sock *msk)
{
	return BPF_CORE_READ(msk, token);
}

/* Whether the connection of a subflow is. */
static __always_inline bool belongs_to_control_group(struct tcp_sock *tp)
{
	return has_control_group() && in_control_group(token_of(connection_of(tp)));
}

#endif
