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
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// source holds the blobs of an image. What it gives is compared with the
// descriptor by whoever reads it.
type source interface {
	open(d v1.Descriptor) (io.ReadCloser, error)
}

// maxDepth is how deep image indexes may hold one another.
const maxDepth = 3

var errDepth = fmt.Errorf("image indexes that hold image indexes, more than %d deep", maxDepth)

func wrongSize(d v1.Descriptor, have int64) error {
	return fmt.Errorf("blob %s has %d bytes, and the image says %d; get the image anew", d.Digest, have, d.Size)
}

func wrongContent(what string, want, have string) error {
	return fmt.Errorf("%s %s is not what it is called: what is there has the digest sha256:%s; get the image anew", what, want, have)
}

// compare holds a blob to its descriptor.
func compare(d v1.Descriptor, content []byte) error {
	if d.Digest.Algorithm != "sha256" {
		return fmt.Errorf("the digest %s: only sha256 is supported", d.Digest)
	}
	sum := sha256.Sum256(content)
	if have := hex.EncodeToString(sum[:]); have != d.Digest.Hex {
		return wrongContent("blob", d.Digest.String(), have)
	}
	if int64(len(content)) != d.Size {
		return wrongSize(d, int64(len(content)))
	}
	return nil
}

// small gives a manifest, an index or a configuration, once it is known to be what
// its descriptor says.
func small(src source, d v1.Descriptor) ([]byte, error) {
	if d.Size > maxManifest {
		return nil, fmt.Errorf("blob %s: a manifest or configuration of more than %d MiB", d.Digest, maxManifest>>20)
	}
	r, err := src.open(d)
	if err != nil {
		return nil, err
	}
	text, err := readAll(r)
	if err != nil {
		return nil, fmt.Errorf("read blob %s: %w", d.Digest, err)
	}
	return text, compare(d, text)
}

func parseManifest(text []byte) (*v1.Manifest, error) {
	m, err := v1.ParseManifest(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("read the image's manifest: %w", err)
	}
	return m, nil
}

// choose finds the image for this machine in an index, by verified descriptors.
func choose(src source, text []byte, depth int) (*v1.Manifest, error) {
	var index v1.IndexManifest
	if err := json.Unmarshal(text, &index); err != nil {
		return nil, fmt.Errorf("read the image index: %w", err)
	}
	found := forPlatform(&index)
	if len(found) != 1 {
		return nil, fmt.Errorf("it holds %d images for %s; it must hold one", len(found), platform)
	}
	inner, err := small(src, found[0])
	switch {
	case err != nil:
		return nil, err
	case !found[0].MediaType.IsIndex():
		return parseManifest(inner)
	case depth >= maxDepth:
		return nil, errDepth
	}
	return choose(src, inner, depth+1)
}

// forPlatform gives what an index has for this machine: images or indexes.
func forPlatform(index *v1.IndexManifest) []v1.Descriptor {
	var found []v1.Descriptor
	for _, d := range index.Manifests {
		if d.Platform == nil || d.Platform.Satisfies(platform) {
			found = append(found, d)
		}
	}
	return found
}

// maxLayers is how many layers an image may have; other tools stop at 127.
const maxLayers = 512

// layer is a layer of an image whose digests are known.
type layer struct {
	v1.Descriptor
	diffID v1.Hash // of it unpacked
}

// imageKey begins the keys of images. The rest is the digest of the configuration,
// which holds the digests of all layers unpacked, and all that is known of how to
// run the image: so one content has one key, however it is packed.
const imageKey = "image-"

// unpack makes the image of a manifest ready.
func (c *Cache) unpack(ctx context.Context, ref string, src source, m *v1.Manifest) (*Image, error) {
	text, err := small(src, m.Config)
	if err != nil {
		return nil, fmt.Errorf("the image's configuration: %w", err)
	}
	file, layers, err := describe(text, m.Layers)
	if err != nil {
		return nil, err
	}
	return c.unpackLayers(ctx, ref, src, m.Config.Digest, file, layers)
}

// describe reads a configuration, and gives the layers with all their digests.
func describe(text []byte, blobs []v1.Descriptor) (*v1.ConfigFile, []layer, error) {
	file, err := v1.ParseConfigFile(bytes.NewReader(text))
	if err != nil {
		return nil, nil, fmt.Errorf("read the image's configuration: %w", err)
	}
	if file.Architecture != "" && file.Architecture != platform.Architecture || file.OS != "" && file.OS != platform.OS {
		return nil, nil, fmt.Errorf("it was made for %s/%s, and this machine is %s", file.OS, file.Architecture, platform)
	}
	if len(file.RootFS.DiffIDs) != len(blobs) {
		return nil, nil, fmt.Errorf("its manifest has %d layers, and its configuration %d; get the image anew", len(blobs), len(file.RootFS.DiffIDs))
	}
	if len(blobs) > maxLayers {
		return nil, nil, fmt.Errorf("it has %d layers; %d are possible", len(blobs), maxLayers)
	}
	layers := make([]layer, len(blobs))
	for i, d := range blobs {
		layers[i] = layer{d, file.RootFS.DiffIDs[i]}
		if layers[i].diffID.Algorithm != "sha256" || d.Digest.Algorithm != "sha256" {
			return nil, nil, fmt.Errorf("the digests %s and %s: only sha256 is supported", d.Digest, layers[i].diffID)
		}
	}
	return file, layers, nil
}

