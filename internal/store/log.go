package store

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"strings"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// etcdLogger gives etcd a logger that writes warnings and worse to log, and
// that, where etcd would end the process (zap's Fatal and Panic), ends only the
// goroutine, after calling fail. What it says once life has ended is of no
// interest: listeners that were closed are errors to it.
func etcdLogger(life context.Context, log *slog.Logger, fail func(error)) *zap.Logger {
	core := &slogCore{life: life, log: log}
	hook := deathHook{fail}
	return zap.New(core, zap.WithFatalHook(hook), zap.WithPanicHook(hook))
}

// slogCore is a zapcore.Core that hands entries to slog.
type slogCore struct {
	life   context.Context
	log    *slog.Logger
	fields []zapcore.Field
}

// quiet are warnings of etcd that say nothing to the operator of a single
// embedded member.
var quiet = []string{
	"Running http and grpc server on single port",
	"apply request took too long",
	"failed to apply request", // a failed transaction: the caller gets the error
	"lease manager",
	"simple token is not cryptographically signed",
	"exceeded recommended request limit", // one member needs no slack for others
	"Failed to detect schema version",    // a new store has none yet
	"failed to update storage version",   // the same
	"Failed to detect storage schema version",
	"retrying of unary invoker failed",            // of the client: the caller gets the error
	"error occurred during lease keep alive loop", // of the client, at its end
	"check file permission",                       // the directory is made 0700, an owner's own choice stays
}

func (c *slogCore) Enabled(l zapcore.Level) bool { return l >= zapcore.WarnLevel }

func (c *slogCore) With(f []zapcore.Field) zapcore.Core {
	return &slogCore{c.life, c.log, append(c.fields[:len(c.fields):len(c.fields)], f...)}
}

func (c *slogCore) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return ce.AddCore(e, c)
	}
	return ce
}

func (c *slogCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	level := slog.LevelWarn
	if e.Level >= zapcore.ErrorLevel {
		level = slog.LevelError
	}
	for _, q := range quiet {
		if strings.Contains(e.Message, q) {
			level = slog.LevelDebug
		}
	}
	if c.life.Err() != nil {
		level = slog.LevelDebug
	}
	if !c.log.Enabled(context.Background(), level) {
		return nil
	}
	enc := zapcore.NewMapObjectEncoder()
	for _, f := range append(c.fields[:len(c.fields):len(c.fields)], fields...) {
		f.AddTo(enc)
	}
	attrs := make([]slog.Attr, 0, len(enc.Fields))
	for k, v := range enc.Fields {
		attrs = append(attrs, slog.Any(k, v))
	}
	c.log.LogAttrs(context.Background(), level, "etcd: "+e.Message, attrs...)
	return nil
}

func (c *slogCore) Sync() error { return nil }

// deathHook replaces os.Exit and panic in etcd.
type deathHook struct{ fail func(error) }

func (h deathHook) OnWrite(ce *zapcore.CheckedEntry, fields []zapcore.Field) {
	err := fmt.Errorf("etcd: %s", ce.Message)
	for _, f := range fields {
		if cause, ok := f.Interface.(error); ok && f.Type == zapcore.ErrorType {
			err = fmt.Errorf("etcd: %s: %w", ce.Message, cause)
		}
	}
	h.fail(err)
	runtime.Goexit()
}
