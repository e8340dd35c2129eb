// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Holds capped subflows of downloads back, and lets them send as much as their cap allows. Needs
 * CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON, and the kernel's type information.
 *
 * MPTCP gives a backup nothing while another subflow is regular (net/mptcp/protocol.c,
 * mptcp_subflow_get_send), and makes a subflow a backup when an MP_PRIO for it arrives
 * (mptcp_pm_mp_prio_received). So these programs tell MPTCP at the proxy, by ACKs with MP_PRIO that
 * seem to come from the client, that a capped subflow is a backup. Nothing is queued, delayed or
 * lost, the client sees nothing of it, and a backup still carries everything when no other subflow
 * lives.
 *
 * A capped subflow is regular only for a pulse: when a more preferred subflow of its connection is
 * saturated, and its token bucket has no debt. `steer_downlinks`, at the egress, counts what capped
 * subflows send, and makes them backups again. With a burst it is regular, too, while its bucket has
 * that.
 *
 * An ACK is made of any packet at hand: the packet is cloned to the ingress of the interface with a
 * mark, where `deliver_acks` writes the ACK over it. It acknowledges less than an ACK before it, if
 * there is one, so that TCP looks at nothing but its options. It has no time stamps, since copied ones
 * could be too old (PAWS). In the same way `remind` has a keep-alive made for a client.
 *
 * `remind` looks at subflows that send nothing. The daemon runs it many times a second, by
 * BPF_PROG_TEST_RUN. `adopt` makes records of the subflows that are older than the programs.
 */
#include <stddef.h>
#include <linux/pkt_cls.h>
#include "allowances.h"
#include "control_group.h"
#include "counters.h"
#include "options.h"
#include "preferred.h"
#include "socket.h"
#include "sockets.h"
#include "token_bucket.h"

char LICENSE[] SEC("license") = "GPL";

/* A pulse that MPTCP does not use ends then. */
#define PULSE_NS 20000000ULL
/* A subflow is helped by pulses on others if:
 * - what waits for it at the proxy takes WAITING_NS, longer than a pulse on a slow path: a pulse later
 *   than that would be the last of the download to arrive;
 * - it has sent SATURATED_BYTES without a break: less is over before pulses could help much. A subflow
 *   that delivers at most SLOW_CAPS times the cap is helped as soon as its rate is known: after
 *   RATE_NS, and RATE_ROUND_TRIPS of slow start.
 * After LONG_NS without a break, two round trips of the other path are enough, if MPTCP has data that
 * it may not assign yet: the client's receive window or the send buffer is small, so that little waits
 * although the download goes on. */
#define SATURATED_BYTES 2500000
#define WAITING_NS 80000000ULL
#define SLOW_CAPS 4
#define RATE_NS 100000000ULL
#define RATE_ROUND_TRIPS 8
#define LONG_NS 1000000000ULL
#define BREAK_NS 50000000ULL
/* The rate at which a subflow delivers is that of so long: when a path becomes slow, what waits for it
 * is soon known to take long. */
#define PRESENT_NS 250000000ULL

#define LOOK_NS 1000000ULL /* between two looks at the subflows of a connection */
#define ARRIVED_NS 5000000ULL /* an ACK of ours has been processed, or is lost */
#define RETRY_PULSE_NS 2000000ULL
#define ROUND_TRIP_HOLDS_NS 1000000000ULL
#define TURN_NS 10000000ULL /* a subflow that does not take its turn loses it */
#define UNCOUNTED_BYTES 16384 /* more than may be sent between two looks at two counters */
#define VISITS 1024 /* of slots, at most, by each `remind` */
#define MAX_INTERFACES 16 /* mptcp_throttle/proxies.py */
#define FREE_NS 1000000000ULL /* between two looks at a subflow that is free */
#define NETWORK_NS 100000000ULL /* between two looks at the network of a subflow without a cap */
/* For so long MPTCP acknowledges nothing although data is on its way, until the ACKs of preferred
 * subflows are looked at. Those of a client whose path is well all have a DATA_ACK. */
#define STANDSTILL_NS 200000000ULL
#define SICK_ACKS 3

#define ACK_HOPS 64
#define PRIORITY_OPTION 0x1e035001U /* MP_PRIO without an address id, and NOP */
#define PRIORITY_BACKUP 0x00000100U
#define PRIORITY_FLAGS 2 /* where the option has them */
#define PRIORITY_IS_BACKUP 1

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct bucket);
} buckets SEC(".maps");

/* The bucket of a subflow. One that is capped and has none is held back. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_STEERED);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct ends);
	__type(value, __u32);
} bucket_numbers SEC(".maps");
/* That of subflows from an address of a client: a new one need not wait for the daemon. A number is
 * never used again, so an old element finds no bucket. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_STEERED);
	__type(key, struct client);
	__type(value, __u32);
} bucket_numbers_of_clients SEC(".maps");

/* The keys of `steered_subflows`, by numbers for marks and `remind`; and which numbers are taken. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_STEERED);
	__type(key, __u32);
	__type(value, struct ends);
} slots SEC(".maps");
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_STEERED);
	__type(key, __u32);
	__type(value, __u32);
} taken SEC(".maps");
/* Numbers below `used_slots` that are free again. */
struct {
	__uint(type, BPF_MAP_TYPE_STACK);
	__uint(max_entries, MAX_STEERED);
	__type(value, __u32);
} free_slots SEC(".maps");

/* Of a subflow, by its slot: since when MPTCP at its client has acknowledged no more than this, or
 * when a keep-alive was sent last. What an earlier subflow leaves there does no harm. */
struct standstill {
	__u64 acknowledged;
	__u64 since;
};
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_STEERED);
	__type(key, __u32);
	__type(value, struct standstill);
} standstills SEC(".maps");

/* Of a subflow that others may wait for: since when it has sent without a break, when it sent data
 * last, how much, and when another may get a pulse. `sent` is what its socket has sent in all, and
 * `delivered` how many of its segments had arrived at `rate_since`: these begin again after PRESENT_NS,
 * and `ns_per_kib` (0: not known) is what a KiB took in the time before.
 * `more_waited`: when it sent last, data was left that its receiver had room for.
 * `preference` is that of its network, one of the proxy with this number, which has no cap until
 * `network_known_until`. `is_translated`: its packets do not have the ends of its socket, and the rest
 * has no meaning. */
