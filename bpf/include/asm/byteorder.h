/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* See types.h for why this file is here. */
#pragma once

#include <linux/byteorder/little_endian.h>
