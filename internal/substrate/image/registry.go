package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

const (
	// maxManifest bounds a manifest, an index and a configuration, in bytes, as
	// registries do.
	maxManifest = 4 << 20
	// registryTries is how often a request is made that fails for the moment.
	registryTries = 3
	// registryPause is the pause before the second try; it doubles.
	registryPause = 500 * time.Millisecond
)

// repository is one of a registry (OCI distribution-spec), read without
// credentials.
type repository struct {
	ctx    context.Context // of the pull
	name   name.Repository
	client *http.Client
	token  string // that the registry's token server gives to anybody; empty: none is asked for
}

// openRepository opens the repository of a reference for one pull. Without trust,
// only public addresses are connected to, whatever names and redirections say: what
// the machine's own networks offer is not for tenants to ask.
func openRepository(ctx context.Context, of name.Repository, trusted bool) *repository {
	dialer := &net.Dialer{Timeout: 10 * time.Second}
	guarded := &net.Dialer{Timeout: 10 * time.Second, ControlContext: publicOnly}
	var proxies sync.Map // addresses, as they are dialed
	return &repository{ctx: ctx, name: of, client: &http.Client{Transport: &http.Transport{
		Proxy: func(req *http.Request) (*url.URL, error) {
			u, err := http.ProxyFromEnvironment(req)
			if u != nil {
				proxies.Store(u.Host, true)
			}
			return u, err
		},
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			host, _, _ := net.SplitHostPort(address)
			_, proxy := proxies.Load(address)
			if _, portless := proxies.Load(host); trusted || proxy || portless {
				return dialer.DialContext(ctx, network, address)
			}
			return guarded.DialContext(ctx, network, address)
		},
		TLSHandshakeTimeout:   10 * time.Second,
		ResponseHeaderTimeout: 30 * time.Second,
		ForceAttemptHTTP2:     true,
	}}}
}

// errPrivate says that a name leads where only registries may be that the
// configuration names.
var errPrivate = errors.New("it is on a private network; name the registry in images: {registries: […]} in the service's configuration")

// publicOnly refuses to connect to addresses that are not public.
func publicOnly(_ context.Context, _, address string, _ syscall.RawConn) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return err
	}
	if a := at.Addr().Unmap(); !a.IsGlobalUnicast() || a.IsPrivate() || sharedSpace.Contains(a) {
		return fmt.Errorf("%s: %w", a, errPrivate)
	}
	return nil
}

var sharedSpace = netip.MustParsePrefix("100.64.0.0/10") // RFC 6598

// close lets connections go. What is being read ends.
func (r *repository) close() { r.client.CloseIdleConnections() }

// image finds the manifest of a tag or digest, for this machine.
func (r *repository) image(ref name.Reference) (*v1.Manifest, error) {
	text, kind, err := r.manifest(ref.Identifier())
	if err != nil {
		return nil, err
	}
	for depth := 0; kind.IsIndex(); depth++ {
		var index v1.IndexManifest
		if err := json.Unmarshal(text, &index); err != nil {
			return nil, fmt.Errorf("read the image index: %w", err)
		}
		found := forPlatform(&index)
		if len(found) == 0 {
			return nil, fmt.Errorf("it holds no image for %s", platform)
		}
		if depth > maxDepth {
			return nil, errDepth
		}
		// Several are variants of the processor, the plain one first.
		d := found[0]
		if text, kind, err = r.manifest(d.Digest.String()); err != nil {
			return nil, err
		}
		if d.Size != int64(len(text)) {
			return nil, wrongSize(d, int64(len(text)))
		}
	}
	if !kind.IsImage() {
		return nil, fmt.Errorf("it is a %q, and no image", kind)
	}
	return parseManifest(text)
}

// manifest gets a manifest or an index by tag or digest. A digest must fit.
func (r *repository) manifest(id string) ([]byte, types.MediaType, error) {
	accept := make([]string, 0, 4)
	for _, t := range []types.MediaType{types.OCIImageIndex, types.DockerManifestList, types.OCIManifestSchema1, types.DockerManifestSchema2} {
		accept = append(accept, string(t))
	}
	resp, err := r.get("manifests/"+id, strings.Join(accept, ", "))
	if err != nil {
		return nil, "", err
	}
	text, err := readAll(resp.Body)
	if err != nil {
		return nil, "", fmt.Errorf("read the manifest %s: %w", id, err)
	}
	if want, err := v1.NewHash(id); err == nil {
		if err := compare(v1.Descriptor{Digest: want, Size: int64(len(text))}, text); err != nil {
			return nil, "", err
		}
	}
	kind, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";")
	return text, types.MediaType(strings.TrimSpace(kind)), nil
}

func readAll(body io.ReadCloser) ([]byte, error) {
	defer body.Close()
	text, err := io.ReadAll(io.LimitReader(body, maxManifest+1))
	if err == nil && len(text) > maxManifest {
		err = fmt.Errorf("it has more than %d MiB", maxManifest>>20)
	}
	return text, err
}

