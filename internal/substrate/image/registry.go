package image

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	v1partial "github.com/google/go-containerregistry/pkg/v1/partial"
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

// openRepository opens the repository of a reference for one pull.
func openRepository(ctx context.Context, of name.Repository) *repository {
	return &repository{ctx: ctx, name: of, client: &http.Client{Transport: &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
		TLSHandshakeTimeout:   10 * time.Second,
		ResponseHeaderTimeout: 30 * time.Second,
		ForceAttemptHTTP2:     true,
	}}}
}

// close lets connections go. What is being read ends.
func (r *repository) close() { r.client.CloseIdleConnections() }

// image finds the image of a tag or digest, for this machine.
func (r *repository) image(ref name.Reference) (v1.Image, error) {
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
		if depth > 3 {
			return nil, errors.New("image indexes that hold image indexes, more than three deep")
		}
		// Several are variants of the processor, the plain one first.
		if text, kind, err = r.manifest(found[0].Digest.String()); err != nil {
			return nil, err
		}
	}
	if !kind.IsImage() {
		return nil, fmt.Errorf("it is a %q, and no image", kind)
	}
	manifest, err := v1.ParseManifest(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("read the image's manifest: %w", err)
	}
	return v1partial.CompressedToImage(&remoteImage{r, text, kind, manifest})
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
		if sum := sha256.Sum256(text); want.Algorithm != "sha256" || want.Hex != hex.EncodeToString(sum[:]) {
			return nil, "", fmt.Errorf("the registry sent something else than the manifest %s", id)
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

// blob gets a layer or a configuration. Reading it to its end fails where its
// digest or its size is another than the descriptor's.
func (r *repository) blob(d v1.Descriptor) (io.ReadCloser, error) {
	if d.Digest.Algorithm != "sha256" {
		return nil, fmt.Errorf("the digest %s: only sha256 is supported", d.Digest)
	}
	resp, err := r.get("blobs/"+d.Digest.String(), "")
	if err != nil {
		return nil, err
	}
	return &verified{body: resp.Body, sum: sha256.New(), want: d}, nil
}

// verified is a blob that is compared with its descriptor while it is read.
type verified struct {
	body io.ReadCloser
	sum  hash.Hash
	read int64
	want v1.Descriptor
}

func (v *verified) Read(b []byte) (int, error) {
	n, err := v.body.Read(b)
	v.sum.Write(b[:n])
	v.read += int64(n)
	switch {
	case v.read > v.want.Size, errors.Is(err, io.EOF) && v.read != v.want.Size:
		return n, fmt.Errorf("the registry sent another number of bytes than the %d of %s", v.want.Size, v.want.Digest)
	case errors.Is(err, io.EOF) && hex.EncodeToString(v.sum.Sum(nil)) != v.want.Digest.Hex:
		return n, fmt.Errorf("the registry sent something else than %s", v.want.Digest)
	}
	return n, err
}

func (v *verified) Close() error { return v.body.Close() }

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
		if !passing || try == registryTries || r.ctx.Err() != nil {
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

// remoteImage is an image in a registry; v1partial makes a v1.Image of it.
type remoteImage struct {
	repository *repository
	text       []byte // of the manifest
	kind       types.MediaType
	manifest   *v1.Manifest
}

func (i *remoteImage) MediaType() (types.MediaType, error) { return i.kind, nil }
func (i *remoteImage) RawManifest() ([]byte, error)        { return i.text, nil }

func (i *remoteImage) RawConfigFile() ([]byte, error) {
	body, err := i.repository.blob(i.manifest.Config)
	if err != nil {
		return nil, err
	}
	return readAll(body)
}

func (i *remoteImage) LayerByDigest(h v1.Hash) (v1partial.CompressedLayer, error) {
	for _, d := range i.manifest.Layers {
		if d.Digest == h {
			return &remoteLayer{i.repository, d}, nil
		}
	}
	return nil, fmt.Errorf("the image has no layer %s", h)
}

// remoteLayer is a layer in a registry.
type remoteLayer struct {
	repository *repository
	descriptor v1.Descriptor
}

func (l *remoteLayer) Digest() (v1.Hash, error)            { return l.descriptor.Digest, nil }
func (l *remoteLayer) Size() (int64, error)                { return l.descriptor.Size, nil }
func (l *remoteLayer) MediaType() (types.MediaType, error) { return l.descriptor.MediaType, nil }
func (l *remoteLayer) Compressed() (io.ReadCloser, error)  { return l.repository.blob(l.descriptor) }
