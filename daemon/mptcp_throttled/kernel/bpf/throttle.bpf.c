// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Decides which subflows of the proxy are capped, paces them, and puts them into their HTB classes.
 * Needs CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON, and the kernel's type information
 * (/sys/kernel/btf/vmlinux).
 *
 * A subflow is capped while its own connection has, on a more preferred network, a subflow that is
 * established, neither backup nor stale nor sick (health.h), and has fewer than DEAD_RETRANSMITS
 * timeouts in a row.
 * When all subflows are backups, MPTCP uses them, so they count as if none were. The first subflow
 * of a connection is capped for `provisional_ns`, too, if its network has that. The program looks
 * at the kernel's own list of the connection's subflows when a subflow is established and at each
 * of its RTT samples. So a subflow that joins is paced before it can send, and what the wire only
 * claims decides nothing.
 *
 * The networks and their paces come from the daemon. Its pace for a single subflow, which knows
 * with whom the cap is shared, has precedence over the network's.
 *
 * The class is the socket's SO_PRIORITY: HTB takes a priority that is the id of one of its classes
 * before it asks any filter (net/sched/sch_htb.c, htb_classify), so no mark that another program
 * sets can change it.
 */
#include "allowances.h"
#include "comparison.h"
#include "counters.h"
#include "preferred.h"
#include "socket.h"

char LICENSE[] SEC("license") = "GPL";

#define CALLBACKS (BPF_SOCK_OPS_RTT_CB_FLAG | BPF_SOCK_OPS_STATE_CB_FLAG)
#define TCP_BPF_SOCK_OPS_CB_FLAGS 1008 /* include/uapi/linux/bpf.h, since Linux 6.12 */

/* A cap begins when the socket's queue has drained, or after 1.5 s: at the cap's pace the reader
 * would wait for its last byte. Until then MPTCP adds to the queue only when it is nearly empty.
 * The first subflow of a connection, if its network has a cap, is limited so from its beginning on,
 * whenever it is not capped: what it has not sent stays with MPTCP, for the preferred path that
 * joins. */
#define DRAINED_BYTES 8192
#define DRAIN_NS 1500000000ULL
/* A cap that begins again sooner has no drain: clients could have one after the other. */
#define NEXT_DRAIN_NS 10000000000ULL

/* A cap ends this long after the priorities of the subflows alone ask for it: MPTCP takes as long
 * to use a path that it has hardly used, and a client that changes priorities all the time has its
 * cap all the time. */
#define PRIORITY_NS 1000000000ULL

/* So long a new subflow may wait for its own class in that of another. */
#define OTHERS_CLASS_NS 3000000000ULL

/* The rate of a subflow is measured over so many bytes, and once it is known, over more than so long:
 * many ACKs may come at once, and MPTCP gives a subflow without a limit all that it has. TCP's own
 * estimates are several times too high for seconds: BBR takes the highest of the last ten round trips,
 * and paces at 2.9 times that while it starts. */
#define RATE_BYTES (128 << 10)
#define RATE_NS 50000000ULL
#define NS_PER_SECOND 1000000000ULL

/* The paces in bytes/s, and the class ids, that the daemon has decided. Capped subflows are in both
 * maps; a subflow in `classes` alone is limited, whatever its connection's other subflows do. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct ends);
	__type(value, __u32);
} paces SEC(".maps"), classes SEC(".maps");

/* Of a subflow: the pace, the limit of unsent data and the priority that the socket had before, and
 * what it has from us. `pace` is UNLIMITED when the subflow has no pace, and while it drains before
 * it has one. `drain_began` is when its latest drain began; 0: another may begin. `has_unsent_limit`:
 * from us. `class_id` is 0 when it is in no class. `began` is 0 if it is not the first of its
 * connection, or older than the program. `preferred_at` is when the connection had a preferred path
 * that MPTCP used, `unused_at` when only priorities kept it from that. Until `others_class_until` it
 * has `others_class`, while it is capped and has none of its own. `rate` (bytes/s; 0: not known) was
 * measured until `measured_at`, when `acked_then` bytes had been acknowledged. Times are those of
 * bpf_ktime_get_ns(). Without `callbacks` only the iterator serves it. `proxy` is the number of the proxy
 * that has accepted its connection. */
