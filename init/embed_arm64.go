package nodeinit

import _ "embed"

// Binary is the static executable of this architecture.
//
//go:embed init_arm64
var Binary []byte
