/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The sockets of segments, for programs at an interface. */
#ifndef SOCKETS_H
#define SOCKETS_H

#include "kernel.h"
#include "segment.h"

static __always_inline bool is_after(__u32 number, __u32 earlier)
{
	return (__s32)(number - earlier) > 0;
}

/* The socket of the proxy with these ends, which the caller releases; NULL: there is none. */
static __always_inline struct sock_common *find_socket(struct __sk_buff *skb, const struct ends *ends)
{
	struct bpf_sock_tuple tuple = {};
	__be16 client_port = ends->client_port >> 16, proxy_port = bpf_htons(ends->proxy_port);

	if (is_mapped_ipv4(ends->client)) {
		tuple.ipv4.saddr = *(__u32 *)(ends->client + 12);
		tuple.ipv4.daddr = *(__u32 *)(ends->proxy + 12);
		tuple.ipv4.sport = client_port;
		tuple.ipv4.dport = proxy_port;
		return (void *)bpf_skc_lookup_tcp(skb, &tuple, sizeof(tuple.ipv4), BPF_F_CURRENT_NETNS, 0);
	}
	__builtin_memcpy(tuple.ipv6.saddr, ends->client, sizeof(tuple.ipv6.saddr));
	__builtin_memcpy(tuple.ipv6.daddr, ends->proxy, sizeof(tuple.ipv6.daddr));
	tuple.ipv6.sport = client_port;
	tuple.ipv6.dport = proxy_port;
	return (void *)bpf_skc_lookup_tcp(skb, &tuple, sizeof(tuple.ipv6), BPF_F_CURRENT_NETNS, 0);
}

static __always_inline bool is_listening(struct tcp_sock *tp)
{
	return tp->inet_conn.icsk_inet.sk.__sk_common.skc_state == BPF_TCP_LISTEN;
}

/* Whether TCP drops the segment: it acknowledges what was never sent, or less than RFC 5961, section
 * 5.2, permits, or is outside the receive window. The bounds are looser than TCP's, which has not
 * processed its backlog. Checksum and time stamps are not looked at. */
static __always_inline bool is_implausible(struct tcp_sock *tp, const struct segment *segment)
{
	__u32 sequence = bpf_ntohl(segment->tcp.seq), acknowledgment = bpf_ntohl(segment->tcp.ack_seq);

	return is_after(acknowledgment, tp->write_seq) || is_after(tp->snd_una - tp->max_window, acknowledgment) ||
	       is_after(sequence, tp->rcv_nxt + tp->rcv_wnd) || is_after(tp->rcv_wup, sequence + segment->payload);
}

#endif
