#!/bin/sh
# make demo: see Plimsoll work.
set -eu
cd "$(dirname "$0")/.."
exec build/release/plimsoll version
