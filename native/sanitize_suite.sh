#!/bin/sh
# Runs a test suite with the compiled module of the kernels under the address and undefined-behaviour sanitizers, as Python loads it: in the
# tests' process and in all Python processes that they start. Arguments are pytest's; PYTHON names the interpreter. gcc only: Python itself
# is not sanitized, so the runtime is preloaded. Leaks are not looked for: CPython ends without freeing what it holds.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-$here/.venv/bin/python}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
(cd "$here" && git ls-files -z | xargs -0 tar -cf - | tar -xf - -C "$work")
cd "$work"
flags="-g -O1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer"
CFLAGS="$flags" LDFLAGS="$flags" "$python" -c "from setuptools import setup; setup()" -q build_ext --inplace --build-temp "$work/build"
preloaded=$(gcc -print-file-name=libasan.so):$(gcc -print-file-name=libubsan.so)
# A JVM raises and handles SIGSEGV on its own.
LD_PRELOAD="$preloaded" ASAN_OPTIONS="detect_leaks=0:handle_segv=0:abort_on_error=1" UBSAN_OPTIONS="print_stacktrace=1" \
    BK_TEST_FORCE="${BK_TEST_FORCE:-}" PYTHONPATH="$work" "$python" -m pytest -q -p no:cacheprovider "$@"
