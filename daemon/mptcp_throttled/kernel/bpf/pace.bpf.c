// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Sets the pace (SO_MAX_PACING_RATE) that the daemon has decided for a socket of the proxy. Needs CAP_BPF and
 * CAP_NET_ADMIN, no type information of the kernel, and Linux 5.14.
 *
 * At PASSIVE_ESTABLISHED the program asks to be called for every RTT sample; at an RTT sample it sets the pace that the
 * map has for the socket. A socket that has a pace from us and is not in the map gets back what it had before, and leaves
 * the class that throttle.bpf.c has put it into: this is how the next daemon frees the sockets that a killed one has left.
 */
#include "socket.h"

char LICENSE[] SEC("license") = "GPL";

/* The ramp to a new pace takes 2^9 ticks of 2^20 ns: 0.54 s. */
#define TICK_BITS 20
#define RAMP_BITS 9

/* Of a paced socket: what it had before. */
struct options {
	__u32 pace;
	__u32 unsent_limit;
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct options);
} options_before SEC(".maps");

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

/* Before Linux 6.1 the kernel does not return them: then 0 is the default of both. */
static __always_inline void present_options(struct bpf_sock_ops *ctx, struct options *options)
{
	options->pace = UNLIMITED;
	options->unsent_limit = 0;
	bpf_getsockopt(ctx, SOL_SOCKET, SO_MAX_PACING_RATE, &options->pace, sizeof(options->pace));
	bpf_getsockopt(ctx, SOL_TCP, TCP_NOTSENT_LOWAT, &options->unsent_limit, sizeof(options->unsent_limit));
}

static __always_inline void begin_or_change(struct bpf_sock_ops *ctx, struct bpf_sock *sk, struct pace *pace)
{
	struct options present, *before = bpf_sk_storage_get(&options_before, sk, 0, 0);
	__u32 wanted = on_ramp(ctx, pace);

	present_options(ctx, &present);
	if (!before) {
		before = bpf_sk_storage_get(&options_before, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
		if (!before)
			return;
		*before = present;
		if (was_paced_by_us(present.pace, present.unsent_limit)) {
			before->pace = UNLIMITED;
			before->unsent_limit = 0;
		}
	}
	if (wanted != present.pace)
		set_pace(ctx, wanted);
}

static __always_inline void end(struct bpf_sock_ops *ctx, struct bpf_sock *sk)
{
	struct options present, *before = bpf_sk_storage_get(&options_before, sk, 0, 0);

	if (before) {
		set_pace(ctx, before->pace);
		set_unsent_limit(ctx, before->unsent_limit);
		bpf_sk_storage_delete(&options_before, sk);
		return;
	}
	present_options(ctx, &present);
	if (was_paced_by_us(present.pace, present.unsent_limit)) {
		set_pace(ctx, UNLIMITED);
		set_unsent_limit(ctx, 0);
	}
}

SEC("sockops")
int apply_paces(struct bpf_sock_ops *ctx)
{
	struct bpf_sock *sk = ctx->sk;
	struct ends ends;
	struct pace *pace;
	__u32 priority = 0;

	if (!is_proxy_port(ctx->local_port) || !is_in_our_namespace(ctx) || !sk)
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
		begin_or_change(ctx, sk, pace);
	else
		end(ctx, sk);
	bpf_getsockopt(ctx, SOL_SOCKET, SO_PRIORITY, &priority, sizeof(priority));
	if (is_our_class(priority))
		set_priority(ctx, 0);
	return 1;
}
