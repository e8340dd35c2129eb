// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Throttles what clients send over some of their subflows. Needs CAP_BPF and CAP_NET_ADMIN.
 *
 * `throttle_uplinks`, at the egress of the proxy's interfaces, counts what each segment of
 * such a subflow acknowledges. While the client has sent more than the rate allows, its pure ACKs
 * carry MP_PRIO (RFC 8684, section 3.3.8): the subflow is a backup, and MPTCP at the client sends
 * over the others. When the debt is paid, they say that it is regular. Nothing is queued: a queue
 * would delay what the client has already given to the slow subflow, up to 64 KiB at a time, and
 * the whole connection would wait for that.
 *
 * A backup carries no data, so that there are no ACKs to say that the debt is paid: `remind`
 * repeats the last ACK. The daemon runs it many times a second, by BPF_PROG_TEST_RUN: redirected
 * packets are really sent.
 *
 * What the client sends before it hears that it is in debt may overflow the queue of a slow link.
 * BBR takes such losses for a policer (bbr_lt_bw_sampling, net/ipv4/tcp_bbr.c) and sends no faster
 * than the rate for seconds, including what it has already given to the subflow. So the window of
 * capped subflows is small. It bounds what is in flight on them; of the windows that its subflows
 * announce, an MPTCP connection uses the largest (RFC 8684, section 3.3.1). Limited subflows may be
 * all that a connection has, so their windows stay as they are.
 *
 * Where its interface has gone, or is not ours any more, the daemon sends ACKs instead.
 *
 * MP_PRIO is not acknowledged: all ACKs of a subflow in debt carry it, and so do the first
 * REGULAR_ACKS after it.
 *
 * A client without another path keeps sending over a backup, and some clients may ignore MP_PRIO.
 * `police_uplinks`, at the ingress, drops their data while the share's debt exceeds the burst. Debt
 * grows only with what `throttle_uplinks` sees acknowledged, so a dropped segment costs nothing.
 */
#include <stddef.h>
#include <linux/errno.h>
#include <linux/pkt_cls.h>
#include "addresses.h"
#include "counters.h"
#include "segment.h"
#include "token_bucket.h"
#include "uplink.h"

char LICENSE[] SEC("license") = "GPL";

#define REPEAT_NS 200000000ULL
#define MAX_REPEATS 5
#define IN_FLIGHT_BYTES (64 << 10)
#define REGULAR_ACKS 3 /* that repeat the end of a backup */

/* What a client may have in flight on a capped subflow: what MPTCP gives to a subflow at once
 * (MPTCP_SEND_BURST_SIZE), and no less than what the rate carries in WINDOW_NS and two of its
 * shortest round trips. */
#define WINDOW_KIB 64
#define WINDOW_NS 150000000ULL

/* More than a client that obeys MP_PRIO may still have queued on the subflow. */
#define KEEPS_SENDING_NS 2000000000ULL
#define KEEPS_SENDING_BYTES (512 << 10)
#define POLICED_BURST_NS 250000000ULL
#define POLICED_BURST_KIB 32

/* NOP, and MP_PRIO without an address id; the kernel puts its NOP behind the option, so that ours
 * can be told from its own. */
#define PRIORITY_OPTION 0x011e0350U
#define IS_BACKUP 1U
#define OPTION_BYTES 4
#define TIMESTAMPS 0x0101080aU /* NOP, NOP, kind 8, length 10: tcp_options_write() */

#define PLAUSIBLE_BYTES (1U << 30)

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct share);
} shares SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_UPLINKS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct ends);
	__type(value, struct uplink);
} uplinks SEC(".maps");

