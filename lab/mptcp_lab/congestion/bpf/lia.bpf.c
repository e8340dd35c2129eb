// SPDX-License-Identifier: GPL-2.0
/*
 * LIA, the coupled congestion control of RFC 6356: a packet that is acknowledged adds, in packets,
 *
 *	min(alpha / total window, 1 / own window),  alpha = total window * max(window / rtt^2) / (sum of window / rtt)^2
 *
 * (section 3, equations 1 and 2). The total window cancels out: the window grows by one packet for as many as the larger
 * of (sum of window / rtt)^2 / max(window / rtt^2) and the own window. Plain TCP has one subflow: then this is Reno.
 */
#include "coupled.h"

char LICENSE[] SEC("license") = "GPL";

/* net/ipv4/tcp_cong.c */
extern void tcp_cong_avoid_ai(struct tcp_sock *tp, __u32 window, __u32 acked) __ksym;

SEC("struct_ops/lia_ssthresh")
__u32 BPF_PROG(lia_ssthresh, struct sock *sk)
{
	return tcp_reno_ssthresh(sk);
}

SEC("struct_ops/lia_undo_cwnd")
__u32 BPF_PROG(lia_undo_cwnd, struct sock *sk)
{
	return tcp_reno_undo_cwnd(sk);
}

SEC("struct_ops/lia_cong_avoid")
void BPF_PROG(lia_cong_avoid, struct sock *sk, __u32 ack, __u32 acked)
{
	struct tcp_sock *tp = (struct tcp_sock *)sk;
	struct subflow subflows[MAX_SUBFLOWS] = {};
	__u64 best = 0, packets;
	__u32 count;

	acked = after_slow_start(tp, acked);
	if (!acked)
		return;
	count = read_subflows(tp, subflows);
#pragma unroll 1
	for (__u32 i = 0; i < MAX_SUBFLOWS && i < count; i++) {
		__u64 acceleration = acceleration_of(&subflows[i]);

		if (acceleration > best)
			best = acceleration;
	}
	packets = packets_per_increase(subflows, count, best);
	if (packets < subflows[0].window)
		packets = subflows[0].window;
	tcp_cong_avoid_ai(tp, packets < ~0U ? packets : ~0U, acked);
}

SEC(".struct_ops")
struct tcp_congestion_ops lia = {
	.ssthresh = (void *)lia_ssthresh,
	.cong_avoid = (void *)lia_cong_avoid,
	.undo_cwnd = (void *)lia_undo_cwnd,
	.name = "lia",
	.flags = TCP_CONG_NON_RESTRICTED,
};
