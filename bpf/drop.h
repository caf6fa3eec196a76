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
	/* The frame could not be edited: too short, no room, or no memory. */
	DROP_UNEDITABLE = 3,

	/* What comes from the underlay and cannot be charged to a port is counted
	 * at the uplink: */
	DROP_UNKNOWN_PEER = 4, /* no link has this source, destination and key */
	DROP_VERSION = 5,      /* of GRE, not 0 */
	DROP_KEYLESS = 6,      /* no key */
	DROP_FLAGS = 7,        /* checksum, routing, sequence, or bits 4 and 5 */
	DROP_PROTOCOL = 8,     /* GRE, but not of Ethernet */
	DROP_FRAGMENT = 9,     /* the outer packet is a fragment */
	DROP_OPTIONS = 10,     /* the outer packet has options or extension headers */
	DROP_CHECKSUM = 11,    /* the outer IPv4 header's is wrong */
	DROP_LENGTH = 12,      /* the outer packet says it is longer than it is */
	DROP_RUNT = 13,        /* too short for GRE and an Ethernet header */

	DROP_LONG = 14,   /* longer than the link, or the path, carries */
	DROP_TAGS = 15,   /* more VLAN tags than MAX_TAGS */
	DROP_NESTED = 16, /* a super-packet of the node's own tunnel */
	/* The underlay marked it as congested, and its sender knows no ECN. */
	DROP_CONGESTION = 17,
	DROP_REASONS,
};
