/* SPDX-License-Identifier: Apache-2.0 */
/* Strings and numbers, for want of a C library, and the cursor over a service table. */
#ifndef TRELLIS_INIT_TEXT_H
#define TRELLIS_INIT_TEXT_H

#include "sys.h"

enum { MAX_STRINGS = 256 /* arguments or variables of one service */ };

static u64 length(const char *s)
{
	u64 n = 0;
	while (s[n])
		n++;
	return n;
}

static int same(const char *a, const char *b, u64 n)
{
	for (u64 i = 0; i < n; i++)
		if (a[i] != b[i])
			return 0;
	return 1;
}

static char *put(char *to, const char *s)
{
	while (*s)
		*to++ = *s++;
	return to;
}

static char *number(char *to, u64 v)
{
	char digits[20];
	int n = 0;
	do
		digits[n++] = (char)('0' + v % 10);
	while (v /= 10);
	while (n)
		*to++ = digits[--n];
	return to;
}

/* A cursor over the strings of a table. */
struct strings { const char *at, *end; };

static const char *next(struct strings *s)
{
	const char *from = s->at;
	while (s->at < s->end && *s->at)
		s->at++;
	if (s->at >= s->end)
		return 0;
	s->at++;
	return from;
}

static i64 next_number(struct strings *s)
{
	const char *d = next(s);
	i64 v = 0;
	if (!d || !*d)
		return -1;
	for (; *d; d++) {
		if (*d < '0' || *d > '9' || v > 1L << 32)
			return -1;
		v = v * 10 + (*d - '0');
	}
	return v;
}

/* skip passes over a counted list of strings; -1 if it is malformed. */
static int skip(struct strings *s)
{
	i64 n = next_number(s);
	if (n < 0 || n >= MAX_STRINGS)
		return -1;
	while (n--)
		if (!next(s))
			return -1;
	return 0;
}

#endif