/* The keys of `uplinks`, so that the time of `remind` depends on the uplinks that exist, not on
 * MAX_UPLINKS. Only `assign` and `remind` write them, one at a time. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_UPLINKS);
	__type(key, __u32);
	__type(value, struct ends);
} slots SEC(".maps");

/* How often the programs have been attached again: what is acknowledged in between is not counted. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} interruptions SEC(".maps");

static volatile __u32 used_slots;

SHARED_WITH_DAEMON(shared_assignment, struct assignment);
SHARED_WITH_DAEMON(shared_told, enum told);
SHARED_WITH_DAEMON(shared_counter, enum uplink_counter);

static __always_inline __u32 newly_acknowledged(struct uplink *uplink, const struct segment *segment)
{
	__u32 acknowledged = bpf_ntohl(segment->tcp.ack_seq), bytes = acknowledged - uplink->acknowledged;
	__u32 zero = 0, *interruptions_so_far = bpf_map_lookup_elem(&interruptions, &zero);
	__u32 counts_since = interruptions_so_far ? *interruptions_so_far + 1 : 1;

	if (uplink->counts_since != counts_since) {
		uplink->counts_since = counts_since;
		uplink->acknowledged = acknowledged;
		return 0;
	}
	if (bytes > PLAUSIBLE_BYTES) /* an older ACK */
		return 0;
	uplink->acknowledged = acknowledged;
	return bytes;
}

/* A repeated ACK must have the latest sequence number and time stamps: the client discards older
 * ones (RFC 9293, section 3.10.7.4; RFC 7323, section 5.3). */
static __always_inline void remember_segment(struct __sk_buff *skb, struct uplink *uplink, const struct segment *segment)
{
	__u32 options[3], next = bpf_ntohl(segment->tcp.seq) + segment->payload + segment->tcp.fin;

	/* not of a retransmission */
	if (!uplink->has_sequence || (__s32)(next - uplink->sequence) > 0)
		uplink->sequence = next;
	uplink->has_sequence = 1;
	uplink->window = segment->tcp.window;
	if (segment->tcp_bytes < sizeof(segment->tcp) + sizeof(options) ||
	    bpf_skb_load_bytes(skb, tcp_offset(segment) + sizeof(segment->tcp), options, sizeof(options)) ||
	    options[0] != bpf_htonl(TIMESTAMPS))
		return;
	uplink->timestamp = options[1];
	uplink->timestamp_echo = options[2];
	uplink->ack.has_timestamps = 1;
}

/* An ACK without room for our option leaves the earlier one: whoever was told something can be told
 * again. */
static __always_inline void remember_ack(struct __sk_buff *skb, struct last_ack *ack, const struct segment *segment)
{
	__u32 link_bytes = segment->ip_at, ip_bytes = segment->ip_bytes, tcp_bytes = segment->tcp_bytes;

	if ((link_bytes && link_bytes != ETH_HLEN && link_bytes != MAX_LINK_BYTES) || tcp_bytes < sizeof(struct tcphdr))
		return;
	/* The verifier of Linux 6.1 loses the bounds of a size that was spilled to the stack. So the
	 * upper bound is tested in the register that the call uses; other sizes are constant. It needs
	 * the lower one, too, although parse() has tested that. */
	barrier_var(tcp_bytes);
	if (tcp_bytes > MAX_TCP_BYTES - OPTION_BYTES)
		return;
	ack->tcp_bytes = 0;
	if (bpf_skb_load_bytes(skb, tcp_offset(segment), ack->tcp, tcp_bytes))
		return;
	if (ip_bytes == sizeof(struct iphdr) ? bpf_skb_load_bytes(skb, link_bytes, ack->ip, sizeof(struct iphdr))
					     : bpf_skb_load_bytes(skb, link_bytes, ack->ip, sizeof(struct ipv6hdr)))
		return;
	switch (link_bytes) {
	case 0: /* raw IP: when `remind` sends the ACK, the kernel removes this header */
		link_bytes = ETH_HLEN;
		__builtin_memset(ack->link, 0, sizeof(ack->link));
		break;
	case ETH_HLEN:
		if (bpf_skb_load_bytes(skb, 0, ack->link, ETH_HLEN))
			return;
		break;
	case MAX_LINK_BYTES:
		if (bpf_skb_load_bytes(skb, 0, ack->link, MAX_LINK_BYTES))
			return;
		break;
	}
	ack->interface = skb->ifindex;
	ack->vlan_protocol = skb->vlan_present ? skb->vlan_proto : 0;
	ack->vlan_tag = skb->vlan_tci;
	ack->link_bytes = link_bytes;
	ack->ip_bytes = ip_bytes;
	ack->tcp_bytes = segment->tcp_bytes;
}

