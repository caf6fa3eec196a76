package deploy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"
)

// longestWindow bounds one CPU profile. Windows follow each other, each twice as
// long as the one before from one second on, and `go tool pprof` adds the files up.
const longestWindow = 16 * time.Second

// errProfiling is the error of a service that a profile is being taken of: it
// notices only after a moment that nobody waits for the last one.
var errProfiling = errors.New("the service is being profiled by somebody else")

// profilingTimeout is how long the last profile may take to end.
const profilingTimeout = 5 * time.Second

// debugClient asks a service on a unix socket for what its runtime knows.
func debugClient(socket string) *http.Client {
	var dialer net.Dialer
	return &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "unix", socket)
		},
	}}
}

// debugGet asks for a path below /debug/pprof/. The caller closes what it reads.
func debugGet(ctx context.Context, socket, path string) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://trellis/debug/pprof/"+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := debugClient(socket).Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode == http.StatusInternalServerError {
		return nil, errors.Join(errProfiling, resp.Body.Close())
	}
	if resp.StatusCode != http.StatusOK {
		return nil, errors.Join(fmt.Errorf("the service answers %s with %s", req.URL.Path, resp.Status), resp.Body.Close())
	}
	return resp.Body, nil
}

// goroutines counts the service's goroutines.
func goroutines(ctx context.Context, socket string) (int, error) {
	body, err := debugGet(ctx, socket, "goroutine?debug=1")
	if err != nil {
		return 0, fmt.Errorf("count the service's goroutines: %w", err)
	}
	defer body.Close()
	line, err := bufio.NewReader(body).ReadString('\n')
	if err != nil {
		return 0, fmt.Errorf("count the service's goroutines: %w", err)
	}
	var n int
	if _, err := fmt.Sscanf(line, "goroutine profile: total %d", &n); err != nil {
		return 0, fmt.Errorf("count the service's goroutines in %q: %w", line, err)
	}
	return n, nil
}

// profiler writes CPU profiles of the service, one file for each window, while a
// part runs.
type profiler struct {
	stop  context.CancelFunc
	ended chan error
}

// profile starts to write dir/PART-NNN.pprof.
func profile(ctx context.Context, socket, dir, part string) *profiler {
	ctx, stop := context.WithCancel(ctx)
	p := &profiler{stop: stop, ended: make(chan error, 1)}
	go func() {
		window, since := time.Second, time.Now()
		for n := 0; ; n++ {
			err := profileOnce(ctx, socket, window, filepath.Join(dir, fmt.Sprintf("%s-%03d.pprof", part, n)))
			if errors.Is(err, errProfiling) && n == 0 && time.Since(since) < profilingTimeout {
				time.Sleep(50 * time.Millisecond)
				n--
				continue
			}
			if err != nil && ctx.Err() != nil {
				err = nil
			}
			if err != nil || ctx.Err() != nil {
				p.ended <- err
				return
			}
			window = min(2*window, longestWindow)
		}
	}()
	return p
}

func profileOnce(ctx context.Context, socket string, window time.Duration, file string) error {
	body, err := debugGet(ctx, socket, fmt.Sprintf("profile?seconds=%d", int(window.Seconds())))
	if err != nil {
		return fmt.Errorf("profile the service: %w", err)
	}
	defer body.Close()
	data, err := io.ReadAll(body)
	if err != nil {
		return fmt.Errorf("profile the service: %w", err)
	}
	return os.WriteFile(file, data, 0o644)
}

// end stops after the last whole window; what was begun is dropped.
func (p *profiler) end() error {
	p.stop()
	return <-p.ended
}
