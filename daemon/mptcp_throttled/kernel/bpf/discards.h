/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What discards.bpf.c and the daemon share. */
#ifndef DISCARDS_H
#define DISCARDS_H

/* Indices of the map `counters`. */
enum discards_counter { DATA_ACKS_LOWERED, KEEP_ALIVES_SENT };

#endif