struct sending {
	__u64 since;
	__u64 last_sent;
	__u64 bytes;
	__u64 pulse_at;
	__u64 sent;
	__u64 rate_since;
	__u64 ns_per_kib;
	__u32 delivered;
	__u64 network_known_until;
	__u32 preference;
	__u32 proxy;
	__u32 is_translated;
	__u32 more_waited;
	__u32 padding;
};
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct sending);
} sendings SEC(".maps");

/* The interfaces with our filters, repeated until the array is full, so that any index has one. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_INTERFACES);
	__type(key, __u32);
	__type(value, __u32);
} interfaces SEC(".maps");

static volatile __u32 used_slots, next_visit;

SHARED_WITH_DAEMON(shared_told, enum proxy_told);
SHARED_WITH_DAEMON(shared_counter, enum steering_counter);

/* Takes a free slot; false: there is none. */
static __always_inline bool take_slot(const struct ends *ends, __u32 *number)
{
	__u32 one = 1;

	if (bpf_map_pop_elem(&free_slots, number)) {
		*number = __sync_fetch_and_add(&used_slots, 1);
		if (*number >= MAX_STEERED) {
			__sync_fetch_and_add(&used_slots, -1);
			return false;
		}
	}
	bpf_map_update_elem(&slots, number, ends, BPF_ANY);
	bpf_map_update_elem(&taken, number, &one, BPF_ANY);
	return true;
}

static __always_inline void free_slot(__u32 number)
{
	__u32 *is_taken = bpf_map_lookup_elem(&taken, &number);

	if (!is_taken)
		return;
	*is_taken = 0;
	bpf_map_push_elem(&free_slots, &number, BPF_ANY);
}

/* The subflow that has this slot; NULL: none. */
static __always_inline struct ends *ends_in_slot(__u32 number)
{
	__u32 *is_taken = bpf_map_lookup_elem(&taken, &number);

	return is_taken && *is_taken ? bpf_map_lookup_elem(&slots, &number) : NULL;
}

static __always_inline void forget(const struct ends *ends, const struct steered *steered)
{
	__u32 number = steered->slot;

	if (!bpf_map_delete_elem(&steered_subflows, ends))
		free_slot(number);
}

/* Makes the record of a subflow. What MPTCP treats as a backup before we have told it anything, the
 * client has asked for. */
static __always_inline struct steered *add_steered(struct tcp_sock *tp, const struct ends *ends, __u32 interface)
{
	struct steered new = {
		.interface = interface,
		.client_wants_backup = kernel_says_backup(subflow_context(tp)),
	};

	if (!take_slot(ends, &new.slot)) {
		count(NOT_STEERED);
		return NULL;
	}
	if (bpf_map_update_elem(&steered_subflows, ends, &new, BPF_NOEXIST)) {
		free_slot(new.slot);
		count(NOT_STEERED);
		return NULL;
	}
	return bpf_map_lookup_elem(&steered_subflows, ends);
}

/* Whether capped subflows may send as if they had no cap. A burst that was used begins again when half
 * of it is there: else a long download would have many small ones, whether they help it or not. */
static __always_inline bool is_bursting(struct bucket *bucket, __u64 now)
{
	__u64 credit = now > bucket->paid_at ? now - bucket->paid_at : 0;

	if (bucket->credit_ns <= CREDIT_NS)
		return false;
	if (credit <= CREDIT_NS)
		bucket->is_bursting = 0;
	else if (credit >= bucket->credit_ns / 2)
		bucket->is_bursting = 1;
	return bucket->is_bursting;
}

static __always_inline struct bucket *bucket_of(const struct network *network, const struct ends *ends)
{
	struct bucket *of_allowance = network->may_be_narrowed ? bucket_of_allowance(network->proxy, ends) : NULL, *bucket;
	__u32 *number = bpf_map_lookup_elem(&bucket_numbers, ends);
	struct client client = { .proxy = network->proxy };

	if (!number) {
		__builtin_memcpy(client.address, ends->client, sizeof(client.address));
		number = bpf_map_lookup_elem(&bucket_numbers_of_clients, &client);
	}
	bucket = number ? bpf_map_lookup_elem(&buckets, number) : NULL;
	return of_allowance && (!bucket || bucket->ns_per_kib < of_allowance->ns_per_kib) ? of_allowance : bucket;
}

/* Notes what has left through an interface without our filter. */
static __always_inline void look_for_uncounted(struct steered *steered, struct tcp_sock *tp, struct bucket *bucket,
					       __u64 now)
{
	__u64 sent = BPF_CORE_READ(tp, bytes_sent), uncounted = sent - steered->counted;

	charge(&bucket->paid_at, bucket->ns_per_kib, uncounted, bucket->credit_ns, now);
	steered->counted = sent;
	steered->is_uncounted |= uncounted > UNCOUNTED_BYTES;
}

static __always_inline bool has_filters(__u32 interface)
{
#pragma unroll 1
	for (__u32 i = 0; i < MAX_INTERFACES; i++) {
		__u32 index = i, *known = bpf_map_lookup_elem(&interfaces, &index);

		if (known && *known == interface)
			return true;
	}
	return false;
}

/* One of those with filters, at random: a host may take what comes from the client only through the
 * interface that leads there (rp_filter). */
static __always_inline __u32 any_interface(void)
{
	__u32 index = bpf_get_prandom_u32() % MAX_INTERFACES, *interface = bpf_map_lookup_elem(&interfaces, &index);

	return interface ? *interface : 0;
}

/* Tells MPTCP at the proxy whether a subflow is a backup, by an ACK that is made of this packet. */
static __always_inline void tell(struct __sk_buff *skb, struct steered *steered, struct tcp_sock *tp,
				 enum proxy_told told, __u64 now)
{
	__u32 mark = skb->mark;
	long failed;
	/* Before snd_una: if both advance in between, the ACK is not too old. */
	bool has_acknowledged = BPF_CORE_READ(tp, bytes_acked);

