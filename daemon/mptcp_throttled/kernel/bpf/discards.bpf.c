// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Works around three bugs of Linux that make clients discard what the proxy sends. Needs CAP_BPF,
 * CAP_NET_ADMIN and CAP_PERFMON, the kernel's type information (BTF), and Linux 6.6 (TCX).
 *
 * MPTCP at the client discards a segment that arrives out of order and ends beyond the window that
 * it has announced for the connection (net/mptcp/protocol.c, mptcp_data_queue_ofo; it counts
 * MPTcpExtNoDSSInWindow). TCP has acknowledged it by then. So only MPTCP at the proxy can send it
 * again, and does so one piece at a time, after a timeout each.
 *
 * 1. The proxy sends too much. Its MPTCP adds snd_wnd of the subflow to the DATA_ACK of a segment
 *    (net/mptcp/options.c, ack_update_msk). But TCP ignores the window of a segment that
 *    acknowledges nothing new, has no new data, and announces a smaller window other than 0
 *    (net/ipv4/tcp_input.c, tcp_may_update_window). snd_wnd then belongs to an earlier DATA_ACK,
 *    and the sum is too large. `lower_data_acks`, at the ingress, lowers the DATA_ACK of such a
 *    segment until the sum is right.
 *
 * 2. The client knows of no window. In Linux 6.18.44 and 6.12.117 (no other version was tried),
 *    rcv_wnd_sent of its connection is ack_seq until it sends its first DSS option, in answer to
 *    the first data. What arrives earlier, on a subflow that has joined, is beyond that.
 *    `send_keep_alive`, at the egress, sends a keep-alive (RFC 9293, section 3.8.4) right after the
 *    fourth packet of the MP_JOIN handshake, a pure ACK. The client answers it with a DATA_ACK
 *    before data comes, unless the network reorders these segments.
 *
 * 3. The proxy sends too much when the connection begins with TCP Fast Open. wnd_end of its
 *    connection follows from snd_wnd of the socket that the SYN has made (net/mptcp/protocol.c,
 *    mptcp_sk_clone_init), which is the SYN's window, scaled (net/ipv4/tcp_minisocks.c,
 *    tcp_create_openreq_child); TCP corrects snd_wnd only after that (net/ipv4/tcp_fastopen.c,
 *    tcp_fastopen_create_child). `divide_window`, at the ingress, divides the window of such a SYN by
 *    its scale. Until the third ACK, the proxy sends no more than the divided window.
 */
#include <stddef.h>
#include <linux/pkt_cls.h>
#include "subflow.h"
#include "counters.h"
#include "discards.h"
#include "networks.h"
#include "options.h"
#include "segment.h"
#include "sockets.h"

char LICENSE[] SEC("license") = "GPL";

#define OPTION_WINDOW_SCALE 3
#define OPTION_WINDOW_SHIFT 2
#define MAX_WINDOW_SHIFT 14 /* RFC 7323, section 2.3 */
#define OPTION_FAST_OPEN 34 /* RFC 7413, section 4.1.1 */
#define MPTCP_CAPABLE 0

/* snd_una, snd_wl1 and snd_wnd of a subflow, as they will be once the socket has processed all that
 * has arrived: segments wait in its backlog while the proxy uses it. */
struct window {
	__u32 acknowledged;
	__u32 sequence;
	__u32 bytes;
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct window);
} windows SEC(".maps");

SHARED_WITH_DAEMON(shared_counter, enum discards_counter);

static __always_inline bool is_on_a_network(const struct ends *ends)
{
	__u32 proxy = proxy_with_port(ends->proxy_port);
	struct network *network = proxy ? network_of(proxy, ends->client) : NULL;

	return network && network->preference != NO_PREFERENCE;
}

/* The window before this segment; NULL: there is no memory for it. MPTCP may raise snd_wnd itself
 * (net/mptcp/protocol.c, mptcp_check_allowed_size), but not beyond what is right for a DATA_ACK
 * that has arrived by then. */
static __always_inline struct window *window_of(struct sock_common *common, struct tcp_sock *tp)
{
	struct window of_socket = { .acknowledged = tp->snd_una, .sequence = tp->snd_wl1, .bytes = tp->snd_wnd };
	struct window *window = bpf_sk_storage_get(&windows, common, &of_socket, BPF_SK_STORAGE_GET_F_CREATE);

	if (!window)
		return NULL;
	if (is_after(of_socket.acknowledged, window->acknowledged) || is_after(of_socket.sequence, window->sequence))
		*window = of_socket;
	else if (of_socket.acknowledged == window->acknowledged && of_socket.sequence == window->sequence &&
		 of_socket.bytes > window->bytes)
		window->bytes = of_socket.bytes;
	return window;
}

