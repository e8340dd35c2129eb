// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Keeps clients from discarding what the proxy sends. Needs CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON, the kernel's type
 * information, and Linux 6.6 (TCX).
 *
 * MPTCP at the client discards what is beyond the window that it has announced for the connection, and out of order
 * (net/mptcp/protocol.c, mptcp_data_queue_ofo; it counts MPTcpExtNoDSSInWindow). TCP has acknowledged it by then. So only MPTCP
 * at the proxy can send it again, and does so one piece at a time, after a timeout each. It happens in two ways:
 *
 * MPTCP at the proxy adds the window of the subflow's socket to the DATA_ACK of a segment (net/mptcp/options.c,
 * ack_update_msk). But TCP ignores the window of a segment that acknowledges nothing new, has no new data, and announces a
 * smaller window (net/ipv4/tcp_input.c, tcp_may_update_window). The socket's window then belongs to an earlier DATA_ACK, and the
 * sum is too large. `lower_data_acks`, at the ingress, lowers the DATA_ACK of such a segment until the sum is right.
 *
 * MPTCP at the client begins without a window, and has none before its first segment with a DATA_ACK. That is its answer to
 * the first data, which may be late: data on a subflow that has joined meanwhile can arrive before. `probe_joined`, at the
 * egress, sends a keep-alive (RFC 9293, section 3.8.4) behind the first ACK of such a subflow, and so ahead of its data. The
 * client answers it, with a DATA_ACK.
 */
#include <stddef.h>
#include <linux/pkt_cls.h>
#include "subflow.h"
#include "counters.h"
#include "discards.h"
#include "networks.h"
#include "segment.h"

char LICENSE[] SEC("license") = "GPL";

/* RFC 8684, section 3.3; RFC 9293, section 3.2 */
#define OPTION_END 0
#define OPTION_NOP 1
#define OPTION_MPTCP 30
#define MPTCP_DSS 2
#define DSS_HAS_ACK 1
#define DSS_ACK_64 2
#define DSS_BASE_BYTES 4
#define MAX_OPTIONS 40

/* The window of a client's subflow, as TCP has taken it over, in bytes; the acknowledgment and the sequence number of the
 * segment that announced it. */
struct window {
	__u32 acknowledged;
	__u32 sequence;
	__u32 bytes;
};

/* As of the last segment that has arrived. The socket may be behind: segments wait while the proxy is using it. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct window);
} windows SEC(".maps");

static __always_inline bool is_after(__u32 one, __u32 other)
{
	return (__s32)(one - other) > 0;
}

static __always_inline bool is_on_a_network(const struct ends *ends)
{
	struct network *network = is_proxy_port(ends->proxy_port) ? network_of(ends->client) : NULL;

	return network && network->preference != NO_PREFERENCE;
}

static __always_inline struct sock_common *find_socket(struct __sk_buff *skb, const struct segment *segment)
{
	struct bpf_sock_tuple tuple = {};

	if (segment->ip_bytes == sizeof(struct iphdr)) {
		tuple.ipv4.saddr = *(__u32 *)(segment->ends.client + 12);
		tuple.ipv4.daddr = *(__u32 *)(segment->ends.proxy + 12);
		tuple.ipv4.sport = segment->tcp.source;
		tuple.ipv4.dport = segment->tcp.dest;
		return (void *)bpf_skc_lookup_tcp(skb, &tuple, sizeof(tuple.ipv4), BPF_F_CURRENT_NETNS, 0);
	}
	__builtin_memcpy(tuple.ipv6.saddr, segment->ends.client, sizeof(tuple.ipv6.saddr));
	__builtin_memcpy(tuple.ipv6.daddr, segment->ends.proxy, sizeof(tuple.ipv6.daddr));
	tuple.ipv6.sport = segment->tcp.source;
	tuple.ipv6.dport = segment->tcp.dest;
	return (void *)bpf_skc_lookup_tcp(skb, &tuple, sizeof(tuple.ipv6), BPF_F_CURRENT_NETNS, 0);
}

/* What TCP will have taken over when it gets to the segment that arrives now. NULL: there is no memory for it. */
static __always_inline struct window *window_of(struct sock_common *common, struct tcp_sock *tp)
{
	struct window of_socket = { .acknowledged = tp->snd_una, .sequence = tp->snd_wl1, .bytes = tp->snd_wnd };
	struct window *window = bpf_sk_storage_get(&windows, common, &of_socket, BPF_SK_STORAGE_GET_F_CREATE);

	if (window && (is_after(of_socket.acknowledged, window->acknowledged) ||
		       is_after(of_socket.sequence, window->sequence) ||
		       (of_socket.acknowledged == window->acknowledged && of_socket.sequence == window->sequence)))
		*window = of_socket;
	return window;
}