	steered->sequence = BPF_CORE_READ(tp, rcv_wup);
	/* An older acknowledgment than the last, unless nothing has been acknowledged yet: TCP then takes
	 * the window, too, so it must be the one that holds. MPTCP would add a larger one to the next
	 * DATA_ACK (net/mptcp/options.c, ack_update_msk), and send what the client discards. */
	steered->acknowledgment = BPF_CORE_READ(tp, snd_una) - has_acknowledged;
	steered->window = scaled_down(BPF_CORE_READ(tp, snd_wnd), BPF_CORE_READ_BITFIELD_PROBED(tp, rx_opt.snd_wscale));
	skb->mark = ACK_MARK | (told == IS_BACKUP ? ACK_MARK_BACKUP : 0) | steered->slot;
	failed = bpf_clone_redirect(skb, has_filters(steered->interface) ? steered->interface : any_interface(),
				    BPF_F_INGRESS);
	skb->mark = mark;
	steered->told_at = now;
	if (failed) {
		count(NOT_TOLD);
		return;
	}
	steered->told = told;
	steered->acks++;
	count(told == IS_BACKUP ? TOLD_AS_BACKUP : TOLD_AS_REGULAR);
}

/* Whether the proxy has closed the subflow: nothing is left to send, and an old ACK would be
 * answered. */
static __always_inline bool has_ended(struct tcp_sock *tp)
{
	__u8 state = BPF_CORE_READ((struct sock *)tp, __sk_common.skc_state);

	return state != BPF_TCP_ESTABLISHED && state != BPF_TCP_CLOSE_WAIT;
}

/* Tells MPTCP what holds now, if that is not what it was told last, or if it has not heard it. */
static __always_inline void settle(struct __sk_buff *skb, struct steered *steered, struct tcp_sock *tp,
				   struct bucket *bucket, __u64 now)
{
	bool is_held = steered->is_capped && !steered->is_uncounted && !(bucket && is_bursting(bucket, now)) &&
		       (now >= steered->open_until || !bucket || bucket->paid_at > now);
	enum proxy_told wanted = is_held ? IS_BACKUP : IS_REGULAR;

	if (has_ended(tp)) {
		steered->told = NOTHING_HOLDS;
		return;
	}
	if (steered->client_wants_backup || (wanted == IS_REGULAR && steered->told == NOTHING_HOLDS) || !may_be_told(tp))
		return;
	if (wanted != steered->told) {
		tell(skb, steered, tp, wanted, now);
	} else if (now - steered->told_at > ARRIVED_NS) {
		if (kernel_says_backup(subflow_context(tp)) != is_held) {
			count(TOLD_AGAIN);
			tell(skb, steered, tp, wanted, now);
		} else if (!steered->is_capped) {
			steered->told = NOTHING_HOLDS;
		}
	}
}

/* What was sent or queued before a cap costs nothing. */
static __always_inline void set_capped(struct steered *steered, struct tcp_sock *tp, bool is_capped, __u64 now)
{
	if (is_capped && !steered->is_capped) {
		/* Read first: another processor may advance both, and the difference must not be negative. */
		__u32 next = BPF_CORE_READ(tp, snd_nxt);

		steered->counted = BPF_CORE_READ(tp, bytes_sent);
		steered->free_bytes = BPF_CORE_READ(tp, write_seq) - next;
		steered->capped_at = now;
	}
	steered->is_capped = is_capped;
}

static __always_inline void look(struct steered *steered, const struct ends *ends, struct tcp_sock *tp,
				 const struct network *network, __u64 now)
{
	steered->looked_at = now;
	set_capped(steered, tp,
		   network && cap_on(network, ends) && !belongs_to_control_group(tp) &&
			   preferred_subflow(tp, ends, network) == PREFERRED_USED,
		   now);
}

/* Whether a segment of so many bytes begins with some that cost nothing; takes it off these. */
static __always_inline bool spend_free_bytes(struct steered *steered, __u32 bytes)
{
	bool is_free = steered->free_bytes;

	steered->free_bytes -= bytes < steered->free_bytes ? bytes : steered->free_bytes;
	return is_free;
}

/* What a subflow on a network with a cap sends. */
static __always_inline void count_capped(struct __sk_buff *skb, const struct segment *segment, struct tcp_sock *tp,
					 const struct network *network, __u64 now)
{
	struct steered *steered = bpf_map_lookup_elem(&steered_subflows, &segment->ends);
	struct bucket *bucket;

	if (!steered)
		steered = add_steered(tp, &segment->ends, skb->ifindex);
	if (!steered)
		return;
	steered->counted = tp->bytes_sent;
	steered->is_uncounted = 0;
	steered->interface = skb->ifindex;
	if (now - steered->looked_at >= LOOK_NS)
		look(steered, &segment->ends, tp, network, now);
	bucket = steered->is_capped ? bucket_of(network, &segment->ends) : NULL;
	if (segment->payload && !spend_free_bytes(steered, segment->payload) && bucket)
		charge(&bucket->paid_at, bucket->ns_per_kib, skb->wire_len, bucket->credit_ns, now);
	settle(skb, steered, tp, bucket, now);
}

/* Whether NAT changes the packets of a socket. The ACKs that `tell` makes have the socket's ends, so
 * that they would be taken for those of another connection, and answered by RSTs. */
static __always_inline bool is_translated(struct tcp_sock *tp, const struct segment *segment)
{
	struct ends own = {};
	const __u32 *first = (void *)&own, *second = (void *)&segment->ends;
	__u32 difference = 0;

	ends_of_socket((void *)tp, &own);
#pragma unroll
	for (__u32 i = 0; i < sizeof(own) / sizeof(*first); i++)
		difference |= first[i] ^ second[i];
	return difference;
}

/* Leaves a subflow whose packets are changed to its pace, if `adopt` or `begin_caps` have made a record
 * of it. */
static __always_inline void leave_translated(struct tcp_sock *tp)
{
	struct steered *steered;
	struct ends own = {};

	ends_of_socket((void *)tp, &own);
	steered = bpf_map_lookup_elem(&steered_subflows, &own);
	if (steered)
		steered->is_uncounted = 1;
}

