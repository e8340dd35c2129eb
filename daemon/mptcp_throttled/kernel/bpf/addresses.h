/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Addresses, as all programs see them. */
#ifndef ADDRESSES_H
#define ADDRESSES_H

#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define AF_INET 2 /* include/linux/socket.h */

static __always_inline void map_ipv4(__u8 address[16], __u32 v4)
{
	__u32 *words = (__u32 *)address;

	words[0] = words[1] = 0;
	words[2] = bpf_htonl(0xffff);
	words[3] = v4;
}

static __always_inline bool is_mapped_ipv4(const __u8 address[16])
{
	const __u32 *words = (const __u32 *)address;

	return !words[0] && !words[1] && words[2] == bpf_htonl(0xffff);
}

#endif