/* Whether the segment ends with our option already: ACKs that `remind` repeats pass this filter,
 * too. */
static __always_inline bool has_option(struct __sk_buff *skb, const struct segment *segment)
{
	__u32 last, at = tcp_offset(segment) + segment->tcp_bytes - OPTION_BYTES;

	return segment->tcp_bytes > sizeof(segment->tcp) && !bpf_skb_load_bytes(skb, at, &last, sizeof(last)) &&
	       (last & ~bpf_htonl(IS_BACKUP)) == bpf_htonl(PRIORITY_OPTION);
}

/* Whether an ACK of the subflow can be repeated. No other is given our option: without one, the client
 * was told nothing. */
static __always_inline bool can_be_told(const struct uplink *uplink)
{
	return uplink->ack.link_bytes;
}

/* Whether a segment with a TCP header of so many bytes is a keep-alive of steering.bpf.c: another ACK,
 * with the time stamps that this one lacks, is to be repeated. What it acknowledges counts with the next
 * segment. The verifier follows the function by itself, as find_option(). */
__attribute__((noinline)) int is_keep_alive(struct __sk_buff *skb, __u32 tcp_at, __u32 tcp_bytes)
{
	__u32 options;

	return tcp_bytes == sizeof(struct tcphdr) + sizeof(options) &&
	       !bpf_skb_load_bytes(skb, tcp_at + sizeof(struct tcphdr), &options, sizeof(options)) &&
	       options == KEEP_ALIVE_OPTIONS;
}

static __always_inline bool append_option(struct __sk_buff *skb, const struct segment *segment,
					  const struct uplink *uplink, __u32 option)
{
	__u32 ip_at = segment->ip_at, tcp_at = ip_at + segment->ip_bytes, tcp_bytes = segment->tcp_bytes;
	bool is_v4 = segment->ip_bytes == sizeof(struct iphdr);
	__u32 length_at = ip_at + (is_v4 ? offsetof(struct iphdr, tot_len) : offsetof(struct ipv6hdr, payload_len));
	__u16 old_length = bpf_htons(is_v4 ? segment->ip_bytes + tcp_bytes : tcp_bytes);
	__u16 new_length = bpf_htons(bpf_ntohs(old_length) + OPTION_BYTES);
	__u32 check_at = tcp_at + offsetof(struct tcphdr, check), offset_at = tcp_at + 12;
	__u16 old_offset, new_offset;

	if (!can_be_told(uplink) || tcp_bytes > MAX_TCP_BYTES - OPTION_BYTES ||
	    bpf_skb_load_bytes(skb, offset_at, &old_offset, sizeof(old_offset)) ||
	    bpf_skb_change_tail(skb, skb->len + OPTION_BYTES, 0)) {
		count(OPTIONS_WITHOUT_ROOM);
		return false;
	}
	new_offset = bpf_htons(bpf_ntohs(old_offset) + (OPTION_BYTES / 4 << 12));
	option = bpf_htonl(option);
	bpf_skb_store_bytes(skb, tcp_at + tcp_bytes, &option, sizeof(option), 0);
	bpf_skb_store_bytes(skb, length_at, &new_length, sizeof(new_length), 0);
	if (is_v4)
		bpf_l3_csum_replace(skb, ip_at + offsetof(struct iphdr, check), old_length, new_length, 2);
	/* The kernel adds up options and data offset itself where the interface would compute the
	 * checksum; not the length, which is in the pseudo-header. */
	bpf_l4_csum_replace(skb, check_at, bpf_htons(tcp_bytes), bpf_htons(tcp_bytes + OPTION_BYTES), 2 | BPF_F_PSEUDO_HDR);
	bpf_l4_csum_replace(skb, check_at, old_offset, new_offset, 2);
	bpf_l4_csum_replace(skb, check_at, 0, option, 4);
	bpf_skb_store_bytes(skb, offset_at, &new_offset, sizeof(new_offset), 0);
	count(OPTIONS_APPENDED);
	return true;
}

