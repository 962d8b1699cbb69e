"""Paths of files: absolute, parts separated by '/', without a '/' at the end; the root is '/'."""

from __future__ import annotations

from bk_core.errors import InvalidPathError

ROOT = "/"
PART_MAX = 255  # bytes of UTF-8
PATH_MAX = 8000


def normal(path: str) -> str:
    """The normal form of ``path``: one '/' at the end is left out. InvalidPathError for what no file store takes (FS-1)."""
    if not isinstance(path, str):
        raise InvalidPathError(f"a path is text such as '/a/b', not {type(path).__name__}")
    if path == ROOT:
        return path
    if path[:1] != "/":
        raise InvalidPathError(f"path {shown(path)} is not absolute: begin it with '/'", path=path)
    kept = path[:-1] if path[-1] == "/" else path
    for part in kept[1:].split("/"):
        if part in ("", ".", "..") or len(part) > PART_MAX or not part.isascii() or "\0" in part:
            _check_part(part, path)
    if len(kept) * 4 > PATH_MAX and byte_length(kept) > PATH_MAX:
        raise InvalidPathError(f"path {shown(path)} has {byte_length(kept)} bytes in UTF-8; at most {PATH_MAX} are possible", path=path)
    return kept


def _check_part(part: str, path: str) -> None:
    if part in ("", ".", ".."):
        what = f"the part {part!r}" if part else "an empty part"
        raise InvalidPathError(f"path {shown(path)} has {what}: give it in normal form, such as '/a/b'", path=path)
    if "\0" in part:
        raise InvalidPathError(f"path {shown(path)} has a NUL character, which no path may have", path=path)
    try:
        size = byte_length(part)
    except UnicodeEncodeError:
        raise InvalidPathError(f"path {shown(path)} has half of a surrogate pair, which is no character", path=path) from None
    if size > PART_MAX:
        raise InvalidPathError(f"path {shown(path)} has a part of {size} bytes in UTF-8; at most {PART_MAX} are possible", path=path)


def byte_length(path: str) -> int:
    """Bytes of UTF-8."""
    return len(path) if path.isascii() else len(path.encode())


def parts(path: str) -> list[str]:
    """The parts of a normal path, outermost first; none of the root."""
    return path[1:].split("/") if path != ROOT else []


def parent(path: str) -> str:
    """The directory that a normal path lies in; the root lies in itself."""
    return path.rpartition("/")[0] or ROOT


def join(directory: str, name: str) -> str:
    return f"/{name}" if directory == ROOT else f"{directory}/{name}"


def is_below(path: str, directory: str) -> bool:
    """True of everything in ``directory`` at any depth, and not of the directory itself."""
    return path != directory and (directory == ROOT or path.startswith(directory + "/"))


def shown(path: str) -> str:
    """Return a path as error messages name it: quoted, and cut if it is long."""
    return repr(path) if len(path) <= 200 else f"{path[:160]!r}... ({len(path)} characters)"