static __always_inline struct network *less_preferred_network(const struct ends *ends, __u32 proxy, __u32 preference)
{
	struct network *network = network_of(proxy, ends->client);

	return network && network->preference > preference && network->preference != NO_PREFERENCE ? network : NULL;
}

/* Looks for the subflows that are capped from now on. */
struct beginning {
	struct __sk_buff *skb;
	struct walk walk;
	__u64 now;
	__u32 proxy;
	__u32 preference;
};

/* Begins the cap of the next member of the connection's list, if its network is less preferred and
 * has one. Returns 1 at the end of the list. */
static long begin_cap_of_member(__u32 index __attribute__((unused)), struct beginning *beginning)
{
	struct steered *steered;
	struct ends ends = {};
	struct tcp_sock *tp = next_socket(&beginning->walk, &ends);
	struct network *network;
	struct bucket *bucket;

	if (!tp)
		return 1;
	/* One whose cap is that of an allowance begins at the next packet of the subflow. */
	network = less_preferred_network(&ends, beginning->proxy, beginning->preference);
	if (!network || !network->pace)
		return 0;
	steered = bpf_map_lookup_elem(&steered_subflows, &ends) ?: add_steered(tp, &ends, beginning->skb->ifindex);
	if (!steered)
		return 0;
	set_capped(steered, tp, true, beginning->now);
	bucket = bucket_of(network, &ends);
	/* A pulse of an earlier cap has ended. */
	if (bucket && !is_bursting(bucket, beginning->now))
		bucket = NULL;
	settle(beginning->skb, steered, tp, bucket, beginning->now);
	return 0;
}

/* At the first packet of a subflow: those on less preferred networks are capped from now on. */
static __always_inline void begin_caps(struct __sk_buff *skb, struct tcp_sock *preferred, const struct network *network,
				       __u64 now)
{
	struct beginning beginning = {
		.skb = skb,
		.walk = members_of(connection_of(preferred)),
		.now = now,
		.proxy = network->proxy,
		.preference = network->preference,
	};

	bpf_loop(MAX_SUBFLOWS, begin_cap_of_member, &beginning, 0);
}

/* Whether a subflow may have the next pulse of its bucket, which has no debt from `from` on: not
 * while another waits whose last pulse was earlier. */
static __always_inline bool has_its_turn(const struct steered *steered, struct bucket *bucket, __u64 from, __u64 now)
{
	bool is_first = now - bucket->asked_at > CREDIT_NS + TURN_NS || steered->open_until <= bucket->last_pulse;

	if (from <= now)
		return is_first || now - from > TURN_NS;
	if (is_first) {
		bucket->last_pulse = steered->open_until;
		bucket->asked_at = now;
	}
	return false;
}

/* What waits at the proxy for a subflow: how long that takes, at the rate at which the subflow
 * delivers, and that rate; both 0 if nothing has been delivered. */
struct waiting {
	__u64 takes_ns;
	__u64 ns_per_kib;
	bool is_beyond_window;
	bool is_saturated;
};

/* Nanoseconds per KiB; 0: nothing has been delivered. */
static __always_inline __u64 present_rate(struct tcp_sock *tp, const struct sending *sending, __u64 now)
{
	__u64 lasts = now - sending->rate_since;
	__u64 delivered = (__u64)(tp->delivered - sending->delivered) * tp->mss_cache;

	if (sending->ns_per_kib && lasts < RATE_NS)
		return sending->ns_per_kib;
	return delivered ? (lasts << 10) / delivered : sending->ns_per_kib;
}

static __always_inline void begin_rate(struct tcp_sock *tp, struct sending *sending, __u64 now, __u64 ns_per_kib)
{
	sending->rate_since = now;
	sending->delivered = tp->delivered;
	sending->ns_per_kib = ns_per_kib;
}

static __always_inline struct waiting waiting_for(struct tcp_sock *tp, struct mptcp_sock *msk,
						  const struct sending *sending, __u64 now)
{
	__u64 unassigned = BPF_CORE_READ(msk, write_seq) - BPF_CORE_READ(msk, snd_nxt);
	__u64 bytes = unassigned + tp->inet_conn.icsk_inet.sk.sk_wmem_queued, ns_per_kib = present_rate(tp, sending, now);
	struct waiting waiting = {
		.takes_ns = bytes * ns_per_kib >> 10,
		.ns_per_kib = ns_per_kib,
		.is_beyond_window = unassigned && now - sending->since > LONG_NS,
		.is_saturated = sending->bytes >= SATURATED_BYTES,
	};

	return waiting;
}

/* Whether a pulse of this subflow arrives before what waits for another is over. Once in a while it
 * is tried: the round trip is as old as the last pulse. */
static __always_inline bool helps(struct tcp_sock *tp, const struct steered *steered, const struct waiting *waiting,
				  __u64 now)
{
	__u64 two_round_trips_ns = BPF_CORE_READ(tp, srtt_us) * 250ULL; /* it is in 1/8 us */

	return waiting->takes_ns >= WAITING_NS ||
	       (waiting->is_beyond_window &&
		(waiting->takes_ns >= two_round_trips_ns || now - steered->open_until > ROUND_TRIP_HOLDS_NS));
}

/* Looks for a capped subflow that may send, until one does; `next` is when to ask again. `held` is the
 * first of those that it has passed over although they help: the connection's time is counted for it
 * alone. */
struct pulse {
	struct __sk_buff *skb;
	struct walk walk;
	struct waiting waiting;
	__u64 now;
	__u64 next;
	struct steered *held;
	__u32 proxy;
	__u32 preference;
};

/* Lets the next member of the connection's list send, if it is capped, helps, and has its turn.
 * Returns 1 at the end of the list, or of the search. */