/* Whether TCP takes over the window of a segment, as in tcp_may_update_window. Newer kernels also take over a window of 0;
 * where it is believed to be ignored, its DATA_ACK is lowered for nothing. */
static __always_inline bool takes_over(const struct window *window, __u32 acknowledged, __u32 sequence, __u32 bytes)
{
	if (is_after(window->acknowledged, acknowledged))
		return false;
	return is_after(acknowledged, window->acknowledged) || is_after(sequence, window->sequence) ||
	       (sequence == window->sequence && bytes > window->bytes);
}

/* Whether TCP ignores the segment as a whole, as one that somebody else may have sent. */
static __always_inline bool is_implausible(struct tcp_sock *tp, __u32 acknowledged, __u32 sequence)
{
	return is_after(acknowledged, tp->snd_nxt) || is_after(sequence, tp->rcv_nxt + tp->rcv_wnd);
}

/* Where the segment has a DATA_ACK, and its size in bytes; 0: it has none. */
static __always_inline __u32 find_data_ack(struct __sk_buff *skb, const struct segment *segment, __u32 *bytes)
{
	__u32 at = segment->ip_at + segment->ip_bytes + sizeof(struct tcphdr);
	__u32 end = segment->ip_at + segment->ip_bytes + segment->tcp_bytes;

	for (int i = 0; i < MAX_OPTIONS; i++) {
		__u8 option[DSS_BASE_BYTES];

		if (at + sizeof(option) > end || bpf_skb_load_bytes(skb, at, option, sizeof(option)) ||
		    option[0] == OPTION_END)
			return 0;
		if (option[0] == OPTION_NOP) {
			at++;
			continue;
		}
		if (option[0] == OPTION_MPTCP && option[2] >> 4 == MPTCP_DSS && option[3] & DSS_HAS_ACK) {
			*bytes = option[3] & DSS_ACK_64 ? sizeof(__u64) : sizeof(__u32);
			at += DSS_BASE_BYTES;
			return at + *bytes > end ? 0 : at;
		}
		if (option[1] < 2)
			return 0;
		at += option[1];
	}
	return 0;
}

static __always_inline void replace(struct __sk_buff *skb, const struct segment *segment, __u32 at, __be32 from[2],
				    __be32 to[2])
{
	__u32 check_at = segment->ip_at + segment->ip_bytes + offsetof(struct tcphdr, check);
	__s64 difference = bpf_csum_diff(from, 2 * sizeof(*from), to, 2 * sizeof(*to), 0);

	if (!bpf_l4_csum_replace(skb, check_at, 0, difference, 0) &&
	    !bpf_skb_store_bytes(skb, at, to, 2 * sizeof(*to), 0))
		count(DATA_ACKS_LOWERED);
}

