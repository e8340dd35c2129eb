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

/* Both are aligned to 4 bytes. memcmp() of 16 bytes is a call, which programs do not have. */
static __always_inline bool is_same_address(const __u8 *one, const __u8 *other)
{
	const __u32 *words = (const void *)one, *others = (const void *)other;

	return words[0] == others[0] && words[1] == others[1] && words[2] == others[2] && words[3] == others[3];
}

#endif
