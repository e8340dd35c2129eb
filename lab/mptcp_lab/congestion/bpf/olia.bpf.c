// SPDX-License-Identifier: GPL-2.0
/*
 * OLIA, the opportunistic coupled congestion control (draft-khalili-mptcp-congestion-control, section 2; R. Khalili et al.,
 * "MPTCP is not Pareto-optimal", CoNEXT 2012): a packet that is acknowledged adds, in packets,
 *
 *	(window / rtt^2) / (sum of window / rtt)^2 + alpha / window
 *
 * The best subflows are those with the largest l^2 / rtt, where l is what was acknowledged between the last two losses, or
 * since the last one, if that is more. Where subflows are best and have not the largest window, alpha is 1 / (subflows *
 * their number) for each of them, and -1 / (subflows * the number of those with the largest window) for each of those.
 */
#include "coupled.h"

char LICENSE[] SEC("license") = "GPL";

#define FRACTION 24 /* what is to be added is counted in 2^-24 packets */
#define MOST_KB (1ULL << 26)

/* In icsk_ca_priv: bytes_acked at the last loss and at the one before it, and what is to be added to the window. */
struct olia {
	__u64 at_last_loss, at_loss_before;
	__s64 credit;
};

static __always_inline struct olia *own(struct sock *sk)
{
	return (void *)((struct inet_connection_sock *)sk)->icsk_ca_priv;
}

/* l^2 / rtt, in 2^-10 KiB^2 / us */
static __always_inline __u64 quality_of(const struct subflow *subflow)
{
	struct tcp_sock *tp = subflow->tp;
	__u64 acked = BPF_CORE_READ(tp, bytes_acked), between, kb;
	struct olia olia = {};

	bpf_probe_read_kernel(&olia, sizeof(olia),
			      (void *)tp + bpf_core_field_offset(struct inet_connection_sock, icsk_ca_priv));
	between = olia.at_last_loss - olia.at_loss_before;
	acked -= olia.at_last_loss;
	kb = (acked > between ? acked : between) >> 10;
	if (kb > MOST_KB)
		kb = MOST_KB;
	return ((kb * kb) << 10) / subflow->rtt;
}

/* alpha of the first of these subflows, times 2^FRACTION */
static __always_inline __s64 alpha_of_first(const struct subflow *subflows, __u32 count)
{
	__u64 quality[MAX_SUBFLOWS] = {}, best = 0, largest = 0;
	__u32 collected = 0, with_largest = 0;

#pragma unroll 1
	for (__u32 i = 0; i < MAX_SUBFLOWS && i < count; i++) {
		quality[i] = quality_of(&subflows[i]);
		if (quality[i] > best)
			best = quality[i];
		if (subflows[i].window > largest)
			largest = subflows[i].window;
	}
#pragma unroll 1
	for (__u32 i = 0; i < MAX_SUBFLOWS && i < count; i++) {
		if (subflows[i].window == largest)
			with_largest++;
		else if (quality[i] == best)
			collected++;
	}
	if (!collected)
		return 0;
	if (subflows[0].window == largest)
		return -(__s64)((1ULL << FRACTION) / ((__u64)count * with_largest));
	return quality[0] == best ? (1ULL << FRACTION) / ((__u64)count * collected) : 0;
}

SEC("struct_ops/olia_ssthresh")
__u32 BPF_PROG(olia_ssthresh, struct sock *sk)
{
	struct olia *olia = own(sk);

	olia->at_loss_before = olia->at_last_loss;
	olia->at_last_loss = ((struct tcp_sock *)sk)->bytes_acked;
	return tcp_reno_ssthresh(sk);
}

SEC("struct_ops/olia_undo_cwnd")
__u32 BPF_PROG(olia_undo_cwnd, struct sock *sk)
{
	return tcp_reno_undo_cwnd(sk);
}

SEC("struct_ops/olia_cong_avoid")
void BPF_PROG(olia_cong_avoid, struct sock *sk, __u32 ack, __u32 acked)
{
	struct tcp_sock *tp = (struct tcp_sock *)sk;
	struct subflow subflows[MAX_SUBFLOWS] = {};
	struct olia *olia = own(sk);
	__s64 credit, alpha;
	__u32 count, window;

	acked = after_slow_start(tp, acked);
	if (!acked)
		return;
	count = read_subflows(tp, subflows);
	window = subflows[0].window ? subflows[0].window : 1;
	credit = (1ULL << FRACTION) / packets_per_increase(subflows, count, acceleration_of(&subflows[0]));
	alpha = alpha_of_first(subflows, count);
	/* BPF has no signed division before Linux 6.6. */
	credit += alpha < 0 ? -(__s64)((__u64)-alpha / window) : (__s64)((__u64)alpha / window);
	credit = olia->credit + credit * acked;
	if (credit >= 1LL << FRACTION) {
		__u64 larger = window + (credit >> FRACTION);

		tp->snd_cwnd = larger < tp->snd_cwnd_clamp ? larger : tp->snd_cwnd_clamp;
		credit &= (1LL << FRACTION) - 1;
	} else if (credit <= -(1LL << FRACTION)) {
		if (window > 1)
			tp->snd_cwnd = window - 1;
		credit = 0;
	}
	olia->credit = credit;
}

SEC(".struct_ops")
struct tcp_congestion_ops olia = {
	.ssthresh = (void *)olia_ssthresh,
	.cong_avoid = (void *)olia_cong_avoid,
	.undo_cwnd = (void *)olia_undo_cwnd,
	.name = "olia",
	.flags = TCP_CONG_NON_RESTRICTED,
};
