// Package bench measures Trellis: how long networks take to come up, to
// converge and to go, what they cost, and how fast their links are.
//
// Its subpackages hold one measurement each. What they have in common is here:
// the description of the machine, without which no figure means anything, and
// the summary of repeated samples. Every measurement repeats, shows its spread,
// and where two things are compared measures both in one run, in turns; so that
// the noise of a shared machine hits both alike.
package bench