static __always_inline void bound_window(struct __sk_buff *skb, const struct segment *segment, const struct share *share,
					 const struct uplink *uplink)
{
	__u32 tcp_at = tcp_offset(segment), scale = uplink->window_scale;
	__u64 kib = WINDOW_KIB, ns = WINDOW_NS + 2000ULL * uplink->round_trip_us;
	__u16 window;

	if (kib * share->ns_per_kib < ns) {
		if (!share->ns_per_kib)
			return;
		kib = ns / share->ns_per_kib;
	}
	if (bpf_ntohs(segment->tcp.window) <= kib << 10 >> scale)
		return;
	window = bpf_htons(kib << 10 >> scale);
	if (!bpf_l4_csum_replace(skb, tcp_at + offsetof(struct tcphdr, check), segment->tcp.window, window, 2))
		bpf_skb_store_bytes(skb, tcp_at + offsetof(struct tcphdr, window), &window, sizeof(window), 0);
}

static __always_inline void note_told(struct uplink *uplink, enum told told, __u64 now)
{
	if (uplink->told != told)
		uplink->appended = uplink->repeats = 0;
	uplink->told = told;
	uplink->told_at = now;
	uplink->bytes_when_told = uplink->bytes;
}

/* Whether the client keeps sending although it was told that the subflow is a backup. */
static __always_inline bool keeps_sending(const struct uplink *uplink, __u64 now)
{
	return uplink->told == BACKUP && now - uplink->told_at >= KEEPS_SENDING_NS &&
	       uplink->bytes - uplink->bytes_when_told >= KEEPS_SENDING_BYTES;
}

static __always_inline __u64 burst_ns(const struct share *share)
{
	return POLICED_BURST_NS + share->ns_per_kib * POLICED_BURST_KIB;
}

/* Debt that arose before `police_uplinks` was attached is cut to twice the burst: everything would
 * be dropped until it is paid. Later debt is not: data behind a gap cost only when the gap is filled. */
static __always_inline void begin_policing(struct uplink *uplink, struct share *share, __u64 now)
{
	__u64 largest = now + 2 * burst_ns(share);

	if (uplink->has_policer)
		return;
	if (share->paid_at > largest)
		share->paid_at = largest;
	if (uplink->is_policed)
		return;
	uplink->is_policed = 1;
	count(UPLINKS_POLICED);
}

SEC("tc")
int police_uplinks(struct __sk_buff *skb)
{
	struct segment segment;
	struct uplink *uplink;
	struct share *share;

	if (!parse(skb, &segment, true) || !segment.payload)
		return TC_ACT_UNSPEC;
	uplink = bpf_map_lookup_elem(&uplinks, &segment.ends);
	if (!uplink || !uplink->is_policed)
		return TC_ACT_UNSPEC;
	uplink->has_policer = 1;
	share = bpf_map_lookup_elem(&shares, &uplink->share);
	if (!share || share->paid_at <= bpf_ktime_get_ns() + burst_ns(share))
		return TC_ACT_UNSPEC;
	count(SEGMENTS_DROPPED);
	return TC_ACT_SHOT;
}

