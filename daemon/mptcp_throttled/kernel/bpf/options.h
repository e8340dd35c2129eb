/* SPDX-License-Identifier: GPL-2.0-or-later */
/* TCP options, as programs at an interface look for them (RFC 9293, section 3.2; RFC 8684, section 3). */
#ifndef OPTIONS_H
#define OPTIONS_H

#include "segment.h"

#define OPTION_END 0
#define OPTION_NOP 1
#define OPTION_MPTCP 30
#define MPTCP_DSS 2
#define MPTCP_PRIO 5
#define OPTION_BASE_BYTES 3
/* RFC 8684, section 3.3: where the flags of a DSS option are, and what comes before its DATA_ACK */
#define DSS_FLAGS 3
#define DSS_HAS_ACK 1
#define DSS_ACK_64 2
#define DSS_BASE_BYTES 4
#define MAX_OPTIONS 40

/* The offset of the first option of this kind, and of this subtype if it is MPTCP's, from `at` to `end`; 0: none. An
 * option of two bytes at the end is not found.
 *
 * A function that the verifier follows by itself, for any arguments. Inside its callers, it would follow it for each of
 * their states: Linux 6.1 then takes seconds. */
__attribute__((noinline)) __u32 find_option(struct __sk_buff *skb, __u32 at, __u32 end, __u8 kind, __u8 subtype)
{
	for (int i = 0; i < MAX_OPTIONS; i++) {
		__u8 option[OPTION_BASE_BYTES];

		if (at + OPTION_BASE_BYTES > end || bpf_skb_load_bytes(skb, at, option, OPTION_BASE_BYTES) ||
		    option[0] == OPTION_END)
			return 0;
		if (option[0] == OPTION_NOP) {
			at++;
			continue;
		}
		if (option[0] == kind && (kind != OPTION_MPTCP || option[2] >> 4 == subtype))
			return at;
		if (option[1] < 2)
			return 0;
		at += option[1];
	}
	return 0;
}

static __always_inline __u32 find_segment_option(struct __sk_buff *skb, const struct segment *segment, __u8 kind,
						 __u8 subtype)
{
	__u32 tcp_at = tcp_offset(segment);

	return find_option(skb, tcp_at + sizeof(struct tcphdr), tcp_at + segment->tcp_bytes, kind, subtype);
}

/* Where the segment has the first MPTCP option of this subtype; 0: it has none. */
static __always_inline __u32 find_mptcp_option(struct __sk_buff *skb, const struct segment *segment, __u8 subtype)
{
	return find_segment_option(skb, segment, OPTION_MPTCP, subtype);
}

/* Where the segment has a DATA_ACK, and its size in bytes; 0: it has none. */
static __always_inline __u32 find_data_ack(struct __sk_buff *skb, const struct segment *segment, __u32 *bytes)
{
	__u32 at = find_mptcp_option(skb, segment, MPTCP_DSS), end = tcp_offset(segment) + segment->tcp_bytes;
	__u8 flags;

	if (!at || at + DSS_BASE_BYTES > end || bpf_skb_load_bytes(skb, at + DSS_FLAGS, &flags, sizeof(flags)) ||
	    !(flags & DSS_HAS_ACK))
		return 0;
	*bytes = flags & DSS_ACK_64 ? sizeof(__u64) : sizeof(__u32);
	at += DSS_BASE_BYTES;
	return at + *bytes > end ? 0 : at;
}

#endif