/* As tcp_may_update_window, and the test of tcp_ack before it. */
static __always_inline bool updates_window(const struct window *window, __u32 acknowledged, __u32 sequence, __u32 bytes)
{
	if (is_after(window->acknowledged, acknowledged))
		return false;
	return is_after(acknowledged, window->acknowledged) || is_after(sequence, window->sequence) ||
	       (sequence == window->sequence && (bytes > window->bytes || !bytes));
}

static __always_inline bool replace(struct __sk_buff *skb, const struct segment *segment, __u32 at, __be32 from[2],
				    __be32 to[2])
{
	__u32 check_at = tcp_offset(segment) + offsetof(struct tcphdr, check);
	__s64 difference = bpf_csum_diff(from, 2 * sizeof(*from), to, 2 * sizeof(*to), 0);

	return !bpf_l4_csum_replace(skb, check_at, 0, difference, 0) &&
	       !bpf_skb_store_bytes(skb, at, to, 2 * sizeof(*to), 0);
}

/* `excess`: by how much snd_wnd will exceed the window of this segment, which TCP ignores. */
static __always_inline void lower(struct __sk_buff *skb, const struct segment *segment, struct mptcp_sock *msk,
				  const struct window *window, __u32 excess)
{
	__u64 written = BPF_CORE_READ(msk, write_seq), data_ack;
	__u32 bytes = 0, at = find_data_ack(skb, segment, &bytes);
	__be32 from[2] = {}, to[2] = {};
	bool is_short = bytes == sizeof(__u32);
	__s64 beyond;

	/* The checksum is of 16-bit words, so the option must begin at an even offset of the TCP
	 * header. Linux's options do. */
	if (!at || (at - segment->ip_at) & 1)
		return;
	if (is_short) /* the first bytes of the option come before it, and stay */
		at -= DSS_BASE_BYTES;
	if (bpf_skb_load_bytes(skb, at, from, sizeof(from)))
		return;
	if (is_short)
		data_ack = written - (__u32)((__u32)written - bpf_ntohl(from[1]));
	else
		data_ack = (__u64)bpf_ntohl(from[0]) << 32 | bpf_ntohl(from[1]);
	/* All data is acknowledged, but perhaps a DATA_FIN. There may be no later segment to
	 * acknowledge what a lower DATA_ACK would leave out. The window may then be too large for
	 * what the proxy writes next: a few discards remain. */
	if ((__s64)(written - data_ack) <= 1)
		return;
	/* No lower than wnd_end, which MPTCP never takes back. */
	beyond = data_ack + window->bytes - BPF_CORE_READ(msk, wnd_end);
	if (beyond <= 0)
		return;
	data_ack -= beyond < excess ? beyond : excess;
	to[0] = is_short ? from[0] : bpf_htonl(data_ack >> 32);
	to[1] = bpf_htonl((__u32)data_ack);
	if (replace(skb, segment, at, from, to))
		count(DATA_ACKS_LOWERED);
}