static long begin_pulse_of_member(__u32 index __attribute__((unused)), struct pulse *pulse)
{
	struct bucket *bucket;
	struct steered *steered;
	struct ends ends = {};
	struct tcp_sock *tp = next_socket(&pulse->walk, &ends);
	struct network *network;
	__u64 from;

	if (!tp)
		return 1;
	network = less_preferred_network(&ends, pulse->proxy, pulse->preference);
	if (!network || !cap_on(network, &ends))
		return 0;
	steered = bpf_map_lookup_elem(&steered_subflows, &ends);
	if (!steered || !steered->is_capped || steered->client_wants_backup || steered->is_uncounted ||
	    !may_be_told(tp))
		return 0;
	if (!helps(tp, steered, &pulse->waiting, pulse->now)) {
		pulse->next = pulse->now + RETRY_PULSE_NS;
		return 0;
	}
	bucket = bucket_of(network, &ends);
	if (!pulse->waiting.is_saturated && (!bucket || SLOW_CAPS * pulse->waiting.ns_per_kib < bucket->ns_per_kib))
		return 0;
	if (bucket && is_bursting(bucket, pulse->now))
		return 0;
	if (!pulse->held)
		pulse->held = steered;
	if (!bucket)
		return 0;
	look_for_uncounted(steered, tp, bucket, pulse->now);
	from = bucket->paid_at > bucket->open_until ? bucket->paid_at : bucket->open_until;
	if (has_its_turn(steered, bucket, from, pulse->now)) {
		steered->open_until = bucket->open_until = pulse->now + PULSE_NS;
		bucket->asked_at = 0;
		count(PULSES);
		tell(pulse->skb, steered, tp, IS_REGULAR, pulse->now);
		pulse->next = pulse->now + PULSE_NS;
		pulse->held = NULL;
		return 1;
	}
	if (from < pulse->next)
		pulse->next = from;
	return 0;
}

/* Counts once that data waits for a subflow, whichever subflows it could leave through meanwhile. */
static __always_inline void count_held(struct steered *held, __u64 now, __u64 until)
{
	__u64 from = held->held_until > now ? held->held_until : now;

	if (from >= until)
		return;
	held->held_until = until;
	__sync_fetch_and_add(&held->held_ns, until - from);
}

/* Lets the first of the capped subflows that help and have their turn send. Returns when to ask
 * again: until then data waits for a path that is held back. */
static __always_inline __u64 begin_pulse(struct __sk_buff *skb, struct mptcp_sock *msk, const struct waiting *waiting,
					 const struct sending *sending, __u64 now)
{
	struct pulse pulse = {
		.skb = skb,
		.walk = members_of(msk),
		.waiting = *waiting,
		.now = now,
		.next = now + CREDIT_NS,
		.proxy = sending->proxy,
		.preference = sending->preference,
	};

	bpf_loop(MAX_SUBFLOWS, begin_pulse_of_member, &pulse, 0);
	if (pulse.next < now + RETRY_PULSE_NS)
		pulse.next = now + RETRY_PULSE_NS;
	if (pulse.held)
		count_held(pulse.held, now, pulse.next);
	return pulse.next;
}

static __always_inline bool is_rate_known(struct tcp_sock *tp, const struct sending *sending, __u64 now)
{
	__u64 lasts = now - sending->since;

	return lasts >= RATE_NS && lasts >= RATE_ROUND_TRIPS * 1000ULL * BPF_CORE_READ(tp, rtt_min.s[0].v);
}

/* Whether data waits at the proxy besides what leaves now: `payload` bytes, beyond which TCP advances
 * snd_nxt afterwards. If not, the path has room, and the sender of the data is what is slow. */
static __always_inline bool has_more_to_send(struct tcp_sock *tp, struct mptcp_sock *msk, __u64 payload)
{
	return BPF_CORE_READ(msk, write_seq) != BPF_CORE_READ(msk, snd_nxt) || tp->write_seq - tp->snd_nxt > payload;
}

/* Whether data is left that the receiver has room for: `payload` bytes leave now. After a gap, TCP's
 * pacing has made it, and not the reader or the sender of the data. */
static __always_inline bool more_waits(struct tcp_sock *tp, __u64 payload)
{
	struct mptcp_sock *msk;

	if (tp->write_seq - tp->snd_nxt > payload)
		return tp->snd_una + tp->snd_wnd - tp->snd_nxt > payload;
	msk = connection_of(tp);
	return msk && BPF_CORE_READ(msk, write_seq) != BPF_CORE_READ(msk, snd_nxt) &&
	       BPF_CORE_READ(msk, wnd_end) != BPF_CORE_READ(msk, snd_nxt);
}

/* What a subflow sends that others may be capped for. */
static __always_inline void watch_preferred(struct __sk_buff *skb, struct sending *sending, struct tcp_sock *tp,
					    __u64 now)
{
	__u64 sent = tp->bytes_sent, payload = sent - sending->sent;
	struct waiting waiting;
	struct mptcp_sock *msk;

	if (!payload)
		return;
	sending->sent = sent;
	/* Slow subflows send rarely, but then something is in flight, or waits. TCP advances snd_nxt when
	 * the segment has left. */
	if (now - sending->last_sent > BREAK_NS && tp->snd_nxt == tp->snd_una && !sending->more_waited) {
		sending->since = now;
		sending->bytes = 0;
		begin_rate(tp, sending, now, 0);
	} else if (now - sending->rate_since > PRESENT_NS) {
		begin_rate(tp, sending, now, present_rate(tp, sending, now));
	}
	sending->last_sent = now;
	sending->more_waited = more_waits(tp, payload);
	sending->bytes += payload;
	if (now < sending->pulse_at || (sending->bytes < SATURATED_BYTES && !is_rate_known(tp, sending, now)))
		return;
	msk = connection_of(tp);
	if (msk && has_more_to_send(tp, msk, payload)) {
		waiting = waiting_for(tp, msk, sending, now);
		sending->pulse_at = begin_pulse(skb, msk, &waiting, sending, now);
	}
}

/* Not inlined: programs have little stack. */
static __noinline int count_socket(struct bpf_sock *sk, struct tcp_sock *tp, __u32 proxy)
{
	__u8 address[16];

	client_address((void *)tp, address);
	count_carried(sk, tp, proxy, address, false);
	return 0;
}

/* What a connection without MPTCP sends is in budgets, too. */
static __always_inline void count_tcp(struct bpf_sock *sk, struct tcp_sock *tp)
{
	__u32 proxy = proxy_with_port(tp->inet_conn.icsk_inet.sk.__sk_common.skc_num);

	if (proxy)
		count_socket(sk, tp, proxy);
}

