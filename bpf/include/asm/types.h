/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The distributions keep asm/types.h in a directory named after the machine,
 * which a compiler for the BPF target does not search. It is the same
 * everywhere.
 */
#pragma once

#include <asm-generic/types.h>