SEC("tc")
int throttle_uplinks(struct __sk_buff *skb)
{
	struct segment segment;
	struct share *share;
	struct uplink *uplink;
	__u64 now;
	__u32 bytes;
	enum told told;

	if (!parse(skb, &segment, false) || segment.tcp.rst)
		return TC_ACT_UNSPEC;
	uplink = bpf_map_lookup_elem(&uplinks, &segment.ends);
	if (!uplink || !is_in_place(skb, &segment))
		return TC_ACT_UNSPEC;
	if (segment.tcp.syn) { /* a new subflow, with the ports of an earlier one */
		uplink->counts_since = 0;
		uplink->has_sequence = 0;
		uplink->ack.has_timestamps = 0;
		uplink->ack.link_bytes = 0;
		uplink->is_policed = uplink->has_policer = 0;
		uplink->told = NOTHING;
		uplink->window_scale = UNBOUNDED;
		return TC_ACT_UNSPEC;
	}
	if (!segment.tcp.ack || is_keep_alive(skb, tcp_offset(&segment), segment.tcp_bytes))
		return TC_ACT_UNSPEC;
	now = bpf_ktime_get_ns();
	bytes = newly_acknowledged(uplink, &segment);
	uplink->bytes += bytes;
	share = bpf_map_lookup_elem(&shares, &uplink->share);
	if (!share)
		told = REGULAR;
	else if (now < uplink->counts_from)
		told = BACKUP;
	else
		told = charge(&share->paid_at, share->ns_per_kib, bytes, CREDIT_NS, now) ? BACKUP : REGULAR;
	remember_segment(skb, uplink, &segment);
	/* Before that, what was in flight when the cap began may be beyond a small window, and
	 * could not be sent again. */
	if (share && now >= uplink->bounded_from && uplink->window_scale != UNBOUNDED)
		bound_window(skb, &segment, share, uplink);
	if (share && told == BACKUP && bytes && (uplink->is_policed || keeps_sending(uplink, now)))
		begin_policing(uplink, share, now);
	if (now < uplink->counts_from) { /* too early to say that the client ignores MP_PRIO */
		uplink->told_at = now;
		uplink->bytes_when_told = uplink->bytes;
	}
	if (told == REGULAR && uplink->told == NOTHING)
		told = NOTHING;
	if (told != uplink->told)
		note_told(uplink, told, now);
	if (segment.payload || segment.tcp.fin || has_option(skb, &segment))
		return TC_ACT_UNSPEC;
	remember_ack(skb, &uplink->ack, &segment);
	if (told == BACKUP || (told == REGULAR && uplink->appended < REGULAR_ACKS))
		uplink->appended +=
			append_option(skb, &segment, uplink, PRIORITY_OPTION | (told == BACKUP ? IS_BACKUP : 0));
	return TC_ACT_UNSPEC;
}