func (c *Cache) unpackLayers(ctx context.Context, ref string, src source, config v1.Hash, file *v1.ConfigFile, layers []layer) (*Image, error) {
	return c.add(ctx, imageKey+config.Hex, ref, func(w *work) (*Image, error) {
		files, err := w.fetchAll(ctx, src, layers)
		defer func() {
			for _, f := range files {
				f.Close()
			}
		}()
		if err != nil {
			return nil, err
		}
		x, err := newExtractor(w)
		if err != nil {
			return nil, err
		}
		defer x.close()
		for i, l := range layers {
			if err := x.layer(ctx, files[i], l, i == 0); err != nil {
				return nil, fmt.Errorf("layer %s: %w", l.Digest, err)
			}
		}
		img := &Image{Entrypoint: file.Config.Entrypoint, Cmd: file.Config.Cmd, Env: file.Config.Env, WorkingDir: file.Config.WorkingDir}
		img.UID, img.GID, err = user(w.rootfs(), file.Config.User)
		return img, err
	})
}

// fetchAll gives the layers as files that are what their descriptors say: all of
// them, before anything is extracted.
func (w *work) fetchAll(ctx context.Context, src source, layers []layer) (files []*os.File, err error) {
	for i, l := range layers {
		f, err := w.fetchBlob(ctx, src, l.Descriptor, fmt.Sprintf("layer %d of %d", i+1, len(layers)))
		if err != nil {
			return files, err
		}
		files = append(files, f)
	}
	return files, nil
}

// fetchBlob gives a blob as a file. One that lies on this machine is read where it
// is: and so once more, when it is used.
func (w *work) fetchBlob(ctx context.Context, src source, d v1.Descriptor, what string) (_ *os.File, err error) {
	r, err := src.open(d)
	if err != nil {
		return nil, err
	}
	f, local := r.(*os.File)
	if local {
		r = io.NopCloser(f)
	} else if f, err = os.CreateTemp(filepath.Join(w.dir, "blobs"), ""); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	defer func() {
		err = errors.Join(err, r.Close())
		if err != nil {
			f.Close()
		}
	}()
	v := &verified{body: r, sum: sha256.New(), want: d}
	buffer := make([]byte, 256<<10)
	for ctx.Err() == nil {
		n, err := v.Read(buffer)
		if n > 0 && !local {
			if err := w.fetch(int64(n)); err != nil {
				return nil, err
			}
			if _, err := f.Write(buffer[:n]); err != nil {
				return nil, err
			}
			w.say(fmt.Sprintf("fetched %s of %s, %s", size(v.read), size(d.Size), what))
		}
		if errors.Is(err, io.EOF) {
			_, err = f.Seek(0, io.SeekStart)
			return f, err
		}
		if err != nil {
			return nil, err
		}
	}
	return nil, ctx.Err()
}

// layer extracts a layer over the ones before.
func (x *extractor) layer(ctx context.Context, f *os.File, l layer, lowest bool) error {
	blob := &verified{body: io.NopCloser(f), sum: sha256.New(), want: l.Descriptor}
	ahead := readAhead(func() (io.ReadCloser, error) { return decompress(blob) })
	defer ahead.Close()
	sum := sha256.New()
	unpacked := &stream{r: ahead, w: x.w, ctx: ctx, sum: sum}
	if err := x.extract(ctx, unpacked, true, lowest); err != nil {
		return err
	}
	// What follows the archive's end counts for the digests, too.
	if _, err := io.Copy(io.Discard, unpacked); err != nil {
		return err
	}
	if have := hex.EncodeToString(sum.Sum(nil)); have != l.diffID.Hex {
		return wrongContent("unpacked, layer", l.diffID.String(), have)
	}
	return nil
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
	if v.read > v.want.Size {
		// Read on a little, to say what it is instead.
		if _, e := io.CopyN(v.sum, v.body, 64<<20); errors.Is(err, io.EOF) || errors.Is(e, io.EOF) {
			return n, wrongContent("blob", v.want.Digest.String(), hex.EncodeToString(v.sum.Sum(nil)))
		}
		return n, fmt.Errorf("blob %s has more than the %d bytes that the image says; get the image anew", v.want.Digest, v.want.Size)
	}
	if errors.Is(err, io.EOF) {
		if have := hex.EncodeToString(v.sum.Sum(nil)); have != v.want.Digest.Hex {
			return n, wrongContent("blob", v.want.Digest.String(), have)
		}
		if v.read != v.want.Size {
			return n, wrongSize(v.want, v.read)
		}
	}
	return n, err
}

func (v *verified) Close() error { return v.body.Close() }