SEC("tc")
int steer_downlinks(struct __sk_buff *skb)
{
	struct bpf_sock *sk = skb->sk;
	struct network *network;
	struct segment segment;
	struct sending *sending;
	struct steered *former;
	struct tcp_sock *tp;
	__u32 proxy;
	__u64 now;

	if (!sk)
		return TC_ACT_UNSPEC;
	tp = bpf_skc_to_tcp_sock(sk);
	if (tp && !tp->is_mptcp) {
		count_tcp(sk, tp);
		return TC_ACT_UNSPEC;
	}
	now = bpf_ktime_get_ns();
	sending = tp ? bpf_sk_storage_get(&sendings, sk, 0, 0) : NULL;
	if (sending && now < sending->network_known_until) {
		watch_preferred(skb, sending, tp, now);
		return TC_ACT_UNSPEC;
	}
	if (sending && sending->is_translated) {
		leave_translated(tp);
		return TC_ACT_UNSPEC;
	}
	if (!parse(skb, &segment, false) || segment.tcp.rst)
		return TC_ACT_UNSPEC;
	if (segment.tcp.syn) { /* a new subflow, with the ports of an earlier one */
		former = bpf_map_lookup_elem(&steered_subflows, &segment.ends);
		if (former)
			forget(&segment.ends, former);
		return TC_ACT_UNSPEC;
	}
	if (!tp)
		return TC_ACT_UNSPEC;
	if (!sending) {
		proxy = proxy_of(tp);
		sending = proxy ? bpf_sk_storage_get(&sendings, sk, 0, BPF_SK_STORAGE_GET_F_CREATE) : NULL;
		if (!sending)
			return TC_ACT_UNSPEC;
		sending->proxy = proxy;
		sending->is_translated = is_translated(tp, &segment);
	}
	if (sending->is_translated)
		return TC_ACT_UNSPEC;
	network = network_of(sending->proxy, segment.ends.client);
	if (!network || network->preference == NO_PREFERENCE)
		return TC_ACT_UNSPEC;
	if (!sending->since) {
		sending->since = sending->last_sent = now;
		sending->sent = tp->bytes_sent - segment.payload;
		begin_rate(tp, sending, now, 0);
		if (!is_backup(subflow_context(tp), &segment.ends) && !belongs_to_control_group(tp))
			begin_caps(skb, tp, network, now);
	}
	sending->preference = network->preference;
	if (network->may_be_narrowed)
		count_socket(sk, tp, sending->proxy);
	if (cap_on(network, &segment.ends))
		count_capped(skb, &segment, tp, network, now);
	else if (!network->may_be_narrowed)
		sending->network_known_until = now + NETWORK_NS;
	watch_preferred(skb, sending, tp, now);
	return TC_ACT_UNSPEC;
}

struct prioritised_ack {
	struct tcphdr tcp;
	__be32 option;
};

static __always_inline void write_ip(struct __sk_buff *skb, __u32 at, const struct ends *ends, __u32 *sum)
{
	if (is_mapped_ipv4(ends->client)) {
		struct iphdr v4 = {
			.version = 4,
			.ihl = sizeof(v4) / 4,
			.tot_len = bpf_htons(sizeof(v4) + sizeof(struct prioritised_ack)),
			.ttl = ACK_HOPS,
			.protocol = IPPROTO_TCP,
			.saddr = *(__u32 *)(ends->client + 12),
			.daddr = *(__u32 *)(ends->proxy + 12),
		};

		v4.check = folded(bpf_csum_diff(NULL, 0, (void *)&v4, sizeof(v4), 0));
		*sum = bpf_csum_diff(NULL, 0, &v4.saddr, sizeof(v4.saddr) + sizeof(v4.daddr), *sum);
		bpf_skb_store_bytes(skb, at, &v4, sizeof(v4), 0);
	} else {
		struct ipv6hdr v6 = {
			.version = 6,
			.payload_len = bpf_htons(sizeof(struct prioritised_ack)),
			.nexthdr = IPPROTO_TCP,
			.hop_limit = ACK_HOPS,
		};

		__builtin_memcpy(&v6.saddr, ends->client, sizeof(v6.saddr));
		__builtin_memcpy(&v6.daddr, ends->proxy, sizeof(v6.daddr));
		*sum = bpf_csum_diff(NULL, 0, (void *)&v6.saddr, sizeof(v6.saddr) + sizeof(v6.daddr), *sum);
		bpf_skb_store_bytes(skb, at, &v6, sizeof(v6), 0);
	}
}

/* The same subflow, as segments of the proxy have its ends. */
static __always_inline void turn(struct ends *ends)
{
	struct ends turned = {
		.client_port = (__u32)bpf_htons(ends->proxy_port) << 16,
		.proxy_port = bpf_ntohs(ends->client_port >> 16),
	};

	__builtin_memcpy(turned.client, ends->proxy, sizeof(turned.client));
	__builtin_memcpy(turned.proxy, ends->client, sizeof(turned.proxy));
	*ends = turned;
}

