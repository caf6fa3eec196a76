package image

import (
	"bytes"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
)

// put uploads something to a registry.
func put(t *testing.T, method, url, kind string, body []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", kind)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusCreated {
		t.Fatalf("%s %s: %s", method, url, resp.Status)
	}
}

// push uploads an image and what it is made of.
func push(t *testing.T, base, tag string, img v1.Image) {
	t.Helper()
	blob := func(h v1.Hash, content []byte) {
		put(t, http.MethodPost, base+"/v2/test/app/blobs/uploads/?digest="+h.String(), "application/octet-stream", content)
	}
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range layers {
		h, err1 := l.Digest()
		r, err2 := l.Compressed()
		if err1 != nil || err2 != nil {
			t.Fatal(err1, err2)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		blob(h, content)
	}
	config, err1 := img.RawConfigFile()
	h, err2 := img.ConfigName()
	manifest, err3 := img.RawManifest()
	kind, err4 := img.MediaType()
	if err1 != nil || err2 != nil || err3 != nil || err4 != nil {
		t.Fatal(err1, err2, err3, err4)
	}
	blob(h, config)
	put(t, http.MethodPut, base+"/v2/test/app/manifests/"+tag, string(kind), manifest)
}

// startRegistry starts a registry with the image of build as test/app:1, and as
// part of an index test/app:all. Requests pass through front, which may answer
// them itself and then reports so.
func startRegistry(t *testing.T, front func(w http.ResponseWriter, r *http.Request) bool) (host string, close func()) {
	t.Helper()
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	var open atomic.Bool
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !open.Load() || front == nil || !front(w, r) {
			inner.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(server.Close)
	img := build(t)
	push(t, server.URL, "1", img)
	h, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	push(t, server.URL, h.String(), img)
	other := v1.Platform{OS: "linux", Architecture: "s390x"}
	index := mutate.AppendManifests(empty.Index,
		mutate.IndexAddendum{Add: empty.Image, Descriptor: v1.Descriptor{Platform: &other}},
		mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: &platform}})
	push(t, server.URL, "empty", empty.Image)
	raw, err1 := index.RawManifest()
	kind, err2 := index.MediaType()
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	put(t, http.MethodPut, server.URL+"/v2/test/app/manifests/all", string(kind), raw)
	open.Store(true)
	return strings.TrimPrefix(server.URL, "http://"), server.Close
}

func TestRegistry(t *testing.T) {
	host, closeIt := startRegistry(t, nil)
	c := newCache(t)
	checkBuilt(t, c, host+"/test/app:1")
	checkBuilt(t, c, host+"/test/app:all")
	if _, err := c.Get(t.Context(), host+"/test/app:2"); err == nil || !strings.Contains(err.Error(), "no such image") {
		t.Errorf("an image that is not there: %v", err)
	}
	closeIt()
	checkBuilt(t, c, host+"/test/app:1") // from the cache
	if _, err := c.Get(t.Context(), host+"/test/app:2"); err == nil || !strings.Contains(err.Error(), host) || !strings.Contains(err.Error(), "check the name") {
		t.Errorf("a registry that is down: %v", err)
	}
}

// A registry may want a token, which its token server gives to anybody.
func TestRegistryToken(t *testing.T) {
	var asked atomic.Int32
	host, _ := startRegistry(t, func(w http.ResponseWriter, r *http.Request) bool {
		switch {
		case r.URL.Path == "/token":
			asked.Add(1)
			if q := r.URL.Query(); q.Get("scope") != "repository:test/app:pull" || q.Get("service") != "a, b" {
				http.Error(w, "bad scope or service", http.StatusBadRequest)
				return true
			}
			fmt.Fprint(w, `{"access_token": "sesame"}`)
			return true
		case r.Header.Get("Authorization") != "Bearer sesame":
			w.Header().Set("WWW-Authenticate", `Bearer realm="http://`+r.Host+`/token",service="a, b",scope="x"`)
			w.WriteHeader(http.StatusUnauthorized)
			return true
		}
		return false
	})
	checkBuilt(t, newCache(t), host+"/test/app:1")
	if n := asked.Load(); n != 1 {
		t.Errorf("%d tokens were fetched, want one", n)
	}
}

func TestRegistryFaults(t *testing.T) {
	var busy atomic.Int32
	for name, test := range map[string]struct {
		front func(w http.ResponseWriter, r *http.Request) bool
		want  string // in the error; empty: it works
	}{
		"busy for a moment": {func(w http.ResponseWriter, r *http.Request) bool {
			if busy.Add(1) == 1 {
				w.WriteHeader(http.StatusServiceUnavailable)
				return true
			}
			return false
		}, ""},
		"private": {func(w http.ResponseWriter, r *http.Request) bool {
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			w.WriteHeader(http.StatusUnauthorized)
			return true
		}, "only what anybody may read"},
		"a token server elsewhere": {func(w http.ResponseWriter, r *http.Request) bool {
			w.Header().Set("WWW-Authenticate", `Bearer realm="file:///etc/passwd"`)
			w.WriteHeader(http.StatusUnauthorized)
			return true
		}, "not a URL"},
		"its own words": {func(w http.ResponseWriter, r *http.Request) bool {
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprint(w, `{"errors": [{"code": "DENIED", "message": "no entry"}]}`)
			return true
		}, "DENIED no entry"},
		"other bytes": {func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.Contains(r.URL.Path, "/blobs/") {
				return false
			}
			fmt.Fprint(w, "{}")
			return true
		}, "is not what it is called: what is there has the digest sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"},
		"an endless manifest": {func(w http.ResponseWriter, r *http.Request) bool {
			w.Write(bytes.Repeat([]byte(" "), maxManifest+1))
			return true
		}, "more than 4 MiB"},
		"no image": {func(w http.ResponseWriter, r *http.Request) bool {
			w.Header().Set("Content-Type", "text/html")
			fmt.Fprint(w, "<html>log in</html>")
			return true
		}, `"text/html", and no image`},
	} {
		t.Run(name, func(t *testing.T) {
			host, _ := startRegistry(t, test.front)
			c := newCache(t)
			if test.want == "" {
				checkBuilt(t, c, host+"/test/app:1")
				return
			}
			if _, err := c.Get(t.Context(), host+"/test/app:1"); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
}
