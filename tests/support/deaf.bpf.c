// SPDX-License-Identifier: GPL-2.0-or-later
/* A client that ignores MP_PRIO: at the ingress of its interfaces, the option that the proxy appends becomes NOPs. */
#include <stddef.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "GPL";

#define APPENDED 0x011e0350U
#define NOPS 0x01010101U
#define CHECKSUM_AT (ETH_HLEN + sizeof(struct iphdr) + offsetof(struct tcphdr, check))

SEC("tc")
int ignore_priority(struct __sk_buff *skb)
{
	struct iphdr ip;
	struct tcphdr tcp;
	__u32 option, nops = bpf_htonl(NOPS), at;

	if (skb->protocol != bpf_htons(ETH_P_IP) || bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)) ||
	    ip.ihl != 5 || ip.protocol != IPPROTO_TCP || bpf_skb_load_bytes(skb, ETH_HLEN + sizeof(ip), &tcp, sizeof(tcp)))
		return TC_ACT_UNSPEC;
	at = ETH_HLEN + sizeof(ip) + tcp.doff * 4 - sizeof(option);
	if (tcp.doff <= 5 || bpf_skb_load_bytes(skb, at, &option, sizeof(option)) ||
	    (bpf_ntohl(option) & ~0xfU) != APPENDED)
		return TC_ACT_UNSPEC;
	bpf_l4_csum_replace(skb, CHECKSUM_AT, option, nops, sizeof(option));
	bpf_skb_store_bytes(skb, at, &nops, sizeof(nops), 0);
	return TC_ACT_UNSPEC;
}
