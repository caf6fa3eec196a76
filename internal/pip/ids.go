package pip

import (
	"bufio"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"

	"trellis/internal/plan"
)

// The ids that ranges are taken from: within those that distributions leave to
// containers (524,288 to 1,879,048,191 by the conventions of systemd), above
// what useradd hands out in /etc/subuid by default.
const (
	firstID = 0x10000000
	lastID  = 0x6fffffff
)

// idSpace hands out ranges of ids that overlap neither each other nor the
// ranges that the machine's owner has set aside for users in /etc/subuid and
// /etc/subgid.
type idSpace struct {
	first uint32 // first range that is tried
	files []string

	mu       sync.Mutex
	reserved map[uint32]bool // not in the store, or not yet
	// scattered is set once another service was first to get a range: from then on
	// the search begins at random, so that the two rarely meet.
	scattered bool
}

// idRange is a range of ids, both ends included.
type idRange struct{ first, last uint64 }

func (r idRange) overlaps(o idRange) bool { return r.first <= o.last && o.first <= r.last }

// newIDSpace makes the id space of a service. Services on one machine do not
// know of each other's ranges, so all but the default one begin somewhere else,
// by a hash of their instance tag, unless they are told where.
func newIDSpace(first uint32, instance, defaultInstance string, files []string) (*idSpace, error) {
	if first == 0 {
		first = firstID
		if instance != defaultInstance {
			h := fnv.New32a()
			h.Write([]byte(instance))
			first += h.Sum32() % ((lastID - firstID + 1) / plan.IDsPerVNet) * plan.IDsPerVNet
		}
	}
	if first%plan.IDsPerVNet != 0 || first < plan.IDsPerVNet || first > lastID {
		return nil, fmt.Errorf("first user id %d is not a multiple of %d between %d and %d; choose another", first, plan.IDsPerVNet, plan.IDsPerVNet, lastID)
	}
	return &idSpace{first: first, files: files, reserved: map[uint32]bool{}}, nil
}

// reserve hands out a range that is not among owned; release must follow.
func (s *idSpace) reserve(owned map[uint32]string) (uint32, error) {
	users, err := subIDs(s.files)
	if err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	low := min(s.first, firstID)
	begin := s.first
	if s.scattered {
		begin = low + rand.Uint32N((lastID-low)/plan.IDsPerVNet+1)*plan.IDsPerVNet
	}
	base := begin
	for {
		if _, used := owned[base]; !used && !s.reserved[base] && !overlapsAny(base, users) {
			s.reserved[base] = true
			return base, nil
		}
		if base += plan.IDsPerVNet; base > lastID {
			base = low
		}
		if base == begin {
			return 0, fmt.Errorf("no range of %d user ids is left between %d and %d (%d are VNets', others in %s): %w",
				plan.IDsPerVNet, low, lastID, len(owned), strings.Join(s.files, " and "), ErrExhausted)
		}
	}
}

// scatter has the search begin at random from now on.
func (s *idSpace) scatter() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.scattered = true
}

// release ends a reservation: the range is free again, or in the store by now.
func (s *idSpace) release(base uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.reserved, base)
}

// skipRanges is how many ranges are left out for each restore of the store: more than
// can have been given out since the copy was taken. It has no divisor in common with
// the number of all ranges, so that restores do not fall on each other.
const skipRanges = 4099

// skip has looking begin so many ranges later: after a restore, some are perhaps in
// use that the store does not know.
func (s *idSpace) skip(restores int) {
	low := min(s.first, firstID)
	all := uint64((lastID-low)/plan.IDsPerVNet + 1)
	at := uint64((s.first-low)/plan.IDsPerVNet) + uint64(restores)*skipRanges
	s.first = low + uint32(at%all)*plan.IDsPerVNet
}

func overlapsAny(base uint32, users []idRange) bool {
	r := idRange{uint64(base), uint64(base) + plan.IDsPerVNet - 1}
	for _, u := range users {
		if r.overlaps(u) {
			return true
		}
	}
	return false
}

// subIDs reads the ranges of subuid(5) and subgid(5) files.
func subIDs(files []string) ([]idRange, error) {
	var ranges []idRange
	for _, name := range files {
		f, err := os.Open(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			return nil, fmt.Errorf("read the machine's id ranges: %w", err)
		}
		defer f.Close()
		lines := bufio.NewScanner(f)
		for n := 1; lines.Scan(); n++ {
			line := strings.TrimSpace(lines.Text())
			if line == "" || strings.HasPrefix(line, "#") {
				continue
			}
			parts := strings.Split(line, ":")
			if len(parts) != 3 {
				return nil, fmt.Errorf("%s:%d: %q is not NAME:FIRST:COUNT; correct the file", name, n, line)
			}
			first, err1 := strconv.ParseUint(parts[1], 10, 32)
			count, err2 := strconv.ParseUint(parts[2], 10, 33)
			if err := errors.Join(err1, err2); err != nil {
				return nil, fmt.Errorf("%s:%d: %w; correct the file", name, n, err)
			}
			if count > 0 {
				ranges = append(ranges, idRange{first, first + count - 1})
			}
		}
		if err := lines.Err(); err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
	}
	return ranges, nil
}
