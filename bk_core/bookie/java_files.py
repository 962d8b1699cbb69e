"""Paths for programs of Java: in their properties files, and in the encoding that they take names of files for."""

from __future__ import annotations

from pathlib import Path


def java_value(text: str) -> str:
    """Return a text as a value of a properties file of Java, which is read as ISO-8859-1 and in which a backslash escapes."""
    units = text.encode("utf-16-be", "surrogatepass")
    codes = [int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2)]
    escaped = "".join(chr(code) if " " <= chr(code) <= "~" and chr(code) != "\\" else f"\\u{code:04x}" for code in codes)
    return "\\u0020" + escaped[1:] if escaped.startswith(" ") else escaped


def java_environment(path: Path) -> dict[str, str]:
    """Return the variables with which Java finds ``path``: in a locale without UTF-8 it knows no other letters than those of ASCII."""
    return {} if str(path).isascii() else {"LC_ALL": "C.UTF-8"}