struct subflow {
	__u64 began;
	__u64 drain_began;
	__u64 preferred_at;
	__u64 unused_at;
	__u64 others_class_until;
	__u64 measured_at;
	__u64 acked_then;
	__u64 rate;
	__u32 others_class;
	__u32 pace;
	__u32 pace_before;
	__u32 unsent_limit_before;
	__u32 class_id;
	__u32 priority_before;
	__u32 token;
	bool has_unsent_limit;
	bool callbacks;
	__u8 proxy;
	struct health health;
	struct compared compared;
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct subflow);
} subflows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} totals SEC(".maps");

SHARED_WITH_DAEMON(shared_closed, struct closed);
SHARED_WITH_DAEMON(shared_ailment, enum ailment);
SHARED_WITH_DAEMON(shared_counter, enum counter);

static __always_inline __u32 max_pacing_rate(struct tcp_sock *tp)
{
	unsigned long rate = BPF_CORE_READ(tp, inet_conn.icsk_inet.sk.sk_max_pacing_rate);

	return rate < UNLIMITED ? rate : UNLIMITED;
}

static __always_inline __u32 priority_of(struct tcp_sock *tp)
{
	return BPF_CORE_READ(tp, inet_conn.icsk_inet.sk.sk_priority);
}

/* What a socket outside our classes may have: a class of ours that another program has set counts
 * as none. */
static __always_inline __u32 foreign_priority(__u32 priority)
{
	return is_our_class(priority) ? 0 : priority;
}

/* MPTCP sets the options of a connection, IP_TOS and SO_PRIORITY among them, on all its subflows.
 * */
static __always_inline __u32 priority_of_connection(struct tcp_sock *tp)
{
	struct sock *msk = (void *)connection_of(tp);

	return msk ? foreign_priority(BPF_CORE_READ(msk, sk_priority)) : 0;
}

/* The limit of unsent data that MPTCP gives a subflow. Since Linux 6.9 it sets ~0 on the listener,
 * from which the first subflow of a connection has it, and on those that join, some time after they
 * are established (net/mptcp/sockopt.c, mptcp_sockopt_sync_locked). */
static __always_inline __u32 default_unsent_limit(void)
{
	return bpf_core_field_exists(struct mptcp_sock, notsent_lowat) ? UNLIMITED : 0;
}

static __always_inline void remember_former_options(struct subflow *subflow, struct tcp_sock *tp)
{
	__u32 pace = max_pacing_rate(tp), limit = BPF_CORE_READ(tp, notsent_lowat);

	subflow->token = token_of(connection_of(tp));
	subflow->proxy = proxy_of(tp);
	subflow->pace_before = subflow->pace = UNLIMITED;
	subflow->unsent_limit_before = default_unsent_limit();
	if (was_paced_by_us(pace, limit)) {
		subflow->pace = pace;
		subflow->has_unsent_limit = true;
	} else {
		subflow->pace_before = pace;
		if (limit)
			subflow->unsent_limit_before = limit;
	}
	if (is_our_class(priority_of(tp))) {
		subflow->class_id = priority_of(tp);
		subflow->priority_before = priority_of_connection(tp);
	}
}

/* What follows takes a `target`: the context of a sock_ops program, or the socket of an iterator.
 * */

/* `at_once`: what is queued does not leave first, at any rate. */
static __always_inline void begin_or_change_pace(void *target, struct tcp_sock *tp, struct subflow *subflow, __u32 pace,
						 bool at_once)
{
	__u32 limit = BPF_CORE_READ(tp, notsent_lowat);

	if (subflow->pace == pace) {
		if (limit != unsent_limit(pace))
			set_unsent_limit(target, unsent_limit(pace));
		subflow->drain_began = 0;
		return;
	}
	if (subflow->pace == UNLIMITED) {
		__u32 unsent = BPF_CORE_READ(tp, write_seq) - BPF_CORE_READ(tp, snd_nxt);
		__u64 now = bpf_ktime_get_ns();

		if (!subflow->drain_began)
			subflow->drain_began = now;
		if (limit != DRAIN_UNSENT_LIMIT)
			set_unsent_limit(target, DRAIN_UNSENT_LIMIT);
		subflow->has_unsent_limit = true;
		if (!at_once && subflow->callbacks && unsent > DRAINED_BYTES &&
		    now - subflow->drain_began < DRAIN_NS)
			return;
	}
	if (set_pace(target, pace)) {
		count(SOCKETS_REFUSED);
		return;
	}
	subflow->pace = pace;
	subflow->drain_began = 0;
}

