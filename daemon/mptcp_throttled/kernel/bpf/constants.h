/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What the daemon sets before it loads a program. */
#ifndef CONSTANTS_H
#define CONSTANTS_H

#include <stdbool.h>
#include <bpf/bpf_helpers.h>
#include "settings.h"

const volatile struct settings settings SEC(".rodata");

static __always_inline bool is_proxy_port(__u32 port)
{
	bool is_configured = false;

#pragma unroll
	for (int i = 0; i < MAX_PORTS; i++)
		if (port == settings.ports[i])
			is_configured = true;
	return is_configured && port;
}

#endif
