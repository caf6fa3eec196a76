package image

import (
	"strings"
	"testing"
	"time"
)

// TestProgress: who waits is told how far the image is.
func TestProgress(t *testing.T) {
	c := newCache(t)
	path := write(t, "a.tar", archive(t, dir("bin"), file("etc/name", strings.Repeat("x", 2<<20))))
	told := make(chan string, 1)
	c.blocked = func(string) {
		select {
		case text := <-told:
			told <- text
		case <-time.After(time.Minute):
		}
	}
	ctx := WithProgress(t.Context(), func(text string) {
		select {
		case told <- text:
		default:
		}
	})
	if _, err := c.Get(ctx, path); err != nil {
		t.Fatal(err)
	}
	if text := <-told; !strings.HasPrefix(text, "image "+path+": extracted ") {
		t.Errorf("told %q", text)
	}
}
