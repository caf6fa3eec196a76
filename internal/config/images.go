package config

import (
	"path/filepath"
	"regexp"
	"time"

	"go.yaml.in/yaml/v3"

	"trellis/internal/vnet"
)

// Images says which images descriptions may name, and what these may take. Zero
// values leave it to the service.
type Images struct {
	Directories []string // absolute paths; nil: anywhere, as far as everybody may read it
	Registries  []string // HOST[:PORT]; nil: any public one
	Cache       int64    // bytes that extracted images may take
	Size        int64    // bytes that one may take
	Files       int      // that one may hold
	Time        time.Duration
}

// Bounds of what one image may be given.
const (
	minImageSize = 1 << 20
	maxImageSize = 1 << 50
	maxFiles     = 1 << 31
	maxImageTime = 24 * time.Hour
)

var registryPattern = regexp.MustCompile(`^(([A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?\.)*[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?|\[[0-9a-fA-F:]+\])(:[0-9]{1,5})?$`)

func (r *reader) images(n *yaml.Node) {
	i := &r.c.Images
	size := func(to *int64, what string) func(*yaml.Node) {
		return func(n *yaml.Node) {
			v, err := vnet.ParseSize(n.Value)
			switch {
			case err != nil:
				r.fail(n, "%s: %v", what, err)
			case v < minImageSize || v > maxImageSize:
				r.fail(n, "%s is %q; write a size of at least 1MiB", what, n.Value)
			}
			*to = v
		}
	}
	r.mapping(n, "images", map[string]func(*yaml.Node){
		"directories": r.imageDirectories,
		"registries":  r.registries,
		"cache":       size(&i.Cache, "images.cache"),
		"size":        size(&i.Size, "images.size"),
		"files": func(n *yaml.Node) {
			v, ok := r.Integer(n, "images.files", 1, maxFiles)
			if ok {
				i.Files = int(v)
			}
		},
		"time": func(n *yaml.Node) {
			d, err := time.ParseDuration(n.Value)
			if err != nil || d < time.Second || d > maxImageTime {
				r.fail(n, "images.time is %q; write a time of 1s to 24h, like 10m", n.Value)
			}
			i.Time = d
		},
	})
	if i.Cache != 0 && i.Size > i.Cache {
		r.fail(n, "images.size is larger than images.cache, which no image of that size fits into; raise images.cache")
	}
}

// imageDirectories reads a list that may be empty: no image of this machine then.
func (r *reader) imageDirectories(n *yaml.Node) {
	r.c.Images.Directories = []string{}
	for _, e := range r.list(n, "images.directories") {
		dir, ok := r.word(e, "images.directories")
		switch {
		case !ok:
			continue
		case !filepath.IsAbs(dir):
			r.fail(e, "images.directories: %q is no absolute path; write the whole of it", dir)
		case filepath.Clean(dir) == "/":
			r.fail(e, "images.directories: / is the machine itself; name a directory that holds images and nothing else")
		default:
			r.c.Images.Directories = append(r.c.Images.Directories, filepath.Clean(dir))
		}
	}
}

// registries reads a list that may be empty: no registry is asked then.
func (r *reader) registries(n *yaml.Node) {
	r.c.Images.Registries = []string{}
	for _, e := range r.list(n, "images.registries") {
		host, ok := r.word(e, "images.registries")
		if !ok {
			continue
		}
		if !registryPattern.MatchString(host) {
			r.fail(e, "images.registries: %q is no registry; write HOST or HOST:PORT, like docker.io", host)
			continue
		}
		r.c.Images.Registries = append(r.c.Images.Registries, host)
	}
}
