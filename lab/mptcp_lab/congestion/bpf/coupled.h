/* SPDX-License-Identifier: GPL-2.0 */
/* What coupled congestion controls share: the subflows of a connection, and Reno's part. */
#ifndef COUPLED_H
#define COUPLED_H

#include <stdbool.h>
#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

/* BPF_PROG gives functions parameters that they do not use. */
#pragma clang diagnostic ignored "-Wunused-parameter"

/* include/net/tcp_states.h, include/net/tcp.h */
#define TCP_ESTABLISHED 1
#define TCP_CA_NAME_MAX 16
#define TCP_CONG_NON_RESTRICTED 1 /* network namespaces may choose it */
/* net/mptcp/pm.c: what the limits allow, and the first one */
#define MAX_SUBFLOWS 9

/* libbpf finds the offsets of these fields in the running kernel (CO-RE). */
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
/* include/linux/types.h, include/net/sock.h, include/net/inet_sock.h */
struct list_head {
	struct list_head *next;
};
struct sock_common {
	volatile unsigned char skc_state;
};
struct sock {
	struct sock_common __sk_common;
};
struct inet_sock {
	struct sock sk;
};
/* include/net/inet_connection_sock.h, include/linux/tcp.h */
struct inet_connection_sock {
	struct inet_sock icsk_inet;
	const struct tcp_congestion_ops *icsk_ca_ops;
	void *icsk_ulp_data;
	__u64 icsk_ca_priv[13];
};
struct tcp_sock {
	struct inet_connection_sock inet_conn;
	__u32 snd_cwnd, snd_cwnd_clamp, snd_ssthresh, max_packets_out, srtt_us;
	__u64 bytes_acked;
	bool is_mptcp;
	__u8 is_cwnd_limited : 1;
};
/* net/mptcp/protocol.h */
struct mptcp_sock {
	struct list_head conn_list;
};
struct mptcp_subflow_context {
	struct list_head node;
	struct sock *tcp_sock, *conn;
};
#pragma clang attribute pop

/* include/net/tcp.h: what these controls set */
struct tcp_congestion_ops {
	__u32 (*ssthresh)(struct sock *sk);
	void (*cong_avoid)(struct sock *sk, __u32 ack, __u32 acked);
	__u32 (*undo_cwnd)(struct sock *sk);
	char name[TCP_CA_NAME_MAX];
	__u32 flags;
};

/* net/ipv4/tcp_cong.c */
extern __u32 tcp_reno_ssthresh(struct sock *sk) __ksym;
extern __u32 tcp_reno_undo_cwnd(struct sock *sk) __ksym;
extern __u32 tcp_slow_start(struct tcp_sock *tp, __u32 acked) __ksym;

/* A subflow: its congestion window in packets, its smoothed round-trip time in microseconds. */
struct subflow {
	struct tcp_sock *tp;
	__u64 window, rtt;
};

static __always_inline struct subflow read_subflow(struct tcp_sock *tp)
{
	struct subflow found = { .tp = tp };

	found.window = BPF_CORE_READ(tp, snd_cwnd);
	found.rtt = BPF_CORE_READ(tp, srtt_us) >> 3;
	if (!found.rtt)
		found.rtt = 1;
	return found;
}

/*
 * The subflows of the connection of `self`, that one first, of those that are established and have the same congestion
 * control; returns their number. The list may change while it is read: then one increase is a little wrong.
 */
static __always_inline __u32 read_subflows(struct tcp_sock *self, struct subflow found[MAX_SUBFLOWS])
{
	struct mptcp_subflow_context *context;
	struct list_head *head, *at;
	struct mptcp_sock *msk;
	const void *control = BPF_CORE_READ(self, inet_conn.icsk_ca_ops);
	__u32 count = 1;

	found[0] = read_subflow(self);
	if (!BPF_CORE_READ(self, is_mptcp))
		return count;
	context = BPF_CORE_READ(self, inet_conn.icsk_ulp_data);
	msk = (void *)BPF_CORE_READ(context, conn);
	if (!msk)
		return count;
	head = (void *)msk + bpf_core_field_offset(struct mptcp_sock, conn_list);
	at = BPF_CORE_READ(head, next);
#pragma unroll 1
	for (int i = 0; i < MAX_SUBFLOWS && at && at != head; i++, at = BPF_CORE_READ(at, next)) {
		struct tcp_sock *tp;

		context = (void *)at - bpf_core_field_offset(struct mptcp_subflow_context, node);
		tp = (void *)BPF_CORE_READ(context, tcp_sock);
		if (!tp || tp == self || count >= MAX_SUBFLOWS ||
		    BPF_CORE_READ(tp, inet_conn.icsk_inet.sk.__sk_common.skc_state) != TCP_ESTABLISHED ||
		    (const void *)BPF_CORE_READ(tp, inet_conn.icsk_ca_ops) != control)
			continue;
		found[count++] = read_subflow(tp);
	}
	return count;
}

/* Windows and round-trip times enter as these integers: window * 2^20 / rtt, and that * 2^20 / rtt. */
#define SHIFT 20
#define MOST_SPEED (1ULL << 28)

static __always_inline __u64 speed_of(const struct subflow *subflow)
{
	__u64 speed = (subflow->window << SHIFT) / subflow->rtt;

	return speed < MOST_SPEED ? speed : MOST_SPEED;
}

static __always_inline __u64 acceleration_of(const struct subflow *subflow)
{
	return (speed_of(subflow) << SHIFT) / subflow->rtt;
}

/* (sum of window / rtt)^2 divided by the `acceleration`, which is window / rtt^2 of a subflow: in packets, 1 or more. */
static __always_inline __u64 packets_per_increase(const struct subflow *subflows, __u32 count, __u64 acceleration)
{
	__u64 sum = 0, packets;

#pragma unroll 1
	for (__u32 i = 0; i < MAX_SUBFLOWS && i < count; i++)
		sum += speed_of(&subflows[i]);
	packets = acceleration ? sum * sum / acceleration : 1;
	return packets ? packets : 1;
}

/* tcp_is_cwnd_limited() (include/net/tcp.h), then slow start; returns the packets for congestion avoidance. */
static __always_inline __u32 after_slow_start(struct tcp_sock *tp, __u32 acked)
{
	if (tp->snd_cwnd >= tp->snd_ssthresh)
		return BPF_CORE_READ_BITFIELD(tp, is_cwnd_limited) ? acked : 0;
	if (!BPF_CORE_READ_BITFIELD(tp, is_cwnd_limited) && tp->snd_cwnd >= 2 * tp->max_packets_out)
		return 0;
	return tcp_slow_start(tp, acked);
}

#endif
