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
)

// IDsPerVNet is the size of the range of user and group ids of one VNet.
const IDsPerVNet = 1 << 16

// The ids that ranges are taken from: within those that distributions leave to
// containers (524,288 to 1,879,048,191 by the conventions of systemd), above
// what useradd hands out in /etc/subuid by default.
const (
	firstID = 0x10000000
	lastID  = 0x6fffffff
)

// idSpace hands out ranges of ids that overlap neither each other nor the
// ranges that the machine's owner has given to users in /etc/subuid and
// /etc/subgid.
type idSpace struct {
	first uint32 // first range that is tried
	files []string

	mu   sync.Mutex
	held map[uint32]bool // handed out, not yet in the store
	// scattered is set once another service has taken a range first: from then on
	// looking begins at random, so that the two keep out of each other's way.
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
			first += h.Sum32() % ((lastID - firstID + 1) / IDsPerVNet) * IDsPerVNet
		}
	}
	if first%IDsPerVNet != 0 || first < IDsPerVNet || first > lastID {
		return nil, fmt.Errorf("first user id %d is not a multiple of %d between %d and %d; choose another", first, IDsPerVNet, IDsPerVNet, lastID)
	}
	return &idSpace{first: first, files: files, held: map[uint32]bool{}}, nil
}

// take hands out a range that is not among owned; give must follow.
func (s *idSpace) take(owned map[uint32]string) (uint32, error) {
	users, err := subIDs(s.files)
	if err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	low := min(s.first, firstID)
	begin := s.first
	if s.scattered {
		begin = low + rand.Uint32N((lastID-low)/IDsPerVNet+1)*IDsPerVNet
	}
	base := begin
	for {
		if _, taken := owned[base]; !taken && !s.held[base] && !overlapsAny(base, users) {
			s.held[base] = true
			return base, nil
		}
		if base += IDsPerVNet; base > lastID {
			base = low
		}
		if base == begin {
			return 0, fmt.Errorf("no range of %d user ids is left between %d and %d (%d are VNets', others in %s): %w",
				IDsPerVNet, low, lastID, len(owned), strings.Join(s.files, " and "), ErrExhausted)
		}
	}
}

// scatter has the ranges from now on taken from random places.
func (s *idSpace) scatter() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.scattered = true
}

// give takes a range back, or leaves it to the store that has it by now.
func (s *idSpace) give(base uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.held, base)
}

func overlapsAny(base uint32, users []idRange) bool {
	r := idRange{uint64(base), uint64(base) + IDsPerVNet - 1}
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
