/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What connections have carried when they end, so that the control group can be compared with the
 * others. Used only while there is one. Times are those of bpf_ktime_get_ns(). */
#ifndef COMPARISON_H
#define COMPARISON_H

#include "counters.h"
#include "networks.h"
#include "control_group.h"

/* A connection, by its token: its open subflows, and what those that have closed had sent. */
struct connection {
	__u64 began;
	__u64 last_acked_at;
	__u64 bytes;
	__u64 capped_bytes;
	__u32 open;
	__u32 padding;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct connection);
} connections SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 18);
} ended_connections SEC(".maps");

SHARED_WITH_DAEMON(shared_ended, struct ended);

/* Of a subflow: whether its connection is known, and when its client had acknowledged how much. */
struct compared {
	__u64 acked;
	__u64 acked_at;
	bool is_known;
};

/* When a subflow is established. */
static __always_inline void begin_comparison(struct compared *compared, __u32 token, bool is_first)
{
	struct connection new = { .began = bpf_ktime_get_ns(), .open = 1 }, *connection;

	if (is_first) {
		compared->is_known = !bpf_map_update_elem(&connections, &token, &new, BPF_ANY);
		if (!compared->is_known)
			count(NOT_COMPARED);
		return;
	}
	connection = bpf_map_lookup_elem(&connections, &token);
	if (!connection)
		return;
	__sync_fetch_and_add(&connection->open, 1);
	compared->is_known = true;
}

/* At each RTT sample. A FIN takes one byte, and is no data. */
static __always_inline void note_acked(struct compared *compared, struct tcp_sock *tp)
{
	__u64 acked = BPF_CORE_READ(tp, bytes_acked);

	if (!compared->is_known || acked <= compared->acked + 1)
		return;
	compared->acked = acked;
	compared->acked_at = bpf_ktime_get_ns();
}

static __always_inline void report_ended(const struct connection *connection, __u32 token)
{
	struct ended *ended = bpf_ringbuf_reserve(&ended_connections, sizeof(*ended), 0);

	if (!ended) {
		count(NOT_COMPARED);
		return;
	}
	ended->lasted_ns = connection->last_acked_at ? connection->last_acked_at - connection->began : 0;
	ended->bytes = connection->bytes;
	ended->capped_bytes = connection->capped_bytes;
	ended->token = token;
	ended->in_control_group = in_control_group(token);
	bpf_ringbuf_submit(ended, 0);
}

/* When a subflow has closed. */
static __always_inline void end_comparison(const struct compared *compared, struct tcp_sock *tp, __u32 token,
					   const struct network *network)
{
	struct connection *connection = compared->is_known ? bpf_map_lookup_elem(&connections, &token) : NULL;
	__u64 bytes;

	if (!connection)
		return;
	bytes = BPF_CORE_READ(tp, bytes_sent);
	__sync_fetch_and_add(&connection->bytes, bytes);
	if (network && network->pace)
		__sync_fetch_and_add(&connection->capped_bytes, bytes);
	if (connection->last_acked_at < compared->acked_at)
		connection->last_acked_at = compared->acked_at;
	if (__sync_fetch_and_add(&connection->open, -1) > 1)
		return;
	report_ended(connection, token);
	bpf_map_delete_elem(&connections, &token);
}

#endif
