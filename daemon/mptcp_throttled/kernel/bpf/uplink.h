/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What uplink.bpf.c and the daemon share; program_layout.py has the same structures. Times are
 * those of bpf_ktime_get_ns(), which are CLOCK_MONOTONIC. */
#ifndef UPLINK_H
#define UPLINK_H

#include "settings.h"

/* An Ethernet header with a VLAN tag; an IPv6 header; a TCP header with all of its options. */
#define MAX_LINK_BYTES 18
#define MAX_IP_BYTES 40
#define MAX_TCP_BYTES 60

/* The rate that subflows share. `ns_per_kib` is how long 1024 bytes of payload take. Until
 * `paid_at` the share is in debt: its subflows have sent more than the rate allows. */
struct share {
	__u64 ns_per_kib;
	__u64 paid_at;
};

/* What the client was told of a subflow last: nothing yet, that it is a backup, that it is regular.
 * */
enum told { NOTHING, BACKUP, REGULAR };

/* The last pure ACK of a subflow with room for our option, as it left, without that. */
struct last_ack {
	__u32 interface;
	__u16 vlan_protocol; /* in network byte order; 0: no tag that the interface adds */
	__u16 vlan_tag;
	__u8 link_bytes; /* 0: there was none yet */
	__u8 ip_bytes;
	__u8 tcp_bytes; /* 0: another one is being written */
	__u8 has_timestamps;
	__u8 link[MAX_LINK_BYTES];
	__u8 padding[2];
	__u8 ip[MAX_IP_BYTES];
	__u8 tcp[MAX_TCP_BYTES];
};

#define MAX_UPLINKS 65536
#define MAX_ASSIGNMENTS 32

/* A subflow, the share that it pays from, the scale of the windows that the proxy announces on it
 * (RFC 7323, section 2), and its shortest round-trip time. Share 0: none, it is free. FORGOTTEN: it
 * is free, and its client is not told. UNBOUNDED: its window stays as it is. */
#define FORGOTTEN 0xffffffff
#define UNBOUNDED 0xffffffff
struct assignment {
	struct ends ends;
	__u32 share;
	__u32 window_scale;
	__u32 round_trip_us;
};

/* A subflow whose uplink is throttled to the rate of a share, or whose client must still be told
 * that it is free. What comes before `counts_from` costs nothing, since it was queued at the client
 * when the cap began; until then the client is told that the subflow is a backup. From
 * `bounded_from` on its window is bounded, if its scale is known. `sequence`, of the next byte, and
 * `acknowledged` are those of the last segment, in host byte order; its time stamps and its window
 * are as the kernel sent them. `counts_since`: one more than the interruptions before the first
 * segment that counts; 0: there was none yet. `appended` and `repeats` are how many ACKs have told
 * the client what it was told last. `is_policed`: the client kept sending although the share was in
 * debt, so what exceeds the rate is dropped. `has_policer`: `police_uplinks` has seen its data since. */
struct uplink {
	__u64 counts_from;
	__u64 bounded_from;
	__u32 share;
	__u32 told;
	__u64 told_at;
	__u64 bytes;
	__u64 bytes_when_told;
	__u32 sequence;
	__u32 acknowledged;
	__u32 timestamp;
	__u32 timestamp_echo;
	__u32 counts_since;
	__u32 appended;
	__u32 repeats;
	__u32 is_policed;
	__u32 has_policer;
	__u32 has_sequence;
	__u32 slot;
	__u32 window;
	__u32 window_scale;
	__u32 round_trip_us;
	struct last_ack ack;
	__u32 padding;
};

/* Indices of the map `counters`. */
enum uplink_counter { OPTIONS_APPENDED, OPTIONS_WITHOUT_ROOM, ACKS_REPEATED, ACKS_NOT_REPEATED,
		      UPLINKS_POLICED, SEGMENTS_DROPPED };

#endif
