# `make` lists the targets. Everything here works from a clean clone.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# A toolchain that scripts/install has unpacked comes first.
export PATH := $(CURDIR)/.tools/go/bin:$(PATH)
# One setting for everything, so that nothing is compiled twice. Without cgo the
# binary runs on any distribution; its version comes from VERSION below.
export CGO_ENABLED := 0
export GOFLAGS := -trimpath -buildvcs=false

# sudo make, in a clone that belongs to somebody else, is fine.
GIT := git -c safe.directory='*'
PREFIX ?= /usr/local
# Where this is not a clone, the version is unknown.
VERSION = $(shell $(GIT) describe --tags --always --dirty 2>/dev/null || echo unknown)
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2

# What needs root goes through sudo where make does not run as root.
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)

## help: list the targets
help:
	@sed -n 's/^## \([a-z-]*\): /\1\t/p' Makefile | sort | expand -t 18

## deps: install what is missing to build and run
deps:
	@scripts/install

## deps-test: install what is missing for the tests as well
deps-test:
	@scripts/install test
	@[ "$$(id -u)" != 0 ] || scripts/debian13-image

## build: build bin/trellis
build:
	@mkdir -p bin
	go build -ldflags "-s -w -X trellis/internal/cli.Version=$(VERSION)" -o bin/trellis ./cmd/trellis

## install: install the program and its systemd unit below PREFIX (/usr/local)
install: build
	install -D -m 755 bin/trellis $(DESTDIR)$(PREFIX)/bin/trellis
	sed "s|/usr/local/bin/trellis|$(PREFIX)/bin/trellis|g" packaging/systemd/trellis.service \
		| install -D -m 644 /dev/stdin $(DESTDIR)$(PREFIX)/lib/systemd/system/trellis.service

## demo: install, build, and bring up the Abilene network
demo: deps build
	@$(SUDO) scripts/demo

## check: what to run before a commit: format, vet, import rules, tests without root
check: vet
	@TRELLIS_TEST_UNPRIVILEGED=1 go test -timeout 5m ./... | grep -v 'no test files'

## test: the whole suite; as root, privileged tests too
test:
	@MAKE='$(MAKE)' scripts/test

## test-qemu: networks and EGRE under Debian 12's own kernels, in a virtual machine
test-qemu:
	@scripts/install test qemu
	$(SUDO) env "PATH=$$PATH" TRELLIS_QEMU=1 go test -count=1 -timeout 3h ./test/qemu

## test-debian13: the whole suite in a root of Debian 13, on this kernel
test-debian13:
	@scripts/install test
	$(SUDO) scripts/test-debian13

## soak: what takes long: the fast path against the stack, SOAK_CASES (1000000), and rates
SOAK_CASES ?= 1000000
soak: deps-test
	$(SUDO) env "PATH=$$PATH" TRELLIS_EQUAL_CASES=$(SOAK_CASES) go test -count=1 -timeout 6h -v -run 'TestEqual$$' ./test/equal
	$(SUDO) env "PATH=$$PATH" TRELLIS_RATES=all go test -count=1 -timeout 1h -v -run 'Rate' ./internal/substrate/dataplane

## attack: try on this machine what a hostile node can take from it and from others
attack: build
	$(SUDO) bin/trellis bench attack

## lint: formatting, vet, staticcheck, import rules
lint: vet
	go run $(STATICCHECK) ./...
	go test -count=1 ./test/imports

# Formatting, vet, and go.mod as `go mod tidy` leaves it.
vet:
	@unformatted=$$(gofmt -l $$($(GIT) ls-files -co --exclude-standard '*.go')); \
		[ -z "$$unformatted" ] || { echo "not formatted (gofmt -w): $$unformatted"; exit 1; }
	go vet ./...
	go mod tidy -diff

## generate: make the generated files (API, BPF objects, init)
generate:
	@scripts/generate

## check-generated: check that the generated files are current
check-generated:
	@scripts/generate check

## fuzz: every fuzz target for FUZZTIME (30s)
FUZZTIME ?= 30s
fuzz:
	@go list -f '{{.Dir}}' ./... | while read -r dir; do \
		sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' $$dir/*_test.go 2>/dev/null | while read -r target; do \
			echo "$$dir $$target"; \
			(cd "$$dir" && go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) .) </dev/null; \
		done; \
	done

## clean: remove what was built here
clean:
	rm -rf bin dist .tools

.PHONY: help deps deps-test build install demo check vet test test-qemu test-debian13 soak attack lint generate check-generated fuzz clean
