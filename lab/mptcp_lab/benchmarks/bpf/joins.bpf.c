// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Measures how long after its SYN a JOIN is established, and how long after it a socket of its connection is paced. It only
 * reads the pace that the kernel has for the socket, whoever has set it.
 *
 * `observe` belongs on the root cgroup: programs of other cgroups run before it, in the same callback. What is paced between
 * two callbacks is paced by an iterator, which runs in a read(2) of the daemon, whose end `system_call_ends` sees.
 */
#include <stdbool.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/tcp.h>
#include <linux/types.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

char LICENSE[] SEC("license") = "GPL";

/* BPF_PROG and the kernel give functions parameters that they do not use. */
#pragma clang diagnostic ignored "-Wunused-parameter"

#define UNLIMITED 0xffffffffUL

/* libbpf finds the offsets of these fields in the running kernel (CO-RE). */
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
/* include/linux/ns_common.h, include/net/net_namespace.h, include/linux/netdevice.h, include/linux/skbuff.h */
struct ns_common {
	unsigned int inum;
};
struct net {
	struct ns_common ns;
};
typedef struct {
	struct net *net;
} possible_net_t;
struct net_device {
	possible_net_t nd_net;
};
struct sk_buff {
	struct net_device *dev;
	__be16 protocol;
	unsigned char *data;
};
/* include/net/sock.h, include/net/inet_sock.h, include/net/inet_connection_sock.h, include/linux/tcp.h */
struct sock_common {
	possible_net_t skc_net;
};
struct sock {
	struct sock_common __sk_common;
	unsigned long sk_max_pacing_rate;
};
struct inet_sock {
	struct sock sk;
};
struct inet_connection_sock {
	struct inet_sock icsk_inet;
	void *icsk_ulp_data;
};
struct tcp_sock {
	struct inet_connection_sock inet_conn;
	bool is_mptcp;
};
/* net/mptcp/protocol.h */
struct mptcp_sock {
	struct sock *first;
};
struct mptcp_subflow_context {
	struct sock *conn;
	__u32 token;
	__u32 mp_join : 1;
};
/* arch/x86/include/asm/ptrace.h */
struct pt_regs {
	unsigned long orig_ax;
};
#pragma clang attribute pop

#define READ 0 /* arch/x86/entry/syscalls/syscall_64.tbl */

/* `netns` is the number of the proxy's network namespace, `daemon` a process id. `joiner`: the socket that is to be paced is
 * the joining one, not the first of its connection. */
struct settings {
	__u32 netns;
	__u32 port;
	__u32 daemon;
	__u32 joiner;
};
const volatile struct settings settings SEC(".rodata");

struct client {
	__be32 address;
	__be32 port;
};

/* When the SYN of that client arrived; times are those of bpf_ktime_get_ns(). */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct client);
	__type(value, __u64);
} syns SEC(".maps");

struct join {
	__u64 syn;
	__u64 established;
	struct tcp_sock *socket;
};

/* By token: what is not paced yet. Each end of a read(2) of the daemon that returns 0 looks at all of them. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct join);
} joins SEC(".maps");

struct delays {
	__u64 established;
	__u64 paced;
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 23);
} paced SEC(".maps");

SEC("tp_btf/netif_rx")
int BPF_PROG(frame_arrives, struct sk_buff *skb)
{
	struct client client = {};
	struct iphdr ip;
	struct tcphdr tcp;
	__u64 now;

	/* A veth delivers here, where the kernel takes the time stamp. `data` is behind the Ethernet header. */
	if (skb->dev->nd_net.net->ns.inum != settings.netns || skb->protocol != bpf_htons(ETH_P_IP))
		return 0;
	if (bpf_probe_read_kernel(&ip, sizeof(ip), skb->data) || ip.protocol != IPPROTO_TCP ||
	    bpf_probe_read_kernel(&tcp, sizeof(tcp), skb->data + ip.ihl * 4) ||
	    !tcp.syn || tcp.ack || tcp.dest != bpf_htons(settings.port))
		return 0;
	now = bpf_ktime_get_ns();
	client.address = ip.saddr;
	client.port = (__u32)tcp.source << 16;
	bpf_map_update_elem(&syns, &client, &now, BPF_NOEXIST);
	return 0;
}

