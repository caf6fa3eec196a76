package vnet

// Disjoint are disjoint sets of the numbers 0 to n-1 (union-find). The least
// member of a set stands for it.
type Disjoint []int

// NewDisjoint makes n sets of one number each.
func NewDisjoint(n int) Disjoint {
	d := make(Disjoint, n)
	for i := range d {
		d[i] = i
	}
	return d
}

// Find gives the least member of the set that i is in.
func (d Disjoint) Find(i int) int {
	for d[i] != i {
		d[i] = d[d[i]]
		i = d[i]
	}
	return i
}

// Join makes one set of those that a and b are in.
func (d Disjoint) Join(a, b int) {
	a, b = d.Find(a), d.Find(b)
	d[max(a, b)] = min(a, b)
}
