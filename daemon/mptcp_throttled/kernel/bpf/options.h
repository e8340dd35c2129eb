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
#define MAX_OPTIONS 40

/* Reads the beginning of the option at this offset; false: the options end there. */
static __always_inline bool load_option(struct __sk_buff *skb, __u32 at, __u32 end, __u8 option[OPTION_BASE_BYTES])
{
	return at + OPTION_BASE_BYTES <= end && !bpf_skb_load_bytes(skb, at, option, OPTION_BASE_BYTES) &&
	       option[0] != OPTION_END;
}

/* Where the segment has the first MPTCP option of this subtype; 0: it has none. */
static __always_inline __u32 find_mptcp_option(struct __sk_buff *skb, const struct segment *segment, __u8 subtype)
{
	__u32 at = tcp_offset(segment) + sizeof(struct tcphdr);
	__u32 end = tcp_offset(segment) + segment->tcp_bytes;

	for (int i = 0; i < MAX_OPTIONS; i++) {
		__u8 option[OPTION_BASE_BYTES];

		if (!load_option(skb, at, end, option))
			return 0;
		if (option[0] == OPTION_NOP) {
			at++;
			continue;
		}
		if (option[0] == OPTION_MPTCP && option[2] >> 4 == subtype)
			return at;
		if (option[1] < 2)
			return 0;
		at += option[1];
	}
	return 0;
}

#endif
