package forward

import "math"

// latencyBuckets is how many buckets `latency` of bpf/sink.bpf.c has.
const (
	bucketBits     = 5
	latencyBuckets = 36 << bucketBits
)

// bucketNS is the least time that a bucket of latencies counts, ns, and how wide
// it is.
func bucketNS(i int) (from, width uint64) {
	if i < 2<<bucketBits {
		return uint64(i), 1
	}
	p := i>>bucketBits - 1
	return uint64(i-p<<bucketBits) << p, 1 << p
}

// percentile gives the time within which a part of the frames came, 0 to 1, ns:
// the middle of its bucket. Without a frame it is 0.
func percentile(buckets []uint64, part float64) float64 {
	total := uint64(0)
	for _, n := range buckets {
		total += n
	}
	rank, sum := uint64(math.Ceil(part*float64(total))), uint64(0)
	for i, n := range buckets {
		if sum += n; n > 0 && sum >= rank {
			from, width := bucketNS(i)
			return float64(from) + float64(width-1)/2
		}
	}
	return 0
}