/* Writes an ACK with an option over a packet, which `segment` describes, from `ends->client`. */
static __always_inline bool write_ack(struct __sk_buff *skb, const struct segment *segment, const struct ends *ends,
				      const struct steered *steered, __u32 option)
{
	__u32 sum = bpf_htons(IPPROTO_TCP) + bpf_htons(sizeof(struct prioritised_ack)), ip_bytes, protocol;
	struct prioritised_ack ack = {};

	ip_bytes = is_mapped_ipv4(ends->client) ? sizeof(struct iphdr) : sizeof(struct ipv6hdr);
	protocol = bpf_htons(ip_bytes == sizeof(struct iphdr) ? ETH_P_IP : ETH_P_IPV6);
	/* Short first: a packet that is to be segmented (GSO) cannot change its IP version. */
	if (bpf_skb_change_tail(skb, tcp_offset(segment) + sizeof(struct tcphdr), 0) ||
	    (skb->protocol != protocol && bpf_skb_change_proto(skb, protocol, 0)) ||
	    bpf_skb_change_tail(skb, segment->ip_at + ip_bytes + sizeof(ack), 0))
		return false;
	/* Its link address was the client's. 0: PACKET_HOST (include/uapi/linux/if_packet.h) */
	bpf_skb_change_type(skb, 0);
	ack.tcp.source = ends->client_port >> 16;
	ack.tcp.dest = bpf_htons(ends->proxy_port);
	ack.tcp.seq = bpf_htonl(steered->sequence);
	ack.tcp.ack_seq = bpf_htonl(steered->acknowledgment);
	ack.tcp.doff = sizeof(ack) / 4;
	ack.tcp.ack = 1;
	ack.tcp.window = bpf_htons(steered->window);
	ack.option = bpf_htonl(option);
	write_ip(skb, segment->ip_at, ends, &sum);
	ack.tcp.check = folded(bpf_csum_diff(NULL, 0, (void *)&ack, sizeof(ack), sum));
	return !bpf_skb_store_bytes(skb, segment->ip_at + ip_bytes, &ack, sizeof(ack), BPF_F_RECOMPUTE_CSUM);
}

/* Whether TCP at the proxy takes a segment for one of its client's. Whoever knows the ports can send
 * one, but not in the receive window. */
static __noinline bool is_taken(struct __sk_buff *skb, const struct segment *segment)
{
	struct sock_common *common = find_socket(skb, &segment->ends);
	struct tcp_sock *tp;
	bool is_taken;

	if (!common)
		return false;
	tp = bpf_skc_to_tcp_sock(common);
	is_taken = tp && !is_listening(tp) && !is_implausible(tp, segment);
	bpf_sk_release(common);
	return is_taken;
}

/* Notes what the client itself asks for. */
static __always_inline void note_priority(struct __sk_buff *skb, const struct segment *segment, struct steered *steered)
{
	__u32 at = find_mptcp_option(skb, segment, MPTCP_PRIO);
	__u8 flags;

	if (at && is_taken(skb, segment) && !bpf_skb_load_bytes(skb, at + PRIORITY_FLAGS, &flags, sizeof(flags))) {
		steered->client_wants_backup = flags & PRIORITY_IS_BACKUP;
		steered->told = NOTHING_HOLDS;
	}
}

/* Notes whether an ACK on a watched subflow has a DATA_ACK. */
static __always_inline void note_data_ack(struct __sk_buff *skb, const struct segment *segment, __u32 *without)
{
	__u64 now = bpf_ktime_get_ns();
	__u32 bytes;

	if (!is_taken(skb, segment))
		return;
	if (find_data_ack(skb, segment, &bytes))
		note_well(&segment->ends);
	else if (*without < SICK_ACKS && __sync_fetch_and_add(without, 1) == SICK_ACKS - 1)
		bpf_map_update_elem(&subflows_without_data_acks, &segment->ends, &now, BPF_ANY);
}

/* What becomes of a marked packet: an ACK of a client, or a keep-alive for it. */
static __always_inline int rewrite(struct __sk_buff *skb)
{
	__u32 mark = skb->mark, number = mark & ACK_MARK_SLOT, option = KEEP_ALIVE_OPTIONS;
	bool is_keep_alive = (mark & ACK_MARK_MASK) == KEEP_ALIVE_MARK;
	struct ends *at = ends_in_slot(number), ends;
	struct steered *steered = at ? bpf_map_lookup_elem(&steered_subflows, at) : NULL;
	struct segment segment;

	if (!steered || steered->slot != number || !parse(skb, &segment, false)) {
		count(NOT_TOLD);
		return TC_ACT_SHOT;
	}
	ends = *at;
	if (is_keep_alive)
		turn(&ends);
	else
		option = PRIORITY_OPTION | (mark & ACK_MARK_BACKUP ? PRIORITY_BACKUP : 0);
	if (!write_ack(skb, &segment, &ends, steered, option)) {
		count(NOT_TOLD);
		return TC_ACT_SHOT;
	}
	skb->mark = 0;
	if (!is_keep_alive)
		return TC_ACT_UNSPEC;
	/* It leaves where it has arrived. Without an Ethernet header bpf_redirect_neigh() drops it. */
	return segment.ip_at ? bpf_redirect_neigh(skb->ifindex, NULL, 0, 0) : bpf_redirect(skb->ifindex, 0);
}

SEC("tc")
int deliver_acks(struct __sk_buff *skb)
{
	__u32 kind = skb->mark & ACK_MARK_MASK;
	struct steered *steered;
	struct segment segment;
	__u32 *without;

	if (kind == ACK_MARK || kind == KEEP_ALIVE_MARK)
		return rewrite(skb);
	if (!parse(skb, &segment, true) || !segment.tcp.ack || segment.tcp.syn || segment.tcp.rst)
		return TC_ACT_UNSPEC;
	steered = bpf_map_lookup_elem(&steered_subflows, &segment.ends);
	if (steered)
		note_priority(skb, &segment, steered);
	without = bpf_map_lookup_elem(&watched_subflows, &segment.ends);
	if (without)
		note_data_ack(skb, &segment, without);
	return TC_ACT_UNSPEC;
}

/* Has the ACKs of a more preferred subflow looked at; 1 if it is already known to have no DATA_ACKs.
 * Not inlined, and with a number for a pointer, as member_of(). */
__noinline int watch_acks_of(__u64 member, __u32 proxy, __u32 preference)
{
	struct mptcp_subflow_context *context = (void *)member;
	struct sock *sk = BPF_CORE_READ(context, tcp_sock);
	struct network *network;
	struct ends ends = {};
	__u32 without = 0;

	if (!sk || !is_live(context, sk))
		return 0;
	ends_of_socket((void *)sk, &ends);
	network = network_of(proxy, ends.client);
	if (!network || network->preference >= preference)
		return 0;
	if (is_without_data_acks(&ends))
		return 1;
	bpf_map_update_elem(&watched_subflows, &ends, &without, BPF_NOEXIST);
	return 0;
}

