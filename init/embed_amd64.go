package nodeinit

import _ "embed"

// Binary is the static executable of this architecture.
//
//go:embed init_amd64
var Binary []byte
