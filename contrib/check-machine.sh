#!/bin/sh
# Checks for what `make up` needs before anything is compiled: a Rust toolchain, a C compiler, FUSE. If root runs it on a machine with
# apt-get, it installs missing packages; otherwise it names everything that is missing, and exits with status 1.

has() { command -v "$1" >/dev/null 2>&1; }

packages=
missing=
root=$([ "$(id -u)" = 0 ] && echo yes)

has cc || has gcc || has clang || packages="$packages build-essential"
# Root mounts without fusermount3.
[ "$root" ] || has fusermount3 || packages="$packages fuse3"

if [ "$packages" ] && [ "$root" ] && has apt-get; then
    echo "installing:$packages"
    DEBIAN_FRONTEND=noninteractive
    export DEBIAN_FRONTEND
    # shellcheck disable=SC2086 # a list of packages
    apt-get update -qq && apt-get install -y -qq --no-install-recommends $packages && packages=
fi
[ "$packages" ] && missing="$missing
  packages (by Debian's names): as root, apt-get install$packages"
has cargo || missing="$missing
  Rust: see https://rustup.rs"
if [ ! -e /dev/fuse ]; then
    missing="$missing
  /dev/fuse: as root, modprobe fuse; for a container, --device /dev/fuse --cap-add SYS_ADMIN"
elif [ ! -r /dev/fuse ] || [ ! -w /dev/fuse ]; then
    missing="$missing
  the right to use /dev/fuse: as root, chmod 666 /dev/fuse"
fi

if [ "$missing" ]; then
    echo "this machine lacks:$missing" >&2
    exit 1
fi
