package agentapi

import "context"

type progressKey struct{}

// WithProgress has an agent of this process tell, while it is asked something that
// takes long, how far it is. tell may be called from any goroutine, also by several
// at once.
func WithProgress(ctx context.Context, tell func(string)) context.Context {
	return context.WithValue(ctx, progressKey{}, tell)
}

// ProgressOf gives what WithProgress has put into the context; nil: nobody wants to
// know.
func ProgressOf(ctx context.Context) func(string) {
	tell, _ := ctx.Value(progressKey{}).(func(string))
	return tell
}
