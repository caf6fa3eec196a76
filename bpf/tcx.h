/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What a tcx program may answer (enum tcx_action_base, kernel 6.6). On older
 * kernels the programs run in direct-action filters, where the same numbers mean
 * the same: TC_ACT_UNSPEC and TC_ACT_SHOT.
 */
#pragma once

enum {
	TCX_VERDICT_NEXT = -1, /* the next program decides; the last one's frames pass */
	TCX_VERDICT_DROP = 2,
};
