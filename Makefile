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

# As root it takes what the user has built, and builds only what is not there: root's compiler may be another, or none.
$(ADAMANT):
	cargo build --release

install: BIN = $(abspath $(PREFIX))/bin
install: SHARE = $(abspath $(PREFIX))/share
install: $(ADAMANT) ## the binary and the names that it answers to, man pages, completions, the systemd unit
	install -D -m 755 $(ADAMANT) $(BIN)/adamant
	$(BIN)/adamant install-links $(BIN)
	install -d $(SHARE)/man/man1 $(SHARE)/bash-completion/completions $(SHARE)/zsh/site-functions $(SHARE)/fish/vendor_completions.d
	$(BIN)/adamant man $(SHARE)/man/man1
	$(BIN)/adamant completions bash --dir $(SHARE)/bash-completion/completions
	$(BIN)/adamant completions zsh --dir $(SHARE)/zsh/site-functions
	$(BIN)/adamant completions fish --dir $(SHARE)/fish/vendor_completions.d
	install -d $(abspath $(PREFIX))/lib/systemd/system
	sed 's|/usr/local/bin/|$(BIN)/|' contrib/adamant@.service > $(abspath $(PREFIX))/lib/systemd/system/adamant@.service
	@for name in mount.adamant mount.fuse.adamant; do \
	if [ -w /sbin ]; then ln -sf $(BIN)/adamant /sbin/$$name; \
	else echo "for mount -t adamant and mount -o remount, as root: ln -sf $(BIN)/adamant /sbin/$$name"; fi; done
