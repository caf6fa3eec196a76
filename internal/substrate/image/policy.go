package image

import (
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"golang.org/x/sys/unix"
)

// Policy says which images nodes may have, and what these may take. The zero value
// is what a service without a word about images goes by.
type Policy struct {
	// Directories are those below which images of this machine may lie; nil: anywhere,
	// as far as everybody on the machine may read them.
	Directories []string
	// Registries are those that may be asked, as HOST[:PORT]; nil: any that is reached
	// by HTTPS at a public address.
	Registries []string
	Cache      int64         // bytes that extracted images may take; 0: see complete
	Size       int64         // bytes that one may take; 0: DefaultSize
	Files      int           // that one may hold; 0: DefaultFiles
	Time       time.Duration // in which one must be ready; 0: DefaultTime
}

// Defaults of a policy.
const (
	DefaultSize  = 8 << 30
	DefaultFiles = 500_000
	DefaultTime  = 10 * time.Minute
	mostCache    = 64 << 30
)

// complete fills in the defaults: the cache may have a quarter of its file system,
// and no more than mostCache.
func (p Policy) complete(dir string) (Policy, error) {
	if p.Cache == 0 {
		var st unix.Statfs_t
		if err := unix.Statfs(dir, &st); err != nil {
			return p, fmt.Errorf("look at the file system of the image cache: %w", err)
		}
		p.Cache = min(int64(st.Blocks)*st.Bsize/4, mostCache)
	}
	if p.Size == 0 {
		p.Size = min(DefaultSize, p.Cache)
	}
	if p.Files == 0 {
		p.Files = DefaultFiles
	}
	if p.Time == 0 {
		p.Time = DefaultTime
	}
	for i, d := range p.Directories {
		p.Directories[i] = filepath.Clean(d)
	}
	return p, nil
}

// checkRegistry refuses registries that the configuration does not name.
func (p *Policy) checkRegistry(r name.Repository) error {
	if p.names(r) {
		return nil
	}
	host := registryName(r.RegistryStr())
	if p.Registries != nil {
		return fmt.Errorf("the registry %s is not among images: {registries: …} in the service's configuration; name it there, or use a local archive", host)
	}
	if r.Scheme() != "https" {
		return fmt.Errorf("the registry %s is a private one, reached without TLS; name it in images: {registries: [%s]} in the service's configuration", host, host)
	}
	return nil
}

// names reports whether the configuration names the registry; a name without a port
// is about all of them.
func (p *Policy) names(r name.Repository) bool {
	want := registryName(r.RegistryStr())
	host, _, err := net.SplitHostPort(want)
	return slices.ContainsFunc(p.Registries, func(have string) bool {
		return registryName(have) == want || err == nil && have == host
	})
}

// registryName gives the one name of a registry that has several.
func registryName(host string) string {
	switch host {
	case "index.docker.io", "registry-1.docker.io":
		return "docker.io"
	}
	return host
}
