"""How setuptools builds the extension (pyproject.toml): with the compiler's and the linker's defences, as far as they know them."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from setuptools import Extension
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError, LinkError

COMPILER = (("-fstack-protector-strong",), ("-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2"))
LINKER = (("-Wl,-z,relro",), ("-Wl,-z,now",), ("-Wl,-z,noexecstack",))
PROBE = "#include <string.h>\nint bk_probe(char *to, const char *from) { char text[64]; strcpy(text, from); return *strcpy(to, text); }\n"


class HardenedBuild(build_ext):
    def build_extension(self, ext: Extension) -> None:
        fits = [flags for flags in COMPILER if not self._clashes(flags) and self._knows(list(flags), [])]
        links = [flags for flags in LINKER if self._knows([], list(flags))]
        ext.extra_compile_args = [*ext.extra_compile_args, *(flag for flags in fits for flag in flags)]
        ext.extra_link_args = [*ext.extra_link_args, *(flag for flags in links for flag in flags)]
        super().build_extension(ext)

    def _clashes(self, flags: tuple[str, ...]) -> bool:
        """A sanitizer looks at the calls that fortified ones would replace."""
        return "-D_FORTIFY_SOURCE=2" in flags and "-fsanitize" in os.environ.get("CFLAGS", "")

    def _knows(self, compile_args: list[str], link_args: list[str]) -> bool:
        if sys.platform == "win32":
            return False
        with tempfile.TemporaryDirectory() as work:
            source = Path(work, "probe.c")
            source.write_text(PROBE)
            try:
                objects = self.compiler.compile([str(source)], output_dir=work, extra_postargs=["-Werror", *compile_args])
                self.compiler.link_shared_object(objects, str(Path(work, "probe.so")), extra_postargs=[*compile_args, *link_args])
            except (CompileError, LinkError):
                return False
        return True