/* The client's answer has a DATA_ACK of all that has arrived. */
static __always_inline void send_keep_alive(struct __sk_buff *skb, struct steered *steered, struct tcp_sock *tp)
{
	__u32 mark = skb->mark;

	steered->sequence = BPF_CORE_READ(tp, snd_una) - 1;
	steered->acknowledgment = BPF_CORE_READ(tp, rcv_nxt);
	steered->window = scaled_down(BPF_CORE_READ(tp, rcv_wnd), BPF_CORE_READ_BITFIELD_PROBED(tp, rx_opt.rcv_wscale));
	skb->mark = KEEP_ALIVE_MARK | steered->slot;
	bpf_clone_redirect(skb, steered->interface, BPF_F_INGRESS);
	skb->mark = mark;
}

/* If MPTCP at the client acknowledges nothing: has the ACKs of more preferred subflows looked at. If
 * one of them is known to have no DATA_ACKs, the client is asked for one over this subflow: MPTCP
 * sends what it takes for lost over the first subflow of its list again and again
 * (net/mptcp/protocol.c, mptcp_subflow_get_retrans). Without our filter at its interface, the copy would
 * go to the host. */
static __always_inline void watch_acks(struct __sk_buff *skb, struct steered *steered, struct tcp_sock *tp,
				       const struct network *network, __u64 now)
{
	__u32 slot = steered->slot, proxy = network->proxy, preference = network->preference;
	struct standstill *standstill = bpf_map_lookup_elem(&standstills, &slot);
	struct mptcp_sock *msk = connection_of(tp);
	__u64 acknowledged = BPF_CORE_READ(msk, snd_una);
	struct walk walk;
	int sick = 0;

	if (!standstill)
		return;
	if (acknowledged != standstill->acknowledged || acknowledged == BPF_CORE_READ(msk, snd_nxt)) {
		standstill->acknowledged = acknowledged;
		standstill->since = now;
		return;
	}
	if (now - standstill->since < STANDSTILL_NS)
		return;
	walk = members_of(msk);
#pragma unroll 1
	for (int i = 0; i < MAX_SUBFLOWS; i++) {
		struct mptcp_subflow_context *context = next_member(&walk);

		if (!context)
			break;
		sick |= watch_acks_of((__u64)context, proxy, preference);
	}
	if (sick && now - steered->told_at > ARRIVED_NS && !steered->is_uncounted) {
		send_keep_alive(skb, steered, tp);
		standstill->since = now;
	}
}

/* Looks at a subflow that may send nothing; whether it is to be looked at again soon. */
static __always_inline bool visit(struct __sk_buff *skb, const struct ends *ends, __u64 now)
{
	struct steered *steered = bpf_map_lookup_elem(&steered_subflows, ends);
	struct sock_common *common;
	struct network *network;
	struct bucket *bucket;
	struct tcp_sock *tp;
	bool is_free;
	__u32 proxy;

	if (!steered)
		return false;
	is_free = !steered->is_capped && steered->told == NOTHING_HOLDS;
	if (is_free && now - steered->looked_at < FREE_NS)
		return false;
	common = find_socket(skb, ends);
	tp = common ? bpf_skc_to_tcp_sock(common) : NULL;
	proxy = tp && !is_listening(tp) ? proxy_of(tp) : 0;
	if (proxy) {
		network = network_of(proxy, ends->client);
		look(steered, ends, tp, network, now);
		/* Its interface was renamed or has gone: what it sends is perhaps not counted. */
		steered->is_uncounted |= !has_filters(steered->interface);
		bucket = network ? bucket_of(network, ends) : NULL;
		if (bucket && steered->is_capped)
			look_for_uncounted(steered, tp, bucket, now);
		settle(skb, steered, tp, bucket, now);
		if (network)
			watch_acks(skb, steered, tp, network, now);
	} else {
		forget(ends, steered);
	}
	if (common)
		bpf_sk_release(common);
	return !is_free;
}

struct reminding {
	struct __sk_buff *skb;
	__u64 now;
	__u32 first;
	__u32 used;
	__u32 busy;
};

static long visit_slot(__u32 number, struct reminding *reminding)
{
	__u32 index = (reminding->first + number) % reminding->used;
	struct ends *at = ends_in_slot(index), ends;

	if (at) {
		ends = *at;
		reminding->busy += visit(reminding->skb, &ends, reminding->now);
	}
	return 0;
}

/* Returns how many of the subflows that it has looked at are capped, or have been told something.
 * The packet has an Ethernet, an IPv4 and a TCP header, for `tell`. */
SEC("tc")
int remind(struct __sk_buff *skb)
{
	__u32 used = used_slots < MAX_STEERED ? used_slots : MAX_STEERED, visits = used < VISITS ? used : VISITS;
	struct reminding reminding = { .skb = skb, .now = bpf_ktime_get_ns(), .first = next_visit, .used = used };

	if (!used)
		return 0;
	bpf_loop(visits, visit_slot, &reminding, 0);
	next_visit = (reminding.first + visits) % used;
	return reminding.busy;
}

/* Whether an earlier instance has told MPTCP that the subflow is a backup: those that the client
 * wants so have another limit of unsent data. */
static __always_inline bool was_held(struct tcp_sock *tp)
{
	return kernel_says_backup(subflow_context(tp)) && BPF_CORE_READ(tp, notsent_lowat) == DRAIN_UNSENT_LIMIT;
}

/* Makes records of the subflows on networks with a cap, and of those that were held. */
SEC("iter/tcp")
int adopt(struct bpf_iter__tcp *ctx)
{
	struct sock_common *common = ctx->sk_common;
	struct tcp_sock *tp = sending_subflow(common);
	struct steered *steered;
	struct network *network;
	struct ends ends = {};

	if (!tp)
		return 0;
	ends_of_socket(common, &ends);
	network = network_of(proxy_of(tp), ends.client);
	if (!was_held(tp) && (!network || !network->pace))
		return 0;
	steered = bpf_map_lookup_elem(&steered_subflows, &ends)
			  ?: add_steered(tp, &ends, BPF_CORE_READ((struct sock *)tp, sk_rx_dst_ifindex));
	if (steered && steered->told == NOTHING_HOLDS && was_held(tp)) {
		steered->client_wants_backup = 0;
		steered->told = IS_BACKUP;
	}
	return 0;
}
