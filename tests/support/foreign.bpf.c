// SPDX-License-Identifier: GPL-2.0-or-later
/* Not our program: counts the packets that reach the accepted sockets of one network namespace. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "GPL";

const volatile __u64 netns_cookie SEC(".rodata") = 0;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} packets SEC(".maps");

SEC("sockops")
int count_packets(struct bpf_sock_ops *ctx)
{
	__u32 key = 0;
	__u64 *count = bpf_map_lookup_elem(&packets, &key);

	if (bpf_get_netns_cookie(ctx) != netns_cookie)
		return 1;
	if (ctx->op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB)
		bpf_sock_ops_cb_flags_set(ctx, ctx->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_PARSE_ALL_HDR_OPT_CB_FLAG);
	if (ctx->op == BPF_SOCK_OPS_PARSE_HDR_OPT_CB && count)
		__sync_fetch_and_add(count, 1);
	return 1;
}