/* Sends the last ACK once more, with the option that the subflow is regular, and what is newer. */
static __always_inline bool repeat_ack(struct __sk_buff *skb, struct uplink *uplink)
{
	struct last_ack *ack = &uplink->ack;
	__u32 link_bytes = ack->link_bytes, ip_bytes = ack->ip_bytes, tcp_bytes = ack->tcp_bytes, sum;
	__u32 protocol = bpf_htons(ip_bytes == sizeof(struct iphdr) ? ETH_P_IP : ETH_P_IPV6);
	__u8 ip[MAX_IP_BYTES], segment[MAX_TCP_BYTES];
	struct tcphdr *tcp = (void *)segment;
	bool is_sent;

	if (link_bytes < ETH_HLEN || link_bytes > MAX_LINK_BYTES || tcp_bytes < sizeof(*tcp) ||
	    tcp_bytes > MAX_TCP_BYTES - OPTION_BYTES)
		return false;
	/* WireGuard drops a packet whose skb->protocol does not match its IP version; PPP takes its
	 * protocol field from it. */
	if (skb->protocol != protocol && bpf_skb_change_proto(skb, protocol, 0))
		return false;
	if (bpf_skb_change_tail(skb, link_bytes + ip_bytes + tcp_bytes + OPTION_BYTES, 0))
		return false;
	__builtin_memcpy(ip, ack->ip, sizeof(ip));
	__builtin_memcpy(segment, ack->tcp, sizeof(segment));
	tcp->seq = bpf_htonl(uplink->sequence);
	tcp->ack_seq = bpf_htonl(uplink->acknowledged);
	tcp->window = uplink->window;
	tcp->doff += OPTION_BYTES / 4;
	tcp->check = 0;
	if (ack->has_timestamps) {
		*(__u32 *)(segment + sizeof(*tcp) + 4) = uplink->timestamp;
		*(__u32 *)(segment + sizeof(*tcp) + 8) = uplink->timestamp_echo;
	}
	*(__u32 *)(segment + (tcp_bytes & ~3U)) = bpf_htonl(PRIORITY_OPTION);
	tcp_bytes += OPTION_BYTES;
	sum = bpf_htons(IPPROTO_TCP) + bpf_htons(tcp_bytes);
	if (ip_bytes == sizeof(struct iphdr)) {
		struct iphdr *v4 = (void *)ip;

		v4->tot_len = bpf_htons(ip_bytes + tcp_bytes);
		v4->check = 0;
		v4->check = folded(bpf_csum_diff(NULL, 0, (void *)v4, sizeof(*v4), 0));
		sum = bpf_csum_diff(NULL, 0, &v4->saddr, sizeof(v4->saddr) + sizeof(v4->daddr), sum);
		bpf_skb_store_bytes(skb, link_bytes, ip, sizeof(*v4), 0);
	} else {
		struct ipv6hdr *v6 = (void *)ip;

		v6->payload_len = bpf_htons(tcp_bytes);
		sum = bpf_csum_diff(NULL, 0, (void *)&v6->saddr, sizeof(v6->saddr) + sizeof(v6->daddr), sum);
		bpf_skb_store_bytes(skb, link_bytes, ip, sizeof(*v6), 0);
	}
	tcp->check = folded(bpf_csum_diff(NULL, 0, (void *)segment, tcp_bytes, sum));
	bpf_skb_store_bytes(skb, link_bytes + ip_bytes, segment, tcp_bytes, 0);
	bpf_skb_store_bytes(skb, 0, ack->link, link_bytes, 0);
	if (ack->vlan_protocol)
		bpf_skb_vlan_push(skb, ack->vlan_protocol, ack->vlan_tag);
	is_sent = !bpf_clone_redirect(skb, ack->interface, 0);
	if (ack->vlan_protocol)
		bpf_skb_vlan_pop(skb);
	return is_sent;
}

struct reminding {
	struct __sk_buff *skb;
	__u64 now;
	__u32 last;
};

/* Whether the client has sent more than what may have been in flight when it was told that the
 * subflow is regular. */
static __always_inline bool sends_again(const struct uplink *uplink)
{
	return uplink->bytes - uplink->bytes_when_told > IN_FLIGHT_BYTES;
}

/* Whether the client is to be told again: it does not know yet that the debt is paid, or it may not
 * have heard. */
static __always_inline bool is_due(const struct uplink *uplink, const struct share *share, __u64 now)
{
	if (!can_be_told(uplink))
		return false;
	if (uplink->told == BACKUP)
		return !share || (share->paid_at <= now && uplink->counts_from <= now);
	return uplink->told == REGULAR && uplink->repeats < MAX_REPEATS && !sends_again(uplink) &&
	       now - uplink->told_at > REPEAT_NS;
}

/* Whether nothing is left to tell the client. */
static __always_inline bool is_told(const struct uplink *uplink)
{
	return uplink->told == NOTHING || !can_be_told(uplink) || uplink->repeats >= MAX_REPEATS || sends_again(uplink);
}

/* Adds an element behind the last one. Returns 0 or a negative error. */
static __always_inline long add_uplink(const struct ends *ends, struct uplink *new)
{
	__u32 slot = used_slots;
	long error;

	if (slot >= MAX_UPLINKS)
		return -E2BIG;
	new->slot = slot;
	error = bpf_map_update_elem(&uplinks, ends, new, BPF_NOEXIST);
	if (error)
		return error;
	error = bpf_map_update_elem(&slots, &slot, ends, BPF_ANY);
	if (error)
		return error;
	used_slots = slot + 1;
	return 0;
}