/* Whether an uncapped subflow has the limit of unsent data, for a preferred path that may join. Not
 * while MPTCP recovers: each acknowledgment lets it send one fragment, and until the gap is filled
 * the receive window does not move, so that clients delay their acknowledgments. */
static __always_inline bool waits_for_preferred(struct tcp_sock *tp, struct subflow *subflow)
{
	return subflow->callbacks && !joined(tp) && !recovers(tp);
}

static __always_inline __u32 unpaced_limit(struct tcp_sock *tp, const struct ends *ends)
{
	return is_backup(subflow_context(tp), ends) ? BACKUP_UNSENT_LIMIT : DRAIN_UNSENT_LIMIT;
}

/* Takes the pace away. The subflow may have `limit` bytes unsent; 0: what it might before. */
static __always_inline void end_pace(void *target, struct tcp_sock *tp, struct subflow *subflow, __u32 limit)
{
	__u32 present = BPF_CORE_READ(tp, notsent_lowat);
	bool is_paced = subflow->pace != UNLIMITED;

	if (!is_paced && subflow->has_unsent_limit == !!limit && (!limit || present == limit))
		return;
	if ((is_paced && set_pace(target, subflow->pace_before)) ||
	    set_unsent_limit(target, limit ?: subflow->unsent_limit_before)) {
		count(SOCKETS_REFUSED);
		return;
	}
	subflow->pace = UNLIMITED;
	subflow->has_unsent_limit = limit;
}

static __always_inline void measure_rate(struct tcp_sock *tp, struct subflow *subflow, __u64 now)
{
	__u64 acked = BPF_CORE_READ(tp, bytes_acked), bytes = acked - subflow->acked_then;

	if (subflow->measured_at) {
		if (bytes < RATE_BYTES || now - subflow->measured_at <= (subflow->rate ? RATE_NS : 0))
			return;
		subflow->rate = bytes * NS_PER_SECOND / (now - subflow->measured_at);
	}
	subflow->measured_at = now;
	subflow->acked_then = acked;
}

/* Whether subflows may be held back for this one, and it is not known to be much faster than their
 * caps. */
static __always_inline bool is_slow_and_preferred(struct tcp_sock *tp, const struct subflow *subflow,
						  const struct network *network)
{
	struct walk walk;

	if (!network || !network->steered || network->pace || subflow->rate >= network->slow_rate ||
	    !subflow->callbacks || recovers(tp))
		return false;
	walk = members_of(connection_of(tp));
	return next_member(&walk) && next_member(&walk);
}

/* Puts the socket into a class; into none if `class_id` is 0. */
static __always_inline void set_class(void *target, struct tcp_sock *tp, struct subflow *subflow, __u32 class_id)
{
	__u32 present = priority_of(tp), wanted;

	/* IP_TOS and SO_PRIORITY of the proxy change it, too, at any time. */
	if (!subflow->class_id || present != subflow->class_id)
		subflow->priority_before = foreign_priority(present);
	wanted = class_id ?: subflow->priority_before;
	if (wanted != present && set_priority(target, wanted)) {
		count(SOCKETS_REFUSED);
		return;
	}
	subflow->class_id = class_id;
}

/* Whether what a subflow had unsent when steering.bpf.c held it back is still leaving: in its class
 * that would take as long as the cap says, and the connection would wait for it. */
static __always_inline bool drains(struct tcp_sock *tp, const struct subflow *subflow, __u32 class_id, __u64 now)
{
	__u32 unsent = BPF_CORE_READ(tp, write_seq) - BPF_CORE_READ(tp, snd_nxt);

	return subflow->callbacks && subflow->class_id != class_id && unsent > DRAINED_BYTES &&
	       now - subflow->drain_began < DRAIN_NS;
}

