#!/bin/sh
# Compiles the plain C (everything but module.c) with its self-test under the address and undefined-behaviour sanitizers, and runs it.
# CC chooses the compiler. Nothing is left behind.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
${CC:-cc} -std=c11 -g -O1 -Wall -Wextra -Werror -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer \
    -I"$here" "$here/crc32c.c" "$here/digest.c" "$here/frames.c" "$here/entries.c" "$here/runs.c" "$here/lanes.c" "$here/v3.c" \
    "$here/fuzz/fuzz_kernels.c" "$here/../tests/kernels/sanitize_main.c" -o "$work/sanitize"
"$work/sanitize"
