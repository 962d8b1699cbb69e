#!/bin/sh
# Runs a test suite with the compiled module of the kernels under the address and undefined-behaviour sanitizers, as Python loads it: in the
# tests' process and in all Python processes that they start. Arguments are pytest's; PYTHON names the interpreter. gcc only.
# Leaks are not looked for: CPython ends without freeing what it holds.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-$here/.venv/bin/python}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
(cd "$here" && git ls-files -z | xargs -0 tar -cf - | tar -xf - -C "$work")
cd "$work"
flags="-g -O1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer"
CFLAGS="$flags" LDFLAGS="$flags" "$python" -c "from setuptools import setup; setup()" -q build_ext --inplace --build-temp "$work/build"
# The runtime is preloaded into Python and into nothing that it starts: a JVM or ps would not bear it. Its Python children begin as it did.
preloaded=$(gcc -print-file-name=libasan.so):$(gcc -print-file-name=libubsan.so)
mkdir "$work/sanitized"
printf '#!/bin/sh\nLD_PRELOAD="%s" exec "%s" "$@"\n' "$preloaded" "$python" > "$work/sanitized/python"
chmod +x "$work/sanitized/python"
cat > "$work/sanitized/sitecustomize.py" << 'END'
import os
import sys

os.environ.pop("LD_PRELOAD", None)
sys.executable = os.environ["PYSPARK_PYTHON"]
END
# Faults that Python itself handles (a bad read of mapped memory in a test) are its own; everything the sanitizers say ends the process.
ASAN_OPTIONS="detect_leaks=0:handle_segv=0:abort_on_error=1" UBSAN_OPTIONS="print_stacktrace=1" PYSPARK_PYTHON="$work/sanitized/python" \
    PYTHONPATH="$work/sanitized:$work" "$work/sanitized/python" -m pytest -q -p no:cacheprovider "$@"