/* Notes a window that TCP will accept. If TCP will ignore it, lowers the DATA_ACK beside it. */
static __always_inline void note_or_lower(struct __sk_buff *skb, const struct segment *segment, struct sock_common *common)
{
	__u32 acknowledged = bpf_ntohl(segment->tcp.ack_seq), sequence = bpf_ntohl(segment->tcp.seq), bytes;
	struct tcp_sock *tp = bpf_skc_to_tcp_sock(common);
	struct mptcp_sock *msk = tp ? connection_to_proxy(tp) : NULL;
	struct window *window;

	if (!msk || is_listening(tp) || is_implausible(tp, segment))
		return;
	window = window_of(common, tp);
	if (!window)
		return;
	bytes = bpf_ntohs(segment->tcp.window) << BPF_CORE_READ_BITFIELD_PROBED(tp, rx_opt.snd_wscale);
	if (updates_window(window, acknowledged, sequence, bytes)) {
		window->acknowledged = acknowledged;
		window->sequence = sequence;
		window->bytes = bytes;
	} else if (bytes < window->bytes && is_in_place(skb, segment)) {
		lower(skb, segment, msk, window, window->bytes - bytes);
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
	common = find_socket(skb, &segment.ends);
	if (common) {
		note_or_lower(skb, &segment, common);
		bpf_sk_release(common);
	}
	return TC_ACT_UNSPEC;
}

/* The shift of the window that this SYN offers; 0: none. */
static __always_inline __u8 window_shift(struct __sk_buff *skb, const struct segment *segment)
{
	__u32 at = find_segment_option(skb, segment, OPTION_WINDOW_SCALE, 0);
	__u8 shift;

	if (!at || bpf_skb_load_bytes(skb, at + OPTION_WINDOW_SHIFT, &shift, sizeof(shift)))
		return 0;
	return shift < MAX_WINDOW_SHIFT ? shift : MAX_WINDOW_SHIFT;
}

static __always_inline void divide(struct __sk_buff *skb, const struct segment *segment, __u8 shift)
{
	__u32 tcp_at = tcp_offset(segment);
	__be16 window = bpf_htons(bpf_ntohs(segment->tcp.window) >> shift ?: 1);

	if (!bpf_l4_csum_replace(skb, tcp_at + offsetof(struct tcphdr, check), segment->tcp.window, window,
				 sizeof(window)))
		bpf_skb_store_bytes(skb, tcp_at + offsetof(struct tcphdr, window), &window, sizeof(window), 0);
}

SEC("tc")
int divide_window(struct __sk_buff *skb)
{
	struct segment segment;
	struct sock_common *common;
	struct tcp_sock *tp;
	bool is_mptcp;
	__u8 shift;

	if (!parse(skb, &segment, true) || !segment.tcp.syn || segment.tcp.ack || segment.tcp.rst ||
	    !is_on_a_network(&segment.ends) || !is_in_place(skb, &segment) ||
	    !find_mptcp_option(skb, &segment, MPTCP_CAPABLE) ||
	    !(segment.payload || find_segment_option(skb, &segment, OPTION_FAST_OPEN, 0)))
		return TC_ACT_UNSPEC;
	shift = window_shift(skb, &segment);
	if (!shift)
		return TC_ACT_UNSPEC;
	common = find_socket(skb, &segment.ends);
	if (!common)
		return TC_ACT_UNSPEC;
	tp = bpf_skc_to_tcp_sock(common);
	is_mptcp = tp && is_listening(tp) && connection_to_proxy(tp);
	bpf_sk_release(common);
	if (is_mptcp)
		divide(skb, &segment, shift);
	return TC_ACT_UNSPEC;
}

/* Whether a pure ACK is the fourth packet of the MP_JOIN handshake, and no data of the connection
 * is acknowledged yet. */
static __always_inline bool needs_keep_alive(struct tcp_sock *tp, const struct segment *segment)
{
	struct mptcp_sock *msk = connection_to_proxy(tp);

	/* On a second interface (VLAN, bridge) the keep-alive passes here, too, with a lower sequence
	 * number. */
	if (!msk || !joined(tp) || bpf_ntohl(segment->tcp.seq) != tp->snd_nxt)
		return false;
	/* Before Linux 6.5 there is no bytes_acked: loading would fail, and the error would name
	 * that instead of TCX. */
	return bpf_core_field_exists(msk->bytes_acked) && !BPF_CORE_READ(msk, bytes_acked);
}

SEC("tc")
int send_keep_alive(struct __sk_buff *skb)
{
	struct segment segment;
	struct bpf_sock *sk = skb->sk;
	struct tcp_sock *tp;
	__be32 sequence;

	/* The clone passes here, too, and has no socket. */
	if (!sk)
		return TC_ACT_UNSPEC;
	tp = bpf_skc_to_tcp_sock(sk);
	/* The first segment of its socket: the SYN/ACK does not count. */
	if (!tp || tp->segs_out != 1 || !parse(skb, &segment, false) || segment.payload || !segment.tcp.ack ||
	    segment.tcp.syn || segment.tcp.rst || segment.tcp.fin || !is_on_a_network(&segment.ends) ||
	    !needs_keep_alive(tp, &segment))
		return TC_ACT_UNSPEC;
	/* A clone leaves first, as the ACK, and this packet becomes the keep-alive. */
	if (bpf_clone_redirect(skb, skb->ifindex, 0))
		return TC_ACT_UNSPEC;
	sequence = bpf_htonl(bpf_ntohl(segment.tcp.seq) - 1);
	if (bpf_l4_csum_replace(skb, tcp_offset(&segment) + offsetof(struct tcphdr, check), segment.tcp.seq,
				sequence, sizeof(sequence)))
		return TC_ACT_UNSPEC;
	if (!bpf_skb_store_bytes(skb, tcp_offset(&segment) + offsetof(struct tcphdr, seq), &sequence,
				 sizeof(sequence), 0))
		count(KEEP_ALIVES_SENT);
	return TC_ACT_UNSPEC;
}
