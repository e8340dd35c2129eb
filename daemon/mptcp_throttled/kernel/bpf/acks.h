/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What acks.bpf.c writes, and acks.py reads. */
#ifndef ACKS_H
#define ACKS_H

#include "settings.h"

/* A subflow, and what an ACK on it contains, in host byte order; `window` as in the header: already
 * shifted right by the window scale. */
struct ack {
	struct ends ends;
	__u32 sequence;
	__u32 acknowledged;
	__u32 timestamp;
	__u32 timestamp_echo;
	__u32 window;
	__u32 has_timestamps;
};

#endif
