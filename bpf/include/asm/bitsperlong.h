/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The BPF machine has 64-bit longs; see types.h for why this file is here. */
#pragma once

#define __BITS_PER_LONG 64
#include <asm-generic/bitsperlong.h>
