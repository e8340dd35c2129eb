// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Sets the pace (SO_MAX_PACING_RATE) that the daemon has decided for a socket of the proxy. Needs CAP_BPF and
 * CAP_NET_ADMIN, no type information of the kernel, and Linux 5.14.
 *
 * At PASSIVE_ESTABLISHED the program asks to be called for every RTT sample; at an RTT sample it sets the pace that the
 * map has for the socket. A socket that is paced but not in the map loses its pace, and any socket the class that
 * throttle.bpf.c has put it into: this is how the next daemon frees the sockets that a killed one has left.
 */
#include "socket.h"

char LICENSE[] SEC("license") = "GPL";

/* The ramp to a new pace takes 2^9 ticks of 2^20 ns: 0.54 s. */
#define TICK_BITS 20
#define RAMP_BITS 9

static __always_inline __u32 delivery_rate(struct bpf_sock_ops *ctx)
{
	__u64 bytes = (__u64)ctx->rate_delivered * ctx->mss_cache;
	__u32 interval = ctx->rate_interval_us;
	__u64 rate = interval ? bytes * 1000000 / interval : 0;

	/* ACKs that arrive in a burst can give a rate of more than 32 bits. */
	return rate < UNLIMITED ? rate : UNLIMITED;
}

/* A new pace is reached in half a second, down from the delivery rate of the subflow, so that what is queued in the
 * socket can still leave: about 200 kB, whose last byte the receiver would otherwise wait for at the new pace. */
static __always_inline __u32 on_ramp(struct bpf_sock_ops *ctx, struct pace *pace)
{
	__u64 now = bpf_ktime_get_ns(), ticks;
	__u32 rate;

	if (!pace->ramp_began) {
		pace->ramp_began = now;
		pace->ramp_from = delivery_rate(ctx);
	}
	ticks = (now - pace->ramp_began) >> TICK_BITS;
	if (ticks >> RAMP_BITS)
		return pace->bytes_per_second;
	rate = pace->ramp_from - (pace->ramp_from * ticks >> RAMP_BITS);
	return rate > pace->bytes_per_second ? rate : pace->bytes_per_second;
}

SEC("sockops")
int apply_paces(struct bpf_sock_ops *ctx)
{
	__u32 wanted = UNLIMITED, present = UNLIMITED, limit = 0, priority = 0;
	struct ends ends;
	struct pace *pace;

	if (!is_socket_of_proxy(ctx))
		return 1;
	if (ctx->op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB) {
		bpf_sock_ops_cb_flags_set(ctx, ctx->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_RTT_CB_FLAG);
		return 1;
	}
	if (ctx->op != BPF_SOCK_OPS_RTT_CB)
		return 1;
	ends_of(ctx, &ends);
	pace = bpf_map_lookup_elem(&paces, &ends);
	if (pace)
		wanted = on_ramp(ctx, pace);
	bpf_getsockopt(ctx, SOL_SOCKET, SO_MAX_PACING_RATE, &present, sizeof(present));
	bpf_getsockopt(ctx, SOL_TCP, TCP_NOTSENT_LOWAT, &limit, sizeof(limit));
	/* A socket that throttle.bpf.c was draining has no pace, but a limit. */
	if (wanted != present || (wanted == UNLIMITED && limit == DRAIN_UNSENT_LIMIT))
		set_pace(ctx, wanted);
	bpf_getsockopt(ctx, SOL_SOCKET, SO_PRIORITY, &priority, sizeof(priority));
	if (is_our_class(priority))
		set_priority(ctx, 0);
	return 1;
}
