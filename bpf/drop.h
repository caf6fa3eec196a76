/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Why a frame is dropped. Each has a counter of its own for each device; the
 * numbers index it, so they stay what they are.
 */
#pragma once

enum drop_reason {
	/* The port has no other end: its link is not complete yet, or no more. */
	DROP_UNJOINED = 0,
	/* The root context's own stack tried to send into a virtual network. */
	DROP_FROM_ROOT = 1,
	/* A LAN's frame was about to enter the root context's own stack: the
	 * copy of each broadcast that a bridge makes for its host. */
	DROP_TO_ROOT = 2,
	/* The frame could not be edited: too short, or no memory. */
	DROP_UNEDITABLE = 3,
	DROP_REASONS,
};
