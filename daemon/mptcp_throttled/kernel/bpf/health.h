/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Which paths are sick: they do not keep the bounds of their network, or no DATA_ACKs arrive over
 * them. throttle.bpf.c judges the windows of a subflow, steering.bpf.c its DATA_ACKs, and both act
 * on it. Times are those of bpf_ktime_get_ns(). */
#ifndef HEALTH_H
#define HEALTH_H

#include "data_acks.h"
#include "networks.h"
#include "subflow.h"

#define WINDOW_NS 300000000ULL
/* And two round trips: of a subflow that sends less often nothing is known. */
#define MAX_WINDOW_NS 2000000000ULL
#define MIN_BYTES 30000 /* sent in a window whose loss is judged */
#define BUSY_BYTES 32768 /* wait at the socket, so that its rate is judged */
#define HEALTHY_WINDOWS 4 /* in a row, within 80 % of the bounds, until a subflow is healthy again */
#define SICK_HOLDS_NS 10000000000ULL /* since the last window */
#define MAX_SICK 65536

enum ailment { HEALTHY, HIGH_RTT, HIGH_LOSS, LOW_RATE };

struct sick {
	__u64 seen_at;
	__u32 ailment;
	__u32 padding;
};

/* throttle.bpf.c uses the map of steering.bpf.c, or one of its own where that is not loaded. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_SICK);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct ends);
	__type(value, struct sick);
} sick_subflows SEC(".maps");

/* Of a subflow: its window, with the counters of its socket when it began. */
struct health {
	__u64 window_at;
	__u64 sent;
	__u64 retransmitted;
	__u64 acked;
	__u32 lowest_rtt_us;
	__u32 healthy_windows;
	bool is_busy;
	bool is_sick;
};

static __always_inline bool has_bounds(const struct network *network)
{
	return network->max_rtt_us || network->max_loss || network->min_rate;
}

static __always_inline bool is_sick(const struct ends *ends, const struct network *network)
{
	struct sick *sick;

	if (is_without_data_acks(ends))
		return true;
	if (!has_bounds(network))
		return false;
	sick = bpf_map_lookup_elem(&sick_subflows, ends);
	return sick && bpf_ktime_get_ns() - sick->seen_at < SICK_HOLDS_NS;
}

static __always_inline enum ailment judge(const struct health *health, struct tcp_sock *tp,
					  const struct network *network, __u64 elapsed)
{
	__u64 sent = BPF_CORE_READ(tp, bytes_sent) - health->sent;
	__u64 retransmitted = BPF_CORE_READ(tp, bytes_retrans) - health->retransmitted;
	__u64 acked = BPF_CORE_READ(tp, bytes_acked) - health->acked;
	__u64 fifths = health->is_sick ? 4 : 5;

	if (network->max_rtt_us && 5ULL * health->lowest_rtt_us > fifths * network->max_rtt_us)
		return HIGH_RTT;
	if (network->max_loss && sent >= MIN_BYTES && 5000 * retransmitted > fifths * sent * network->max_loss)
		return HIGH_LOSS;
	if (health->is_busy && acked * fifths * (1000000000 / 5) < elapsed * network->min_rate)
		return LOW_RATE;
	return HEALTHY;
}

static __always_inline void note_window(struct health *health, enum ailment ailment, const struct ends *ends, __u64 now)
{
	struct sick new = { .seen_at = now, .ailment = ailment }, *present;

	if (ailment) {
		health->healthy_windows = 0;
		health->is_sick = !bpf_map_update_elem(&sick_subflows, ends, &new, BPF_ANY);
	} else if (health->is_sick && ++health->healthy_windows >= HEALTHY_WINDOWS) {
		health->is_sick = false;
		bpf_map_delete_elem(&sick_subflows, ends);
	} else if (health->is_sick) {
		present = bpf_map_lookup_elem(&sick_subflows, ends);
		if (present)
			present->seen_at = now;
	}
}

/* Once in a round trip of a subflow (net/ipv4/tcp_input.c, tcp_rtt_estimator). */
static __always_inline void watch_health(struct health *health, struct tcp_sock *tp, const struct network *network,
					 const struct ends *ends)
{
	__u64 now = bpf_ktime_get_ns(), elapsed = now - health->window_at;
	__u32 rtt_us = BPF_CORE_READ(tp, srtt_us) >> 3;
	__u64 rtt_ns = rtt_us * 1000ULL;
	bool is_busy = BPF_CORE_READ(tp, inet_conn.icsk_inet.sk.sk_wmem_queued) >= BUSY_BYTES;

	/* A long round trip has lasted for a window by itself. */
	if (health->lowest_rtt_us > rtt_us || rtt_ns >= WINDOW_NS)
		health->lowest_rtt_us = rtt_us;
	health->is_busy &= is_busy;
	if (elapsed < WINDOW_NS)
		return;
	if (elapsed <= MAX_WINDOW_NS + 2 * rtt_ns)
		note_window(health, judge(health, tp, network, elapsed), ends, now);
	health->window_at = now;
	health->sent = BPF_CORE_READ(tp, bytes_sent);
	health->retransmitted = BPF_CORE_READ(tp, bytes_retrans);
	health->acked = BPF_CORE_READ(tp, bytes_acked);
	health->lowest_rtt_us = rtt_us;
	health->is_busy = is_busy;
}

/* When nothing is to be known of a subflow any more. */
static __always_inline void forget_health(struct health *health, const struct ends *ends)
{
	if (health->is_sick)
		bpf_map_delete_elem(&sick_subflows, ends);
	health->is_sick = false;
}

#endif
