/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What the programs do with a socket. */
#ifndef SOCKET_H
#define SOCKET_H

#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "settings.h"

/* include/linux/socket.h; include/uapi/asm-generic/socket.h (x86 and arm64); include/uapi/linux/tcp.h */
#define AF_INET 2
#define AF_INET6 10
#define SOL_SOCKET 1
#define SO_MAX_PACING_RATE 47
#define SOL_TCP 6
#define TCP_NOTSENT_LOWAT 25

#define UNLIMITED 0xffffffffU /* net/core/sock.c: SO_MAX_PACING_RATE of ~0 in 32 bits means no limit */
#define SEGMENT_BYTES 1448
#define DRAIN_UNSENT_LIMIT SEGMENT_BYTES

const volatile struct settings settings SEC(".rodata");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct ends);
	__type(value, struct pace);
} paces SEC(".maps");

/* Whether the socket is one of the proxy's. */
static __always_inline bool is_ours(struct bpf_sock_ops *ctx)
{
	__u32 port = ctx->local_port;
	bool found = false;

#pragma unroll
	for (int i = 0; i < MAX_PORTS; i++)
		if (port == settings.ports[i])
			found = true;
	return found && port && bpf_get_netns_cookie(ctx) == settings.netns_cookie;
}

/* The verifier allows the fields of the context to be read at constant offsets only. clang would merge reads in two
 * branches into one of a computed pointer, so that all words are read first. */
static __always_inline void client_address(struct bpf_sock_ops *ctx, __u8 address[16])
{
	__u32 *words = (__u32 *)address;
	__u32 v4 = ctx->remote_ip4, a = ctx->remote_ip6[0], b = ctx->remote_ip6[1], c = ctx->remote_ip6[2];
	__u32 d = ctx->remote_ip6[3];

	barrier_var(v4);
	barrier_var(d);
	if (ctx->family == AF_INET) {
		a = b = 0;
		c = bpf_htonl(0xffff);
		d = v4;
	}
	words[0] = a;
	words[1] = b;
	words[2] = c;
	words[3] = d;
}

static __always_inline void ends_of(struct bpf_sock_ops *ctx, struct ends *ends)
{
	client_address(ctx, ends->address);
	ends->client_port = ctx->remote_port;
	ends->proxy_port = ctx->local_port;
}

/* How much a paced socket may have unsent: 16 ms of its pace, and one segment. 0 is the default of the network
 * namespace (net.ipv4.tcp_notsent_lowat). */
static __always_inline __u32 unsent_limit(__u32 pace)
{
	return pace == UNLIMITED ? 0 : (pace >> 6) + SEGMENT_BYTES;
}

/* `target` is the context of a sock_ops program, or the socket of an iterator. */
#define set_unsent_limit(target, bytes)                                                             \
	({                                                                                          \
		__u32 limit__ = (bytes);                                                            \
		bpf_setsockopt((void *)(target), SOL_TCP, TCP_NOTSENT_LOWAT, &limit__, sizeof(limit__)); \
	})

#define set_pace(target, bytes_per_second)                                                          \
	({                                                                                          \
		__u32 pace__ = (bytes_per_second);                                                  \
		bpf_setsockopt((void *)(target), SOL_SOCKET, SO_MAX_PACING_RATE, &pace__, sizeof(pace__)) \
			?: set_unsent_limit(target, unsent_limit(pace__));                          \
	})

#endif
