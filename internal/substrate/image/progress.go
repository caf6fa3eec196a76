package image

import (
	"context"
	"fmt"
	"time"

	"trellis/internal/vnet"
)

// progressEvery is how often those who wait are told how far an image is.
const progressEvery = 500 * time.Millisecond

type progressKey struct{}

// WithProgress has tell called, from the goroutine that waits, with how far an
// image is that takes long to make ready.
func WithProgress(ctx context.Context, tell func(string)) context.Context {
	return context.WithValue(ctx, progressKey{}, tell)
}

// report gives a function that tells who waits how far the image is; nil: nobody
// wants to know.
func (c *Cache) report(ctx context.Context, ref string) func() {
	tell, _ := ctx.Value(progressKey{}).(func(string))
	if tell == nil {
		return nil
	}
	return func() {
		if text, ok := c.doing.Load(ref); ok {
			tell("image " + ref + ": " + text.(string))
		}
	}
}

// size writes a number of bytes as people read it.
func size(n int64) string {
	switch {
	case n >= 10<<30:
		return fmt.Sprintf("%d GiB", n>>30)
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return vnet.FormatSize(n)
}
