// SPDX-License-Identifier: GPL-2.0-or-later
/* Counts the TCP sockets of a network namespace that have a value in a map of socket storage, which takes the place of
 * `values`: one byte is written for each. */
#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "GPL";

/* libbpf finds the offsets of these fields in the running kernel (CO-RE). */
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
/* kernel/bpf/bpf_iter.c, net/ipv4/tcp_ipv4.c */
struct seq_file;
struct sock_common;
struct bpf_iter_meta {
	struct seq_file *seq;
};
struct bpf_iter__tcp {
	struct bpf_iter_meta *meta;
	struct sock_common *sk_common;
};
#pragma clang attribute pop

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, __u32);
} values SEC(".maps");

SEC("iter/tcp")
int list_sockets(struct bpf_iter__tcp *ctx)
{
	struct sock_common *common = ctx->sk_common;
	struct tcp_sock *tp;
	char one = 1;

	if (!common)
		return 0;
	tp = bpf_skc_to_tcp_sock(common);
	if (tp && bpf_sk_storage_get(&values, tp, 0, 0))
		bpf_seq_write(ctx->meta->seq, &one, sizeof(one));
	return 0;
}
