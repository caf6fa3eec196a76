package dataplane

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"
	"unsafe"

	"github.com/cilium/ebpf/perf"
	"golang.org/x/sys/unix"
)

// Frame is a copy of a frame that the fast path has forwarded.
type Frame struct {
	Port     int       // interface index of the port
	FromNode bool      // it has left by the port; else it arrived at the node's end
	Time     time.Time // when
	Length   int       // of the frame, bytes; Data may be shorter
	Data     []byte    // from its Ethernet header on; the receiver's to keep
	Lost     uint64    // copies since the one before, of any port, that found no room
}

const (
	// maxSnap bounds a copy: a record of perf holds 64 KiB with its head.
	maxSnap = 1<<16 - 1<<10
	// copyRoom is how many bytes of copies wait on each processor.
	copyRoom = 1 << 20
)

// tap is one that wants copies.
type tap struct {
	port   int
	snap   int
	frames chan Frame
}

// copies is the reader of what the programs copy, shared by all taps.
type copies struct {
	reader *perf.Reader
	taps   int
	done   chan struct{} // closed when the reading has ended
}

// Tap gives each frame that the fast path forwards by a port, in both directions,
// cut to snaplen bytes (0: whole), until the context ends; then it returns nil.
// each is called from one goroutine. What passes the node's stack or the port as
// an skb is not given: a packet socket sees that. Frames that come faster than
// they are taken are lost and counted.
func (d *Dataplane) Tap(ctx context.Context, port, snaplen int, each func(Frame)) error {
	if snaplen <= 0 || snaplen > maxSnap {
		snaplen = maxSnap
	}
	t := &tap{port: port, snap: snaplen, frames: make(chan Frame, 1024)}
	slot, err := d.addTap(t)
	if err != nil {
		return fmt.Errorf("tap the port %d: %w", port, err)
	}
	for {
		select {
		case f := <-t.frames:
			each(f)
		case <-ctx.Done():
			if err := d.removeTap(slot, t); err != nil {
				return fmt.Errorf("end the tap of port %d: %w", port, err)
			}
			for { // what was copied before the end
				select {
				case f := <-t.frames:
					each(f)
				default:
					return nil
				}
			}
		}
	}
}

func (d *Dataplane) addTap(t *tap) (slot uint32, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	e, ok := d.ports.get(uint32(t.port))
	if !ok {
		return 0, errors.New("it is not attached")
	}
	if d.copies == nil {
		if err := d.openCopies(); err != nil {
			return 0, err
		}
	}
	d.copies.taps++
	d.taps[e.Slot] = append(d.taps[e.Slot], t)
	if err := d.retap(e.Slot, t.port); err != nil {
		return 0, errors.Join(err, d.dropTap(e.Slot, t))
	}
	return e.Slot, nil
}

func (d *Dataplane) removeTap(slot uint32, t *tap) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.dropTap(slot, t)
}

func (d *Dataplane) dropTap(slot uint32, t *tap) error {
	left := slices.DeleteFunc(d.taps[slot], func(other *tap) bool { return other == t })
	if d.taps[slot] = left; len(left) == 0 {
		delete(d.taps, slot)
	}
	err := d.retap(slot, t.port)
	if d.copies.taps--; d.copies.taps > 0 {
		return err
	}
	c := d.copies
	d.copies = nil
	err = errors.Join(err, c.reader.Close())
	d.mu.Unlock()
	<-c.done // which hands out the last frames, and takes the lock for it
	d.mu.Lock()
	return err
}

// retap has the programs know what copies are wanted of a port.
func (d *Dataplane) retap(slot uint32, port int) error {
	most := 0
	for _, t := range d.taps[slot] {
		most = max(most, t.snap)
	}
	if most == 0 {
		if err := d.maps.remove("taps", slot); err != nil {
			return err
		}
	} else if err := d.maps["taps"].Put(slot, uint32(most)); err != nil {
		return fmt.Errorf("enter a tap: %w", err)
	}
	if e, ok := d.ports.get(uint32(port)); !ok || e.Slot != slot { // the port has gone meanwhile
		return nil
	}
	return errors.Join(d.syncEgress(uint32(port)), d.syncSenders(uint32(port)))
}

func (d *Dataplane) openCopies() error {
	r, err := perf.NewReader(d.maps["copies"], copyRoom)
	if err != nil {
		return fmt.Errorf("make room for copies of frames: %w", err)
	}
	d.copies = &copies{reader: r, done: make(chan struct{})}
	go d.deliver(d.copies)
	return nil
}

// deliver reads copies until the reader is closed.
func (d *Dataplane) deliver(c *copies) {
	defer close(c.done)
	var lost uint64
	for {
		record, err := c.reader.Read()
		if errors.Is(err, os.ErrClosed) {
			return
		}
		if err != nil {
			continue // of one record
		}
		lost += record.LostSamples
		head := fastProgsCopied{}
		if len(record.RawSample) < int(unsafe.Sizeof(head)) {
			continue
		}
		if _, err := binary.Decode(record.RawSample, binary.NativeEndian, &head); err != nil {
			continue
		}
		f := Frame{
			FromNode: head.Direction == fastProgsTapDirectionTAP_FROM_NODE,
			Time:     wallClock(head.Time), Length: int(head.Length), Lost: lost,
		}
		lost = 0
		data := record.RawSample[unsafe.Sizeof(head):]
		d.mu.Lock()
		for _, t := range d.taps[head.Slot] {
			f.Port, f.Data = t.port, slices.Clone(data[:min(len(data), t.snap, f.Length)])
			select {
			case t.frames <- f:
			default:
				lost++
			}
		}
		d.mu.Unlock()
	}
}

// wallClock gives the time of day of a reading of CLOCK_MONOTONIC, in ns.
func wallClock(monotonic uint64) time.Time {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return time.Now()
	}
	return time.Now().Add(time.Duration(int64(monotonic) - now.Nano()))
}
