/* SPDX-License-Identifier: GPL-2.0-or-later */
/* TCP segments, as programs at an interface see them. */
#ifndef SEGMENT_H
#define SEGMENT_H

#include <stdbool.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "addresses.h"
#include "settings.h"

#define IP_FRAGMENT 0x3fff
/* NOPs: the options of keep-alives that steering.bpf.c makes. TCP sends none alone. */
#define KEEP_ALIVE_OPTIONS 0x01010101U

/* A TCP segment. `payload`: bytes of data; `ip_at`: offset of the IP header in the packet. */
struct segment {
	struct ends ends;
	struct tcphdr tcp;
	__u32 ip_at;
	__u32 ip_bytes;
	__u32 tcp_bytes;
	__u32 payload;
};

/* Offset of the TCP header in the packet. */
static __always_inline __u32 tcp_offset(const struct segment *segment)
{
	return segment->ip_at + segment->ip_bytes;
}

/* VLAN tags may come before the IP header. */
static __always_inline bool may_be_ip(__u32 protocol)
{
	return protocol == bpf_htons(ETH_P_IP) || protocol == bpf_htons(ETH_P_IPV6) ||
	       protocol == bpf_htons(ETH_P_8021Q) || protocol == bpf_htons(ETH_P_8021AD);
}

/* False if it is no whole TCP segment, a fragment of one, or has IPv4 options or IPv6 extension
 * headers. */
static __always_inline bool parse(struct __sk_buff *skb, struct segment *segment, bool is_from_client)
{
	struct ends *ends = &segment->ends;
	__u8 *source = is_from_client ? ends->client : ends->proxy;
	__u8 *destination = is_from_client ? ends->proxy : ends->client;
	union {
		struct iphdr v4;
		struct ipv6hdr v6;
	} ip;
	__u32 total;

	if (!may_be_ip(skb->protocol) || bpf_skb_load_bytes_relative(skb, 0, &ip, sizeof(ip), BPF_HDR_START_NET))
		return false;
	if (ip.v4.version == 4) {
		if (ip.v4.ihl != 5 || ip.v4.protocol != IPPROTO_TCP || ip.v4.frag_off & bpf_htons(IP_FRAGMENT))
			return false;
		map_ipv4(destination, ip.v4.daddr);
		map_ipv4(source, ip.v4.saddr);
		segment->ip_bytes = sizeof(ip.v4);
		total = bpf_ntohs(ip.v4.tot_len);
	} else if (ip.v4.version == 6) {
		if (ip.v6.nexthdr != IPPROTO_TCP)
			return false;
		__builtin_memcpy(destination, &ip.v6.daddr, sizeof(ip.v6.daddr));
		__builtin_memcpy(source, &ip.v6.saddr, sizeof(ip.v6.saddr));
		segment->ip_bytes = sizeof(ip.v6);
		total = sizeof(ip.v6) + bpf_ntohs(ip.v6.payload_len);
	} else {
		return false;
	}
	if (bpf_skb_load_bytes_relative(skb, segment->ip_bytes, &segment->tcp, sizeof(segment->tcp), BPF_HDR_START_NET))
		return false;
	ends->client_port = (__u32)(is_from_client ? segment->tcp.source : segment->tcp.dest) << 16;
	ends->proxy_port = bpf_ntohs(is_from_client ? segment->tcp.dest : segment->tcp.source);
	segment->tcp_bytes = segment->tcp.doff * 4;
	if (segment->tcp_bytes < sizeof(segment->tcp) || total > skb->len ||
	    total < segment->ip_bytes + segment->tcp_bytes)
		return false;
	segment->payload = total - segment->ip_bytes - segment->tcp_bytes;
	segment->ip_at = skb->len - total;
	return true;
}

/* Whether the TCP header is where parse() takes it to be: an interface may leave bytes behind the
 * IP packet. */
static __always_inline bool is_in_place(struct __sk_buff *skb, const struct segment *segment)
{
	struct tcphdr tcp;

	return !bpf_skb_load_bytes(skb, tcp_offset(segment), &tcp, sizeof(tcp)) &&
	       tcp.seq == segment->tcp.seq && tcp.ack_seq == segment->tcp.ack_seq && tcp.check == segment->tcp.check;
}

/* The checksum of a sum of bpf_csum_diff(). */
static __always_inline __u16 folded(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

#endif