// open gets a layer or a configuration.
func (r *repository) open(d v1.Descriptor) (io.ReadCloser, error) {
	resp, err := r.get("blobs/"+d.Digest.String(), "")
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// get asks for a path of the repository. Where the registry wants a token, one
// is fetched first, as anybody may.
func (r *repository) get(path, accept string) (*http.Response, error) {
	u := url.URL{Scheme: r.name.Scheme(), Host: r.name.RegistryStr(), Path: "/v2/" + r.name.RepositoryStr() + "/" + path}
	pause := registryPause
	for try := 1; ; try++ {
		resp, err := r.do(u.String(), accept)
		if err == nil && resp.StatusCode == http.StatusUnauthorized && r.token == "" {
			challenge := resp.Header.Get("WWW-Authenticate")
			resp.Body.Close()
			if err := r.fetchToken(challenge); err != nil {
				return nil, fmt.Errorf("get a token for reading: %w", err)
			}
			resp, err = r.do(u.String(), accept)
		}
		if err == nil && resp.StatusCode == http.StatusOK {
			return resp, nil
		}
		passing := err != nil
		if err == nil {
			passing = resp.StatusCode >= 500 || resp.StatusCode == http.StatusTooManyRequests
			err = refusal(resp)
		}
		if !passing || errors.Is(err, errPrivate) || try == registryTries || r.ctx.Err() != nil {
			return nil, err
		}
		select {
		case <-r.ctx.Done():
			return nil, errors.Join(context.Cause(r.ctx), err)
		case <-time.After(pause):
			pause *= 2
		}
	}
}

func (r *repository) do(url, accept string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(r.ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	if accept != "" {
		req.Header.Set("Accept", accept)
	}
	if r.token != "" {
		req.Header.Set("Authorization", "Bearer "+r.token)
	}
	return r.client.Do(req)
}

// refusal makes an error of an answer, with the registry's own words.
func refusal(resp *http.Response) error {
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 4096))
	if err != nil {
		text = nil
	}
	var body struct {
		Errors []struct{ Code, Message string }
	}
	what := resp.Status
	if json.Unmarshal(text, &body) == nil && len(body.Errors) > 0 {
		what += ": " + strings.TrimSpace(body.Errors[0].Code+" "+body.Errors[0].Message)
	}
	switch resp.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden:
		what += " (only what anybody may read is pulled, and there is no such image, or it is private)"
	case http.StatusNotFound:
		what += " (there is no such image)"
	}
	return fmt.Errorf("GET %s: %s", resp.Request.URL.Redacted(), what)
}

// fetchToken asks the token server that a challenge names (distribution-spec,
// token authentication) for what it gives to anybody.
func (r *repository) fetchToken(challenge string) error {
	scheme, rest, _ := strings.Cut(challenge, " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return fmt.Errorf("the registry wants %q; only what anybody may read is pulled", scheme)
	}
	fields := challengeFields(rest)
	at, err := url.Parse(fields["realm"])
	if err != nil || at.Host == "" || at.Scheme != "https" && at.Scheme != r.name.Scheme() {
		return fmt.Errorf("the registry's token server %q is not a URL of its own scheme", fields["realm"])
	}
	q := at.Query()
	if s := fields["service"]; s != "" {
		q.Set("service", s)
	}
	q.Set("scope", "repository:"+r.name.RepositoryStr()+":pull")
	at.RawQuery = q.Encode()
	resp, err := r.do(at.String(), "")
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return refusal(resp)
	}
	text, err := readAll(resp.Body)
	if err != nil {
		return err
	}
	var token struct {
		Token       string `json:"token"`
		AccessToken string `json:"access_token"`
	}
	if err := json.Unmarshal(text, &token); err != nil {
		return fmt.Errorf("the answer of %s: %w", at.Host, err)
	}
	if r.token = token.Token; r.token == "" {
		r.token = token.AccessToken
	}
	if r.token == "" {
		return fmt.Errorf("%s gave none", at.Host)
	}
	return nil
}

// challengeFields reads key="value" pairs with commas between (RFC 9110, section
// 11.2). A value may hold commas.
func challengeFields(s string) map[string]string {
	fields := map[string]string{}
	for s = strings.TrimLeft(s, " ,"); s != ""; s = strings.TrimLeft(s, " ,") {
		key, rest, ok := strings.Cut(s, "=")
		if !ok {
			break
		}
		var value string
		if quoted, isQuoted := strings.CutPrefix(rest, `"`); isQuoted {
			value, s, _ = strings.Cut(quoted, `"`)
		} else {
			value, s, _ = strings.Cut(rest, ",")
		}
		fields[strings.ToLower(strings.TrimSpace(key))] = value
	}
	return fields
}
