/* SPDX-License-Identifier: GPL-2.0 */
/* The fields of kernel structures that programs read. libbpf looks up their offsets in the running
 * kernel's type information (CO-RE), so their order here means nothing. */
#ifndef KERNEL_H
#define KERNEL_H

#include <stdbool.h>
#include <linux/bpf.h>
#include <linux/in6.h>
#include <linux/types.h>

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

/* include/linux/types.h, include/net/sock.h */
struct list_head {
	struct list_head *next;
};
struct sock_common {
	__be32 skc_daddr, skc_rcv_saddr;
	unsigned short skc_family;
	volatile unsigned char skc_state;
	int skc_bound_dev_if;
	__be16 skc_dport;
	__u16 skc_num;
	struct in6_addr skc_v6_daddr, skc_v6_rcv_saddr;
};
struct sock {
	struct sock_common __sk_common;
	unsigned long sk_pacing_rate, sk_max_pacing_rate; /* bytes per second */
	__u32 sk_priority;
	int sk_wmem_queued;
	int sk_rx_dst_ifindex;
};

/* include/net/inet_sock.h, include/net/inet_connection_sock.h, include/linux/tcp.h */
struct inet_sock {
	struct sock sk;
};
struct inet_connection_sock {
	struct inet_sock icsk_inet;
	void *icsk_ulp_data;
	__u8 icsk_retransmits;
};
/* Its bit fields are read as those of tcp_sock (`tp, rx_opt.tstamp_ok`): with `&tp->rx_opt, tstamp_ok`
 * BPF_CORE_READ_BITFIELD_PROBED adds the offset of rx_opt twice. */
struct tcp_options_received {
	__u32 ts_recent;
	__u16 tstamp_ok : 1, snd_wscale : 4, rcv_wscale : 4;
};
struct minmax_sample {
	__u32 v;
};
struct minmax {
	struct minmax_sample s[3];
};
struct tcp_sock {
	struct inet_connection_sock inet_conn;
	bool is_mptcp;
	__u32 write_seq, snd_nxt, snd_una, snd_wl1, snd_wnd, rcv_nxt, rcv_wnd, rcv_wup, notsent_lowat, tsoffset;
	__u32 srtt_us, max_window, mss_cache, delivered, segs_out, segs_in, data_segs_out, data_segs_in;
	struct minmax rtt_min; /* in microseconds */
	__u64 tcp_mstamp, bytes_received, bytes_sent, bytes_acked, bytes_retrans;
	struct tcp_options_received rx_opt;
};

/* net/mptcp/protocol.h */
struct mptcp_sock {
	__u32 token;
	__u64 write_seq, snd_nxt, snd_una, wnd_end;
	__u64 bytes_acked; /* since Linux 6.5 */
	struct list_head conn_list;
	bool recovery;
	__u32 notsent_lowat; /* since Linux 6.9 */
};
struct mptcp_subflow_context {
	struct list_head node;
	struct sock *tcp_sock, *conn;
	__u32 token;
	__u32 mp_join : 1, backup : 1, stale : 1, fully_established : 1;
	__u32 request_bkup : 1; /* not in every kernel */
};

/* kernel/bpf/bpf_iter.c, net/ipv4/tcp_ipv4.c */
struct seq_file;
struct bpf_iter_meta {
	struct seq_file *seq;
};
struct bpf_iter__tcp {
	struct bpf_iter_meta *meta;
	struct sock_common *sk_common;
};

#pragma clang attribute pop

#endif