static __always_inline bool is_provisional(struct subflow *subflow, struct network *network)
{
	return subflow->began && bpf_ktime_get_ns() - subflow->began < network->provisional_ns;
}

/* What keeps a subflow to its rate: nothing, for it has none; a pace; or steering.bpf.c. */
enum cap { NO_CAP, PACED, STEERED };

/* Whether steering.bpf.c holds the subflow back while it is capped. It leaves alone what the client
 * wants as a backup, and what MPTCP can be told nothing of. What it holds is free while the client
 * wants the preferred path as a backup: a client that changes priorities all the time is paced.
 * `is_new`: just established, so that steering.bpf.c has not seen it. */
static __always_inline bool is_steered(struct tcp_sock *tp, const struct subflow *subflow, const struct ends *ends,
				       bool is_new, __u64 now)
{
	struct steered *steered;

	if (subflow->unused_at && now - subflow->unused_at < PRIORITY_NS)
		return false;
	steered = bpf_map_lookup_elem(&steered_subflows, ends);
	if (steered)
		return !steered->client_wants_backup && !steered->is_uncounted && may_be_told(tp);
	return is_new && !is_bound(tp) && !kernel_says_backup(subflow_context(tp));
}

static __always_inline enum cap cap_of(struct tcp_sock *tp, struct subflow *subflow, struct network *network,
				       const struct ends *ends, bool is_new, bool by_daemon, __u64 now)
{
	switch (preferred_subflow(tp, ends, network)) {
	case PREFERRED_USED:
		subflow->preferred_at = now;
		return network->steered && is_steered(tp, subflow, ends, is_new, now) ? STEERED : PACED;
	case PREFERRED_UNUSED:
		if (now - subflow->preferred_at >= PRIORITY_NS)
			return NO_CAP;
		subflow->unused_at = now;
		return PACED;
	case TOO_MANY_SUBFLOWS:
		return by_daemon ? PACED : NO_CAP;
	default:
		return is_provisional(subflow, network) ? PACED : NO_CAP;
	}
}

/* Looks for the class of a subflow from the same address. */
struct search {
	struct walk walk;
	__u8 client[16];
	__u32 class_id;
};

/* Returns 1 at the end of the connection's list, or of the search. */
static long find_class_of_member(__u32 index __attribute__((unused)), struct search *search)
{
	struct ends ends = {};
	__u32 *class_id;

	if (!next_socket(&search->walk, &ends))
		return 1;
	if (!is_same_address(ends.client, search->client))
		return 0;
	class_id = bpf_map_lookup_elem(&classes, &ends);
	if (!class_id)
		return 0;
	search->class_id = *class_id;
	return 1;
}

/* A new subflow may send before steering.bpf.c has held it back, and the daemon has given it a class:
 * it uses that of a subflow of its connection from the same address. */
static __always_inline void find_others_class(struct tcp_sock *tp, struct subflow *subflow, const struct ends *ends,
					      __u64 now)
{
	struct search search = { .walk = members_of(connection_of(tp)) };

	__builtin_memcpy(search.client, ends->client, sizeof(search.client));
	bpf_loop(MAX_SUBFLOWS, find_class_of_member, &search, 0);
	subflow->others_class = search.class_id;
	subflow->others_class_until = now + OTHERS_CLASS_NS;
}

