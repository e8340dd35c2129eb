// SPDX-License-Identifier: GPL-2.0-or-later
/* Writes of each connected socket of this network namespace: its port, whether it is a subflow, whether it has joined, and
 * TCP_NOTSENT_LOWAT. */
#include "subflow.h"

char LICENSE[] SEC("license") = "GPL";

struct found {
	__u32 limit;
	__u16 port;
	__u8 is_mptcp;
	__u8 joined;
};

SEC("iter/tcp")
int unsent_limits(struct bpf_iter__tcp *ctx)
{
	struct sock_common *common = ctx->sk_common;
	struct tcp_sock *tp = common ? bpf_skc_to_tcp_sock(common) : NULL;
	struct found found = {};

	if (!tp || BPF_CORE_READ(common, skc_state) != BPF_TCP_ESTABLISHED)
		return 0;
	found.port = BPF_CORE_READ(common, skc_num);
	found.is_mptcp = BPF_CORE_READ(tp, is_mptcp);
	found.joined = found.is_mptcp && joined(tp);
	found.limit = BPF_CORE_READ(tp, notsent_lowat);
	bpf_seq_write(ctx->meta->seq, &found, sizeof(found));
	return 0;
}
