// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Lists the subflows of the proxy, with what an ACK on each of them would contain. Needs CAP_BPF
 * and CAP_PERFMON, and the kernel's type information.
 */
#include "subflow.h"
#include "acks.h"

char LICENSE[] SEC("license") = "GPL";

SHARED_WITH_DAEMON(shared_ack, struct ack);

#define USEC_PER_MSEC 1000 /* include/net/tcp.h: time stamps are in ms, tcp_mstamp is in us */

SEC("iter/tcp")
int list_acks(struct bpf_iter__tcp *ctx)
{
	struct sock_common *common = ctx->sk_common;
	struct tcp_sock *tp = sending_subflow(common);
	struct ack ack = {};

	if (!tp || is_backup_for_client(subflow_context(tp)))
		return 0;
	/* Who has sent nothing was told nothing. Until it has, an ACK without DSS makes it fall
	 * back to TCP: net/mptcp/options.c, check_fully_established. */
	if (!BPF_CORE_READ(tp, bytes_received))
		return 0;
	ends_of_socket(common, &ack.ends);
	ack.sequence = BPF_CORE_READ(tp, snd_nxt);
	ack.acknowledged = BPF_CORE_READ(tp, rcv_nxt);
	/* rcv_wnd begins at rcv_wup: include/net/tcp.h, tcp_receive_window */
	ack.window = scaled_down(BPF_CORE_READ(tp, rcv_wup) + BPF_CORE_READ(tp, rcv_wnd) - ack.acknowledged,
				 BPF_CORE_READ_BITFIELD_PROBED(tp, rx_opt.rcv_wscale));
	ack.has_timestamps = BPF_CORE_READ_BITFIELD_PROBED(tp, rx_opt.tstamp_ok);
	ack.timestamp = (__u32)(BPF_CORE_READ(tp, tcp_mstamp) / USEC_PER_MSEC) + BPF_CORE_READ(tp, tsoffset);
	ack.timestamp_echo = BPF_CORE_READ(tp, rx_opt.ts_recent);
	bpf_seq_write(ctx->meta->seq, &ack, sizeof(ack));
	return 0;
}
