package agent

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"trellis/internal/store"
)

// Rates of the status writer.
const (
	// statusInterval bounds how often the statuses of VNets whose steps go on are
	// written, and urgentInterval the same for changes of a phase.
	statusInterval = 200 * time.Millisecond
	urgentInterval = 10 * time.Millisecond
	// statusTimeout bounds one transaction.
	statusTimeout = 10 * time.Second
	// statusFlush bounds the last write, when the agent ends.
	statusFlush = 2 * time.Second
	// A transaction that has failed is tried again after firstStatusRetry, which
	// doubles up to longestStatusRetry. While the store is away only one VNet's
	// status is sent, as a probe.
	firstStatusRetry   = 250 * time.Millisecond
	longestStatusRetry = 5 * time.Second
)

// statusWriter is the only one in the agent that writes statuses: whoever changes
// one marks it dirty and goes on. It writes the latest state of each, many VNets in
// one transaction, and tries again whatever fails for as long as the agent runs. So
// a store that hangs, or is away, or is full, costs no step of any VNet.
type statusWriter struct {
	put func(ctx context.Context, statuses map[string]*store.Status) error
	log *slog.Logger

	mu     sync.Mutex
	dirty  map[string]*reporter // by VNet
	urgent bool
	wake   chan struct{}
}

func newStatusWriter(s Store, host string, log *slog.Logger) *statusWriter {
	return &statusWriter{
		put: func(ctx context.Context, statuses map[string]*store.Status) error {
			return s.PutStatuses(ctx, host, statuses)
		},
		log: log, dirty: map[string]*reporter{}, wake: make(chan struct{}, 1),
	}
}

// enqueue has the status of a VNet written.
func (w *statusWriter) enqueue(r *reporter, urgent bool) {
	w.mu.Lock()
	w.dirty[r.vnet] = r
	wake := len(w.dirty) == 1 || urgent && !w.urgent
	w.urgent = w.urgent || urgent
	w.mu.Unlock()
	if wake {
		w.notify()
	}
}

func (w *statusWriter) notify() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// run writes until ctx ends, and then what is still dirty, once.
func (w *statusWriter) run(ctx context.Context) {
	var last time.Time // of the last transaction
	retry := time.Duration(0)
	logged := ""
	for {
		select {
		case <-ctx.Done():
			w.flush()
			return
		case <-w.wake:
		}
		if retry == 0 && !w.pace(ctx, last) || retry > 0 && !sleep(ctx, retry) {
			w.flush()
			return
		}
		last = time.Now()
		err := w.write(ctx, retry > 0)
		switch {
		case err == nil:
			if logged != "" {
				w.log.Info("statuses of VNets are written again")
			}
			retry, logged = 0, ""
			continue
		case ctx.Err() != nil:
			w.notify()
			continue
		case errors.Is(err, store.ErrUnavailable): // the store has logged that
		case err.Error() != logged:
			logged = err.Error()
			w.log.Error("statuses of VNets could not be written; trying again", "err", err)
		}
		retry = min(max(2*retry, firstStatusRetry), longestStatusRetry)
		w.notify()
	}
}

// pace waits until the next transaction is due; false when ctx has ended.
func (w *statusWriter) pace(ctx context.Context, last time.Time) bool {
	for {
		w.mu.Lock()
		interval := statusInterval
		if w.urgent {
			interval = urgentInterval
		}
		w.mu.Unlock()
		wait := interval - time.Since(last)
		if wait <= 0 {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-w.wake: // perhaps for something urgent
		case <-time.After(wait):
			return true
		}
	}
}

// sleep returns after d; false when ctx has ended before.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// write writes what is dirty; with probe first one VNet's status, to see whether the
// store takes any. What it does not take is dirty again.
func (w *statusWriter) write(ctx context.Context, probe bool) error {
	if probe {
		if err := w.writeBatch(ctx, 1); err != nil {
			return err
		}
	}
	return w.writeBatch(ctx, 0)
}

// writeBatch writes the statuses of so many VNets, or with 0 of all that are dirty.
func (w *statusWriter) writeBatch(ctx context.Context, most int) error {
	w.mu.Lock()
	batch := map[string]*reporter{}
	for vnet, r := range w.dirty {
		if most > 0 && len(batch) == most {
			break
		}
		batch[vnet] = r
		delete(w.dirty, vnet)
	}
	if len(w.dirty) == 0 {
		w.urgent = false
	}
	w.mu.Unlock()
	statuses := make(map[string]*store.Status, len(batch))
	for vnet, r := range batch {
		if st, wanted := r.snapshot(); wanted {
			statuses[vnet] = &st
		}
	}
	if len(statuses) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	err := w.put(ctx, statuses)
	if err == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for vnet, r := range batch {
		if w.dirty[vnet] == nil {
			w.dirty[vnet] = r
		}
	}
	w.urgent = true
	return err
}

// flush writes what is dirty when the agent ends, if the store takes it at once.
func (w *statusWriter) flush() {
	ctx, cancel := context.WithTimeout(context.Background(), statusFlush)
	defer cancel()
	if err := w.writeBatch(ctx, 0); err != nil {
		w.log.Debug("the last statuses of VNets are not written; the next start writes them", "err", err)
	}
}