/* `stale` is by how many bytes the socket's window is larger than the segment's. */
static __always_inline void lower(struct __sk_buff *skb, const struct segment *segment, struct mptcp_sock *msk,
				  const struct window *window, __u32 stale)
{
	__u64 all_sent = BPF_CORE_READ(msk, write_seq), window_end = BPF_CORE_READ(msk, wnd_end), data_ack;
	__u32 bytes = 0, at = find_data_ack(skb, segment, &bytes), too_far;
	__be32 from[2] = {}, to[2] = {};

	/* At an odd place it would be in the other bytes of the checksum's words. */
	if (!at || (at - segment->ip_at) & 1)
		return;
	if (bytes == sizeof(from)) {
		if (bpf_skb_load_bytes(skb, at, from, sizeof(from)))
			return;
		data_ack = (__u64)bpf_ntohl(from[0]) << 32 | bpf_ntohl(from[1]);
	} else {
		/* The low half, and before it the option's first bytes, which stay. */
		at -= DSS_BASE_BYTES;
		if (bpf_skb_load_bytes(skb, at, from, sizeof(from)))
			return;
		data_ack = all_sent - (__u32)((__u32)all_sent - bpf_ntohl(from[1]));
	}
	/* The last DATA_ACK of all stays: no segment would make good for it. Nothing is left that could be beyond the window. */
	if (data_ack == all_sent)
		return;
	too_far = data_ack + window->bytes - window_end;
	if ((__s64)(data_ack + window->bytes - window_end) <= 0)
		return;
	if (too_far > stale)
		too_far = stale;
	data_ack -= too_far;
	to[0] = bytes == sizeof(to) ? bpf_htonl(data_ack >> 32) : from[0];
	to[1] = bpf_htonl((__u32)data_ack);
	replace(skb, segment, at, from, to);
}

static __always_inline void judge(struct __sk_buff *skb, const struct segment *segment, struct sock_common *common)
{
	__u32 acknowledged = bpf_ntohl(segment->tcp.ack_seq), sequence = bpf_ntohl(segment->tcp.seq);
	struct tcp_sock *tp = bpf_skc_to_tcp_sock(common);
	struct window *window;
	__u32 bytes;

	if (!tp || !is_of_proxy(tp) || is_implausible(tp, acknowledged, sequence))
		return;
	window = window_of(common, tp);
	if (!window)
		return;
	bytes = bpf_ntohs(segment->tcp.window) << BPF_CORE_READ_BITFIELD_PROBED(tp, rx_opt.snd_wscale);
	if (takes_over(window, acknowledged, sequence, bytes)) {
		if (is_after(acknowledged, window->acknowledged))
			window->acknowledged = acknowledged;
		window->sequence = sequence;
		window->bytes = bytes;
	} else if (bytes < window->bytes) {
		lower(skb, segment, (void *)BPF_CORE_READ(subflow_context(tp), conn), window, window->bytes - bytes);
	}
}

SEC("tc")
int lower_data_acks(struct __sk_buff *skb)
{
	struct segment segment;
	struct sock_common *common;

	if (!parse(skb, &segment, true) || !segment.tcp.ack || segment.tcp.syn || segment.tcp.rst ||
	    !is_on_a_network(&segment.ends))
		return TC_ACT_UNSPEC;
	common = find_socket(skb, &segment);
	if (common) {
		judge(skb, &segment, common);
		bpf_sk_release(common);
	}
	return TC_ACT_UNSPEC;
}

/* Whether the segment is the first that a subflow sends that has joined; nobody has asked for its SYN-ACK again. */
static __always_inline bool is_first_of_joined(struct bpf_sock *sk)
{
	struct tcp_sock *tp = bpf_skc_to_tcp_sock(sk);

	return tp && is_of_proxy(tp) && joined(tp) && tp->segs_out == 1;
}

SEC("tc")
int probe_joined(struct __sk_buff *skb)
{
	struct segment segment;
	struct bpf_sock *sk = skb->sk;
	__be32 sequence;

	/* The ACK that is sent below passes here, too, and has no socket. */
	if (!sk || !parse(skb, &segment, false) || segment.payload || !segment.tcp.ack || segment.tcp.syn ||
	    segment.tcp.rst || segment.tcp.fin || !is_on_a_network(&segment.ends) || !is_first_of_joined(sk))
		return TC_ACT_UNSPEC;
	if (bpf_clone_redirect(skb, skb->ifindex, 0))
		return TC_ACT_UNSPEC;
	sequence = bpf_htonl(bpf_ntohl(segment.tcp.seq) - 1);
	if (bpf_l4_csum_replace(skb, segment.ip_at + segment.ip_bytes + offsetof(struct tcphdr, check), segment.tcp.seq,
				sequence, sizeof(sequence)))
		return TC_ACT_UNSPEC;
	bpf_skb_store_bytes(skb, segment.ip_at + segment.ip_bytes + offsetof(struct tcphdr, seq), &sequence,
			    sizeof(sequence), 0);
	count(JOINED_PROBED);
	return TC_ACT_UNSPEC;
}
