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
	/* Without it clang drops `% PORT_BYTES`, and the verifier of Linux 6.1 misses that bound. */
	barrier_var(port);
	return settings.ports[port / 8 % PORT_BYTES] >> port % 8 & 1;
}

#endif
