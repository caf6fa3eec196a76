// Package api holds the interface of Trellis: the protobuf definitions, and in
// its subfolders the Go code generated from them.
package api

//go:generate protoc -I . --go_out=.. --go_opt=module=trellis --connect-go_out=.. --connect-go_opt=module=trellis trellis/v1/vnet.proto trellis/v1/agent.proto
