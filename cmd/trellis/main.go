// Command trellis hosts virtual networks on Linux machines: one binary for the
// service and for every verb that talks to it.
package main

import (
	"os"

	"trellis/internal/cli"
)

func main() { os.Exit(cli.Main(os.Args[1:])) }