static __always_inline void decide(void *target, struct tcp_sock *tp, struct subflow *subflow, struct network *network,
				   const struct ends *ends, bool is_new)
{
	__u32 *own_class = bpf_map_lookup_elem(&classes, ends);
	__u32 *pace = bpf_map_lookup_elem(&paces, ends);
	bool is_control = network && in_control_group(subflow->token);
	struct bounds bounds = {};
	bool may_be_capped;
	__u32 class_id = own_class ? *own_class : 0;
	__u64 now = bpf_ktime_get_ns();
	enum cap cap = NO_CAP;

	if (network && network->may_be_narrowed)
		find_bounds(subflow->proxy, ends, &bounds);
	may_be_capped = network && (network->pace || bounds.cap) && !is_control;
	if (may_be_capped && (pace || subflow->callbacks))
		cap = cap_of(tp, subflow, network, ends, is_new, pace, now);
	if (cap != NO_CAP && !class_id) {
		if (is_new)
			find_others_class(tp, subflow, ends, now);
		if (now < subflow->others_class_until)
			class_id = subflow->others_class;
	}
	if (cap == STEERED) {
		end_pace(target, tp, subflow, recovers(tp) ? 0 : unpaced_limit(tp, ends));
		if (!subflow->drain_began)
			subflow->drain_began = now;
		set_class(target, tp, subflow, drains(tp, subflow, class_id, now) ? subflow->class_id : class_id);
	} else if (cap == PACED) {
		begin_or_change_pace(target, tp, subflow, lower_pace(pace ? *pace : network->pace, bounds.cap),
				     bounds.cap);
		set_class(target, tp, subflow, subflow->drain_began ? subflow->class_id : class_id);
	} else {
		/* A subflow with a pace is in the class of a cap that has ended. Until the daemon
		 * gives it that of the limit, it stays there. */
		bool has_class = class_id && (!pace || (network && network->limited));
		bool is_soon = bounds.is_soon && subflow->callbacks && !recovers(tp);
		__u32 limit = 0;

		if (network && network->slow_rate)
			measure_rate(tp, subflow, now);
		if ((may_be_capped && waits_for_preferred(tp, subflow)) || (is_soon && bounds.is_near))
			limit = unpaced_limit(tp, ends);
		else if (is_soon || (!is_control && is_slow_and_preferred(tp, subflow, network)))
			limit = PREFERRED_UNSENT_LIMIT;
		if (bounds.limit && subflow->callbacks)
			begin_or_change_pace(target, tp, subflow, bounds.limit, true);
		else
			end_pace(target, tp, subflow, limit);
		if (now - subflow->drain_began > NEXT_DRAIN_NS)
			subflow->drain_began = 0;
		set_class(target, tp, subflow, has_class ? class_id : 0);
	}
}

static __always_inline void report_totals(struct bpf_sock_ops *ctx, struct tcp_sock *tp, __u32 token,
					  const struct ends *ends)
{
	struct closed *closed = bpf_ringbuf_reserve(&totals, sizeof(*closed), 0);
	struct steered *steered;

	if (!closed) {
		count(TOTALS_LOST);
		return;
	}
	closed->ends = *ends;
	closed->cookie = bpf_get_socket_cookie(ctx);
	closed->bytes_sent = BPF_CORE_READ(tp, bytes_sent);
	closed->bytes_retransmitted = BPF_CORE_READ(tp, bytes_retrans);
	closed->bytes_received = ctx->bytes_received;
	closed->segments_out = ctx->segs_out;
	closed->segments_in = ctx->segs_in;
	closed->data_segments_out = ctx->data_segs_out;
	closed->data_segments_in = ctx->data_segs_in;
	closed->token = token;
	steered = bpf_map_lookup_elem(&steered_subflows, ends);
	closed->own_acks = steered ? steered->acks : 0;
	closed->held_ns = steered ? steered->held_ns : 0;
	bpf_ringbuf_submit(closed, 0);
}

/* Whether a socket is one of the proxy without MPTCP whose bytes are in a budget. Nothing of it is
 * changed: only its end is reported. */
static __always_inline bool is_counted_tcp(struct tcp_sock *tp, const struct ends *ends)
{
	__u8 proxy = proxy_with_port(ends->proxy_port);
	struct network *network = proxy && !BPF_CORE_READ(tp, is_mptcp) ? network_of(proxy, ends->client) : NULL;

	return network && network->has_budgets;
}

