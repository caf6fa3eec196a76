package vnet

import "strings"

// Nearest gives the candidate that a mistyped word most likely means, by edit
// distance, or "" where none is near: at most a third of the word's letters
// may differ.
func Nearest(word string, candidates []string) string {
	word = strings.ToLower(word)
	best, distance := "", max(1, len(word)/3)+1
	for _, c := range candidates {
		if d := len(c) - len(word); d >= distance || -d >= distance {
			continue
		}
		if d := editDistance(word, strings.ToLower(c)); d < distance {
			best, distance = c, d
		}
	}
	return best
}

// editDistance is the optimal string alignment distance: insertions,
// deletions, substitutions and swaps of two neighbours count one each.
func editDistance(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			change := 1
			if a[i-1] == b[j-1] {
				change = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+change)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
