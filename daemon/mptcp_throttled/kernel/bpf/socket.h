/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What the program does with a socket. */
#ifndef SOCKET_H
#define SOCKET_H

#include "addresses.h"
#include "constants.h"

/* include/uapi/asm-generic/socket.h (x86 and arm64); include/uapi/linux/tcp.h */
#define SOL_SOCKET 1
#define SO_PRIORITY 12
#define SO_MAX_PACING_RATE 47
#define SOL_TCP 6
#define TCP_NOTSENT_LOWAT 25

#define UNLIMITED 0xffffffffU /* SO_MAX_PACING_RATE in 32 bits: no limit (net/core/sock.c) */
#define SEGMENT_BYTES 1448
/* Of subflows without a pace on a network with a cap. The second is of those that the client wants as
 * backups: it tells the next instance of the daemon that steering.bpf.c has not made them so. */
#define DRAIN_UNSENT_LIMIT SEGMENT_BYTES
#define BACKUP_UNSENT_LIMIT (SEGMENT_BYTES + 1)
/* The limit of slow preferred subflows; the 1 tells it from limits that servers set. MPTCP assigns
 * what exceeds it only when something is acknowledged, and may then choose a subflow that has a pulse.
 * Where there is no limit it assigns all that is written at once: at a low rate that is a second's
 * worth. */
#define PREFERRED_UNSENT_LIMIT ((32 << 10) + 1)

static __always_inline bool is_in_our_namespace(struct bpf_sock_ops *ctx)
{
	return bpf_get_netns_cookie(ctx) == settings.netns_cookie;
}

static __always_inline bool is_our_class(__u32 priority)
{
	return (priority & 0xffff0000) == settings.htb_handle;
}

/* The verifier allows the fields of the context to be read at constant offsets only. clang would
 * merge reads in two branches into one of a computed pointer, so that all words are read first. */
#define copy_address(ctx, end, address) \
	({ \
		__u32 *words__ = (__u32 *)(address); \
		__u32 v4__ = (ctx)->end##_ip4, last__ = (ctx)->end##_ip6[3]; \
		words__[0] = (ctx)->end##_ip6[0]; \
		words__[1] = (ctx)->end##_ip6[1]; \
		words__[2] = (ctx)->end##_ip6[2]; \
		barrier_var(v4__); \
		barrier_var(last__); \
		words__[3] = last__; \
		if ((ctx)->family == AF_INET) \
			map_ipv4(address, v4__); \
	})

static __always_inline void ends_of(struct bpf_sock_ops *ctx, struct ends *ends)
{
	copy_address(ctx, remote, ends->client);
	copy_address(ctx, local, ends->proxy);
	ends->client_port = ctx->remote_port;
	ends->proxy_port = ctx->local_port;
}

/* How much a paced socket may have unsent: 16 ms of its pace, and one segment. 0 is the default of
 * the network namespace (net.ipv4.tcp_notsent_lowat). */
static __always_inline __u32 unsent_limit(__u32 pace)
{
	return pace == UNLIMITED ? 0 : (pace >> 6) + SEGMENT_BYTES;
}

/* Whether pace and limit of unsent data are as an earlier instance may have left them. If
 * unsent_limit() changes, this must also recognise what the older version has set. */
static __always_inline bool was_paced_by_us(__u32 pace, __u32 limit)
{
	if (pace == UNLIMITED)
		return limit == DRAIN_UNSENT_LIMIT || limit == BACKUP_UNSENT_LIMIT || limit == PREFERRED_UNSENT_LIMIT;
	return limit == unsent_limit(pace);
}

/* `target` is the context of a sock_ops program, or the socket of an iterator. */
#define set_unsent_limit(target, bytes) \
	({ \
		__u32 limit__ = (bytes); \
		bpf_setsockopt((void *)(target), SOL_TCP, TCP_NOTSENT_LOWAT, &limit__, sizeof(limit__)); \
	})

#define set_priority(target, priority) \
	({ \
		__u32 priority__ = (priority); \
		bpf_setsockopt((void *)(target), SOL_SOCKET, SO_PRIORITY, &priority__, sizeof(priority__)); \
	})

#define set_pace(target, bytes_per_second) \
	({ \
		__u32 pace__ = (bytes_per_second); \
		bpf_setsockopt((void *)(target), SOL_SOCKET, SO_MAX_PACING_RATE, &pace__, sizeof(pace__)) \
			?: set_unsent_limit(target, unsent_limit(pace__)); \
	})

#endif
