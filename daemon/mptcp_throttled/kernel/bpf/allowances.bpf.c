// SPDX-License-Identifier: GPL-2.0-or-later
/* The maps of allowances, which both programs that count have from here, as long as the daemon runs. */
#include "allowance_maps.h"

char LICENSE[] SEC("license") = "GPL";

SHARED_WITH_DAEMON(shared_counting, enum counting);
