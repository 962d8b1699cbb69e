"""The folder that an import of a checkpoint fills, and what is left of it when the process of the import was killed.

An import writes all files into a folder of its own in the root of the store. That folder then takes the place of all files in one change
(``FileStore.replace_all``, FS-20). Up to that change the old files are there, all of them and untouched; from then on the new ones are.
The folder of an import that was killed stays. It is no part of the checkpoint, and the next owner of the checkpoint deletes it. A query
does not open a checkpoint that has nothing else: it would begin anew, although the imported one says how far the query had come.
"""

from __future__ import annotations

import re
import uuid
from typing import Any

_OF_AN_IMPORT = re.compile(r"/\.importing-[0-9a-f]{32}(?:/|$)")


def new_import() -> str:
    """The path of a folder for the files of one import."""
    return f"/.importing-{uuid.uuid4().hex}"


def is_of_import(path: str) -> bool:
    """True of such a folder and of all that is in it."""
    return _OF_AN_IMPORT.match(path) is not None


def unfinished_imports(files: Any) -> tuple[list[str], bool]:
    """The folders of imports in a FileStore or a view of one, and True if the store has something else, too."""
    paths = [one.path for one in files.listing("/")]
    left = [path for path in paths if is_of_import(path)]
    return left, len(left) < len(paths)


def delete_unfinished_imports(store: Any) -> list[str]:
    """Delete what unfinished imports left. The owner of the store calls it: no other import goes on while it is one. Returns the folders
    that were deleted."""
    left, _ = unfinished_imports(store)
    for path in left:
        store.delete(path, recursive=True)
    return left
