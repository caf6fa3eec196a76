package agent

import (
	"context"
	"errors"
	"slices"
	"testing"
)

// A node whose routes could not be watched for a while is not left off the fast
// path for good.
func TestAWatchThatFailsIsBegunAgain(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	watches := 0
	watch := func(ctx context.Context, changed func(bool)) error {
		switch watches++; watches {
		case 1: // it fails at once
			return errors.New("too many open files")
		case 2: // and after a while
			changed(true)
			return errors.New("an answer was lost")
		}
		changed(false)
		cancel()
		<-ctx.Done()
		return nil
	}
	var told []string
	watchRouteMTU(ctx, watch, func(why string) { told = append(told, why) })
	want := []string{
		"its routes cannot be watched: too many open files", routeMTU,
		"its routes cannot be watched: an answer was lost", "",
	}
	if !slices.Equal(told, want) {
		t.Errorf("told %q, want %q", told, want)
	}
}
