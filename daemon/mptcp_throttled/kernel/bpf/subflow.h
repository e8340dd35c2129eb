/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What the programs that know the kernel's structures read of a subflow's socket. */
#ifndef SUBFLOW_H
#define SUBFLOW_H

#include "kernel.h"
#include "addresses.h"
#include "constants.h"
#include <bpf/bpf_core_read.h>

#define MAX_WINDOW 65535

/* A window as a header has it. MPTCP's receive window can be larger than a header can say
 * (net/mptcp/options.c, mptcp_set_rwin). */
static __always_inline __u16 scaled_down(__u32 window, __u8 shift)
{
	window >>= shift;
	return window < MAX_WINDOW ? window : MAX_WINDOW;
}

static __always_inline struct mptcp_subflow_context *subflow_context(struct tcp_sock *tp)
{
	return BPF_CORE_READ(tp, inet_conn.icsk_ulp_data);
}

static __always_inline struct mptcp_sock *connection_of(struct tcp_sock *tp)
{
	return (void *)BPF_CORE_READ(subflow_context(tp), conn);
}

/* The number of the proxy that has accepted a connection; 0: none has. The connection has the port of
 * the socket that accepted it. A subflow that the proxy's kernel has opened, to an address that the
 * client has announced, has a port of its own, and so has one to an address that the proxy's kernel has
 * announced with a port. */
static __always_inline __u32 accepted_by(struct mptcp_sock *msk)
{
	return msk ? proxy_with_port(BPF_CORE_READ((struct sock *)msk, __sk_common.skc_num)) : 0;
}

/* The connection of a subflow, if it is one to the proxy; else NULL. */
static __always_inline struct mptcp_sock *connection_to_proxy(struct tcp_sock *tp)
{
	struct mptcp_sock *msk = BPF_CORE_READ(tp, is_mptcp) ? connection_of(tp) : NULL;

	return accepted_by(msk) ? msk : NULL;
}

/* The number of the proxy that has accepted the connection of a subflow; 0: none has. */
static __always_inline __u32 proxy_of(struct tcp_sock *tp)
{
	return accepted_by(BPF_CORE_READ(tp, is_mptcp) ? connection_of(tp) : NULL);
}

static __always_inline bool joined(struct tcp_sock *tp)
{
	return BPF_CORE_READ_BITFIELD_PROBED(subflow_context(tp), mp_join);
}

/* Whether the socket is bound to a device, as all in a VRF are: programs that run elsewhere do not
 * find it. */
static __always_inline bool is_bound(struct tcp_sock *tp)
{
	return BPF_CORE_READ((struct sock *)tp, __sk_common.skc_bound_dev_if);
}

/* MPTCP takes an ACK without DSS for the end of MPTCP until a client has sent data on the first
 * subflow, or has acknowledged one that the proxy has opened (net/mptcp/options.c,
 * check_fully_established). A bound socket could not be freed by `remind`. */
static __always_inline bool may_be_told(struct tcp_sock *tp)
{
	return !is_bound(tp) && BPF_CORE_READ_BITFIELD_PROBED(subflow_context(tp), fully_established) &&
	       (joined(tp) || BPF_CORE_READ(tp, bytes_received));
}

/* Whether MPTCP sends data again that a subflow had when it died (net/mptcp/protocol.c,
 * __mptcp_retransmit_pending_data). */
static __always_inline bool recovers(struct tcp_sock *tp)
{
	struct mptcp_sock *msk = connection_of(tp);

	return msk && BPF_CORE_READ(msk, recovery);
}

static __always_inline void client_address(struct sock *sk, __u8 address[16])
{
	if (BPF_CORE_READ(sk, __sk_common.skc_family) == AF_INET) {
		map_ipv4(address, BPF_CORE_READ(sk, __sk_common.skc_daddr));
	} else {
		struct in6_addr v6 = BPF_CORE_READ(sk, __sk_common.skc_v6_daddr);

		__builtin_memcpy(address, &v6, sizeof(v6));
	}
}

static __always_inline void proxy_address(struct sock *sk, __u8 address[16])
{
	if (BPF_CORE_READ(sk, __sk_common.skc_family) == AF_INET) {
		map_ipv4(address, BPF_CORE_READ(sk, __sk_common.skc_rcv_saddr));
	} else {
		struct in6_addr v6 = BPF_CORE_READ(sk, __sk_common.skc_v6_rcv_saddr);

		__builtin_memcpy(address, &v6, sizeof(v6));
	}
}

static __always_inline void ends_of_socket(struct sock_common *common, struct ends *ends)
{
	client_address((void *)common, ends->client);
	proxy_address((void *)common, ends->proxy);
	ends->client_port = (__u32)BPF_CORE_READ(common, skc_dport) << 16;
	ends->proxy_port = BPF_CORE_READ(common, skc_num);
}

/* Whether the kernel of the proxy has asked the client to use the subflow as a backup. */
static __always_inline bool is_backup_for_client(struct mptcp_subflow_context *context)
{
	return bpf_core_field_exists(context->request_bkup) && BPF_CORE_READ_BITFIELD_PROBED(context, request_bkup);
}

/* The socket of an iterator, if it is a subflow of a connection to the proxy that can still send;
 * else NULL. */
static __always_inline struct tcp_sock *sending_subflow(struct sock_common *common)
{
	struct tcp_sock *tp = common ? bpf_skc_to_tcp_sock(common) : NULL;
	__u8 state;

	if (!tp || !connection_to_proxy(tp))
		return NULL;
	state = BPF_CORE_READ(common, skc_state);
	if (state == BPF_TCP_ESTABLISHED || state == BPF_TCP_CLOSE_WAIT || state == BPF_TCP_FIN_WAIT1 ||
	    state == BPF_TCP_LAST_ACK || state == BPF_TCP_CLOSING)
		return tp;
	return NULL;
}

#endif
