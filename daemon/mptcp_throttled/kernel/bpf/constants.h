/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What the daemon sets before it loads a program. */
#ifndef CONSTANTS_H
#define CONSTANTS_H

#include <stdbool.h>
#include <bpf/bpf_helpers.h>
#include "settings.h"

const volatile struct settings settings SEC(".rodata");

/* The number of the proxy that has a port; 0: none has it. */
static __always_inline __u32 proxy_with_port(__u32 port)
{
	/* Without it clang drops `% PORTS`, and the verifier of Linux 6.1 misses that bound. */
	barrier_var(port);
	return settings.proxies[port % PORTS];
}

#endif