/* Removes an element, and puts the last one into its place. */
static __always_inline void remove_uplink(const struct ends *removed, __u32 slot)
{
	__u32 last = used_slots - 1;
	struct ends *ends = bpf_map_lookup_elem(&slots, &last);
	struct uplink *moved = ends ? bpf_map_lookup_elem(&uplinks, ends) : NULL;

	if (ends && slot != last) {
		bpf_map_update_elem(&slots, &slot, ends, BPF_ANY);
		if (moved)
			moved->slot = slot;
	}
	used_slots = last;
	bpf_map_delete_elem(&uplinks, removed);
}

static long remind_one(__u32 number, struct reminding *reminding)
{
	/* Backwards: what is moved into the place of a removed one has been looked at. */
	__u32 slot = reminding->last - number;
	struct ends *at = bpf_map_lookup_elem(&slots, &slot), ends;
	struct uplink *uplink;
	struct share *share;
	__u64 now = reminding->now;
	bool is_sent;

	if (!at)
		return 0;
	ends = *at;
	uplink = bpf_map_lookup_elem(&uplinks, &ends);
	if (!uplink)
		return 0;
	share = bpf_map_lookup_elem(&shares, &uplink->share);
	if (is_due(uplink, share, now)) {
		is_sent = repeat_ack(reminding->skb, uplink);
		count(is_sent ? ACKS_REPEATED : ACKS_NOT_REPEATED);
		if (is_sent || uplink->told == REGULAR) {
			note_told(uplink, REGULAR, now);
			uplink->repeats++;
		}
	} else if (!share && is_told(uplink)) {
		remove_uplink(&ends, slot);
	}
	return 0;
}

/* Puts an element into another share. Its window is bounded `from` then on, or goes on being
 * bounded. */
static __always_inline void change_uplink(struct uplink *uplink, const struct assignment *assignment, __u64 from)
{
	if (uplink->window_scale == UNBOUNDED || !bpf_map_lookup_elem(&shares, &uplink->share))
		uplink->bounded_from = from;
	uplink->is_policed &= uplink->share == assignment->share;
	uplink->has_policer &= uplink->is_policed;
	uplink->share = assignment->share;
	if (assignment->share) {
		uplink->window_scale = assignment->window_scale;
		uplink->round_trip_us = assignment->round_trip_us;
	}
}

/* Puts subflows into their shares, frees or forgets them. The daemon runs it by BPF_PROG_TEST_RUN:
 * a map update from user space replaces the whole element. The packet is an Ethernet header, the
 * time from which new subflows count and new bounds of windows apply, and up to MAX_ASSIGNMENTS
 * assignments. Returns 0, or the negative error of the first that was refused. */
SEC("tc")
int assign(struct __sk_buff *skb)
{
	__u64 from;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, &from, sizeof(from)))
		return -EINVAL;
#pragma unroll 1
	for (int i = 0; i < MAX_ASSIGNMENTS; i++) {
		__u32 at = ETH_HLEN + sizeof(from) + i * sizeof(struct assignment);
		struct assignment assignment;
		struct uplink *uplink;

		if (bpf_skb_load_bytes(skb, at, &assignment, sizeof(assignment)))
			break;
		uplink = bpf_map_lookup_elem(&uplinks, &assignment.ends);
		if (assignment.share == FORGOTTEN) {
			if (uplink)
				remove_uplink(&assignment.ends, uplink->slot);
		} else if (uplink) {
			change_uplink(uplink, &assignment, from);
		} else if (assignment.share) {
			struct share *share = bpf_map_lookup_elem(&shares, &assignment.share);
			/* A subflow of a share that was used before may be opened to escape the
			 * debt. */
			struct uplink new = { .counts_from = share && share->paid_at ? 0 : from,
					      .bounded_from = from,
					      .share = assignment.share,
					      .window_scale = assignment.window_scale,
					      .round_trip_us = assignment.round_trip_us };
			long error = add_uplink(&assignment.ends, &new);

			if (error)
				return error;
		}
	}
	return 0;
}

SEC("tc")
int remind(struct __sk_buff *skb)
{
	struct reminding reminding = { .skb = skb, .now = bpf_ktime_get_ns(), .last = used_slots - 1 };

	bpf_loop(used_slots, remind_one, &reminding, 0);
	return TC_ACT_OK;
}
