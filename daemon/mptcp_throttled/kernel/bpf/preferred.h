/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Whether the connection of a subflow has a path that is more preferred. */
#ifndef PREFERRED_H
#define PREFERRED_H

#include "health.h"
#include "networks.h"
#include "steering.h"
#include "subflow.h"

/* The kernel's path manager allows eight subflows besides the first (net/mptcp/pm.c,
 * MPTCP_PM_ADDR_MAX), one in user space any number. Where there are more, the daemon decides alone.
 * */
#define MAX_SUBFLOWS 9
#define DEAD_RETRANSMITS 2

static __always_inline bool is_live(struct mptcp_subflow_context *context, struct sock *sk)
{
	struct tcp_sock *tp = (void *)sk;
	__u8 state = BPF_CORE_READ(sk, __sk_common.skc_state);

	return (state == BPF_TCP_ESTABLISHED || state == BPF_TCP_CLOSE_WAIT) &&
	       !BPF_CORE_READ_BITFIELD_PROBED(context, stale) &&
	       BPF_CORE_READ(tp, inet_conn.icsk_retransmits) < DEAD_RETRANSMITS;
}

static __always_inline bool kernel_says_backup(struct mptcp_subflow_context *context)
{
	return BPF_CORE_READ_BITFIELD_PROBED(context, backup);
}

/* Whether the client or the proxy's kernel wants the subflow with these ends to be a backup,
 * whatever steering.bpf.c has told MPTCP. */
static __always_inline bool is_backup(struct mptcp_subflow_context *context, const struct ends *ends)
{
	struct steered *steered;

	if (is_backup_for_client(context))
		return true;
	if (!kernel_says_backup(context))
		return false;
	steered = bpf_map_lookup_elem(&steered_subflows, ends);
	return !steered || steered->client_wants_backup;
}

/* What a member of a connection's list adds to what is known of the connection. */
enum member { REGULAR = 1, PREFERRED_REGULAR = 2, PREFERRED_BACKUP = 4 };

/* Not inlined, and with numbers for pointers, so that the verifier looks at it once: inlined into
 * the loop below it takes a second. */
__noinline int member_of(__u64 member, __u32 proxy, __u32 preference)
{
	struct mptcp_subflow_context *context = (void *)member;
	struct sock *sk = BPF_CORE_READ(context, tcp_sock);
	struct network *network;
	struct ends ends = {};
	bool preferred;

	if (!sk || !is_live(context, sk))
		return 0;
	ends_of_socket((void *)sk, &ends);
	network = network_of(proxy, ends.client);
	preferred = network && network->preference < preference && !is_sick(&ends, network);
	if (is_backup(context, &ends))
		return preferred ? PREFERRED_BACKUP : 0;
	return preferred ? REGULAR | PREFERRED_REGULAR : REGULAR;
}

/* In the list of a connection's subflows, before the next one. */
struct walk {
	struct list_head *head, *at;
};

static __always_inline struct walk members_of(struct mptcp_sock *msk)
{
	struct list_head *head = (void *)msk + bpf_core_field_offset(struct mptcp_sock, conn_list);
	struct walk walk = { .head = head, .at = msk ? BPF_CORE_READ(head, next) : NULL };

	return walk;
}

static __always_inline bool is_at_end(const struct walk *walk)
{
	return !walk->at || walk->at == walk->head;
}

/* NULL after the last. A member of the list may go, and its memory become another socket, while it
 * is read. */
static __always_inline struct mptcp_subflow_context *next_member(struct walk *walk)
{
	struct list_head *at = walk->at;

	if (is_at_end(walk))
		return NULL;
	walk->at = BPF_CORE_READ(at, next);
	return (void *)at - bpf_core_field_offset(struct mptcp_subflow_context, node);
}

/* The socket of the next member of a connection's list, and its ends; NULL after the last. */
static __always_inline struct tcp_sock *next_socket(struct walk *walk, struct ends *ends)
{
	struct mptcp_subflow_context *context = next_member(walk);
	struct sock *sk = context ? BPF_CORE_READ(context, tcp_sock) : NULL;

	if (sk)
		ends_of_socket((void *)sk, ends);
	return (void *)sk;
}

enum preferred { NO_PREFERRED, PREFERRED_UNUSED, PREFERRED_USED, TOO_MANY_SUBFLOWS };

/* Whether the connection has, on a network that is more preferred than this one, a live subflow,
 * and whether MPTCP uses both it and this subflow. If a member of the list goes while it is read,
 * the answer may be wrong until it is asked for again. */
static __always_inline enum preferred preferred_subflow(struct tcp_sock *tp, const struct ends *ends,
							const struct network *network)
{
	__u32 proxy = network->proxy, preference = network->preference;
	struct walk walk = members_of(connection_of(tp));
	int members = 0;

#pragma unroll 1
	for (int i = 0; i < MAX_SUBFLOWS; i++) {
		struct mptcp_subflow_context *context = next_member(&walk);

		if (!context)
			break;
		members |= member_of((__u64)context, proxy, preference);
		if (members & PREFERRED_REGULAR)
			break;
	}
	if (members & PREFERRED_REGULAR)
		return is_backup(subflow_context(tp), ends) ? PREFERRED_UNUSED : PREFERRED_USED;
	if (!is_at_end(&walk))
		return TOO_MANY_SUBFLOWS;
	if (!(members & PREFERRED_BACKUP))
		return NO_PREFERRED;
	return members & REGULAR ? PREFERRED_UNUSED : PREFERRED_USED;
}

#endif