static bool is_paced(struct tcp_sock *tp, __u32 token)
{
	struct mptcp_subflow_context *context = BPF_CORE_READ(tp, inet_conn.icsk_ulp_data);

	/* The socket's memory may have become another socket. */
	return BPF_CORE_READ(context, token) == token &&
	       BPF_CORE_READ(tp, inet_conn.icsk_inet.sk.sk_max_pacing_rate) < UNLIMITED;
}

static long report_if_paced(void *map, __u32 *token, struct join *join, void *unused)
{
	struct delays delays = { .established = join->established - join->syn };
	__u32 key = *token;

	if (!is_paced(join->socket, key))
		return 0;
	delays.paced = bpf_ktime_get_ns() - join->syn;
	/* Another processor may be reporting it. */
	if (!bpf_map_delete_elem(&joins, &key))
		bpf_ringbuf_output(&paced, &delays, sizeof(delays), BPF_RB_NO_WAKEUP);
	return 0;
}

static void is_established(struct bpf_sock_ops *ctx, struct tcp_sock *tp, struct mptcp_subflow_context *context, __u32 token)
{
	struct client client = { .address = ctx->remote_ip4, .port = ctx->remote_port };
	struct mptcp_sock *connection = (void *)BPF_CORE_READ(context, conn);
	__u64 *syn = bpf_map_lookup_elem(&syns, &client);
	struct join join = { .established = bpf_ktime_get_ns(), .socket = tp };

	bpf_sock_ops_cb_flags_set(ctx, ctx->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_RTT_CB_FLAG);
	if (!syn)
		return;
	join.syn = *syn;
	bpf_map_delete_elem(&syns, &client);
	if (!BPF_CORE_READ_BITFIELD_PROBED(context, mp_join))
		return;
	if (!settings.joiner)
		join.socket = (void *)BPF_CORE_READ(connection, first);
	bpf_map_update_elem(&joins, &token, &join, BPF_ANY);
}

SEC("sockops")
int observe(struct bpf_sock_ops *ctx)
{
	struct mptcp_subflow_context *context;
	struct bpf_sock *sk = ctx->sk;
	struct tcp_sock *tp;
	struct join *join;
	__u32 op = ctx->op, token;

	if ((op != BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB && op != BPF_SOCK_OPS_RTT_CB) || ctx->local_port != settings.port || !sk)
		return 1;
	tp = bpf_skc_to_tcp_sock(sk);
	if (!tp || !BPF_CORE_READ(tp, is_mptcp) ||
	    BPF_CORE_READ(tp, inet_conn.icsk_inet.sk.__sk_common.skc_net.net, ns.inum) != settings.netns)
		return 1;
	context = BPF_CORE_READ(tp, inet_conn.icsk_ulp_data);
	token = BPF_CORE_READ(context, token);
	if (op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB)
		is_established(ctx, tp, context, token);
	join = bpf_map_lookup_elem(&joins, &token);
	if (join)
		report_if_paced(&joins, &token, join, 0);
	return 1;
}

SEC("tp_btf/sys_exit")
int BPF_PROG(system_call_ends, struct pt_regs *registers, long result)
{
	/* An iterator's program writes nothing: its read(2) returns 0. A look after each call, such as each futex(2) of Python's
	 * threads, would slow the daemon down several times. */
	if (result == 0 && registers->orig_ax == READ &&
	    bpf_get_current_pid_tgid() >> 32 == settings.daemon)
		bpf_for_each_map_elem(&joins, report_if_paced, 0, 0);
	return 0;
}
