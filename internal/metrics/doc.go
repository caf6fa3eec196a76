// Package metrics exports the statistics of a service to Prometheus: what the agent of
// this machine counts, who of the substrate nodes lives, and how far the virtual
// networks are. docs/metrics.md lists them.
//
// Everything is read when it is asked for, and nothing is kept: a counter begins
// at zero when what it counts is made anew.
package metrics
