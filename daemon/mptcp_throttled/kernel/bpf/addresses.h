/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Addresses and ports, as all programs see them. */
#ifndef ADDRESSES_H
#define ADDRESSES_H

#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "settings.h"

const volatile struct settings settings SEC(".rodata");

static __always_inline bool is_proxy_port(__u32 port)
{
	bool found = false;

#pragma unroll
	for (int i = 0; i < MAX_PORTS; i++)
		if (port == settings.ports[i])
			found = true;
	return found && port;
}

static __always_inline void map_ipv4(__u8 address[16], __u32 v4)
{
	__u32 *words = (__u32 *)address;

	words[0] = words[1] = 0;
	words[2] = bpf_htonl(0xffff);
	words[3] = v4;
}

#endif
