/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* What a tcx program may answer (enum tcx_action_base, kernel 6.6). */
#pragma once

enum {
	VERDICT_NEXT = -1, /* the next program decides; the last one's frames pass */
	VERDICT_DROP = 2,
};