SEC("sockops")
int throttle(struct bpf_sock_ops *ctx)
{
	struct bpf_sock *sk = ctx->sk;
	struct network *network;
	struct subflow *subflow;
	struct tcp_sock *tp;
	struct ends ends;
	__u32 op = ctx->op;
	bool is_first;

	if (op != BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB && op != BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB &&
	    op != BPF_SOCK_OPS_RTT_CB && op != BPF_SOCK_OPS_STATE_CB)
		return 1;
	if (!sk || !is_in_our_namespace(ctx))
		return 1;
	subflow = bpf_sk_storage_get(&subflows, sk, 0, 0);
	tp = bpf_skc_to_tcp_sock(sk);
	if (!tp)
		return 1;
	ends_of(ctx, &ends);
	if (op == BPF_SOCK_OPS_STATE_CB) {
		if (ctx->args[1] != BPF_TCP_CLOSE)
			return 1;
		if (subflow) {
			report_totals(ctx, tp, subflow->token, &ends);
			if (has_control_group())
				end_comparison(&subflow->compared, tp, subflow->token,
					       network_of(subflow->proxy, ends.client));
			forget_health(&subflow->health, &ends);
			unwatch(&ends);
		} else if (is_counted_tcp(tp, &ends)) {
			report_totals(ctx, tp, 0, &ends);
		}
		return 1;
	}
	if (!connection_to_proxy(tp)) {
		if (op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB && is_counted_tcp(tp, &ends)) {
			bpf_sock_ops_cb_flags_set(ctx, ctx->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_STATE_CB_FLAG);
			count_carried(sk, tp, proxy_with_port(ends.proxy_port), ends.client, true);
		}
		return 1;
	}
	if (!subflow) {
		subflow = bpf_sk_storage_get(&subflows, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
		if (!subflow) {
			count(SOCKETS_REFUSED);
			return 1;
		}
		remember_former_options(subflow, tp);
		is_first = op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB && !joined(tp);
		if (is_first)
			subflow->began = bpf_ktime_get_ns();
		if (has_control_group() && op != BPF_SOCK_OPS_RTT_CB)
			begin_comparison(&subflow->compared, subflow->token, is_first);
		bpf_sock_ops_cb_flags_set(ctx, ctx->bpf_sock_ops_cb_flags | CALLBACKS);
		subflow->callbacks = true;
	}
	if (has_control_group())
		note_acked(&subflow->compared, tp);
	network = network_of(subflow->proxy, ends.client);
	if (network && has_bounds(network))
		watch_health(&subflow->health, tp, network, &ends);
	else
		forget_health(&subflow->health, &ends);
	if (network && network->may_be_narrowed)
		count_carried(sk, tp, subflow->proxy, ends.client, op != BPF_SOCK_OPS_RTT_CB);
	decide(ctx, tp, subflow, network, &ends, op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB);
	return 1;
}

/* Asks for the callbacks of a socket that is older than the program; false if the kernel refuses,
 * before Linux 6.12. */
static __always_inline bool ask_for_callbacks(struct tcp_sock *tp)
{
	__u32 flags = 0;

	if (bpf_getsockopt(tp, SOL_TCP, TCP_BPF_SOCK_OPS_CB_FLAGS, &flags, sizeof(flags)))
		return false;
	flags |= CALLBACKS;
	return !bpf_setsockopt(tp, SOL_TCP, TCP_BPF_SOCK_OPS_CB_FLAGS, &flags, sizeof(flags));
}

/* Decides for all subflows now, idle or not, also for subflows older than the program.
 * Without callbacks nothing but the next run of this iterator would end a cap: such a subflow is
 * capped only if the daemon has a pace for it, and the iterator runs whenever the daemon has
 * changed something. With empty maps it frees all subflows, also what a killed daemon has
 * left. */
SEC("iter/tcp")
int adopt(struct bpf_iter__tcp *ctx)
{
	struct sock_common *common = ctx->sk_common;
	struct tcp_sock *tp = sending_subflow(common);
	struct subflow *subflow;
	struct ends ends = {};

	if (!tp)
		return 0;
	subflow = bpf_sk_storage_get(&subflows, tp, 0, 0);
	if (!subflow) {
		subflow = bpf_sk_storage_get(&subflows, tp, 0, BPF_SK_STORAGE_GET_F_CREATE);
		if (!subflow)
			return 0;
		remember_former_options(subflow, tp);
		subflow->callbacks = ask_for_callbacks(tp);
	}
	ends_of_socket(common, &ends);
	decide(tp, tp, subflow, network_of(subflow->proxy, ends.client), &ends, false);
	return 0;
}
