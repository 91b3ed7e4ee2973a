# The commands of the README. Everything else is `cargo xtask`.
PREFIX ?= /usr/local
ADAMANT := $(or $(CARGO_TARGET_DIR),target)/release/adamant

.PHONY: up test soak bench clean install build

build:
	cargo build --release

up: ## a file system on ./mnt from nothing
	@sh contrib/check-machine.sh
	cargo build --release
	$(ADAMANT) up

test: ## all that CI runs
	cargo xtask ci

soak: ## what takes longer: an hour of simulation, the long tests with real processes
	cargo xtask soak

bench: ## the experiments, each with its yardstick
	cargo xtask bench

clean:
	cargo clean

install: BIN = $(abspath $(PREFIX))/bin
install: build ## the binary and the names that it answers to
	install -D -m 755 $(ADAMANT) $(BIN)/adamant
	$(BIN)/adamant install-links $(BIN)
	@for name in mount.adamant mount.fuse.adamant; do \
	if [ -w /sbin ]; then ln -sf $(BIN)/adamant /sbin/$$name; \
	else echo "for mount -t adamant and mount -o remount, as root: ln -sf $(BIN)/adamant /sbin/$$name"; fi; done
