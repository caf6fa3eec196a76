package draw

import (
	"math"

	"gonum.org/v1/gonum/mat"
)

// pivots is how many vertices pivot scaling measures from.
const pivots = 50

// pivotLayout places vertices by the two main directions of their distances to
// a few of them: Brandes and Pich, "Eigensolver methods for progressive
// multidimensional scaling of large data", 2006. It gives nearly what Isomap does,
// in time that grows with the number of vertices and not with its cube.
func pivotLayout(adjacent [][]int) []point {
	n := len(adjacent)
	k := min(pivots, n)
	rows := make([][]float64, k)
	nearest := make([]float64, n)
	for i := range nearest {
		nearest[i] = math.Inf(1)
	}
	// Each pivot is as far as can be from those before.
	for p, at := 0, 0; p < k; p++ {
		row := hopsFrom(adjacent, at, nil)
		rows[p] = make([]float64, n)
		next := 0
		for i, d := range row {
			rows[p][i] = float64(d) * float64(d)
			nearest[i] = min(nearest[i], float64(d))
			if nearest[i] > nearest[next] {
				next = i
			}
		}
		at = next
	}
	center(rows)
	product := mat.NewSymDense(k, nil)
	for a := range rows {
		for b := a; b < k; b++ {
			sum := 0.0
			for i := range rows[a] {
				sum += rows[a][i] * rows[b][i]
			}
			product.SetSym(a, b, sum)
		}
	}
	at := make([]point, n)
	var eigen mat.EigenSym
	if !eigen.Factorize(product, true) {
		return at // all in one place; the refinement separates them
	}
	var vectors mat.Dense
	eigen.VectorsTo(&vectors) // ascending by eigenvalue
	values := eigen.Values(nil)
	for i := range at {
		for p := range rows {
			at[i].x += rows[p][i] * vectors.At(p, k-1)
			if k > 1 {
				at[i].y += rows[p][i] * vectors.At(p, k-2)
			}
		}
	}
	// The columns are too long by the square root of the eigenvalue over that of
	// the share of pivots; bring neighbours to about one unit.
	scale := math.Sqrt(math.Sqrt(max(values[k-1], 1)))
	for i := range at {
		at[i] = at[i].scale(math.Sqrt(float64(n)/float64(k)) / scale / math.Sqrt(2))
	}
	return at
}

// center turns squared distances into scalar products: -1/2 of each, less the
// means of its row and column, plus the mean of all.
func center(rows [][]float64) {
	k, n := len(rows), len(rows[0])
	column, all := make([]float64, n), 0.0
	row := make([]float64, k)
	for p := range rows {
		for i, v := range rows[p] {
			row[p] += v / float64(n)
			column[i] += v / float64(k)
			all += v / float64(n*k)
		}
	}
	for p := range rows {
		for i := range rows[p] {
			rows[p][i] = -(rows[p][i] - row[p] - column[i] + all) / 2
		}
	}
}

// hopsFrom gives the lengths of the shortest paths from a vertex to all others
// of its component, -1 for the rest. The queue is reused where there is one.
func hopsFrom(adjacent [][]int, from int, queue []int) []float32 {
	row := make([]float32, len(adjacent))
	for j := range row {
		row[j] = -1
	}
	row[from] = 0
	queue = append(queue[:0], from)
	for k := 0; k < len(queue); k++ {
		v := queue[k]
		for _, w := range adjacent[v] {
			if row[w] < 0 {
				row[w] = row[v] + 1
				queue = append(queue, w)
			}
		}
	}
	return row
}
