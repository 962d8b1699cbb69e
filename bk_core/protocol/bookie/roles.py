"""The role of a client as its certificate tells it, for bookies that admit by role (wire-protocol.md 10.4)."""

from __future__ import annotations

_CODE_OF_ROLES = "0"


def role_of(unit: str | None) -> str:
    """Return the first role in the first organizational unit of a certificate's subject, "" for none.

    >>> role_of("0:writer,reader;1:cluster-a")
    'writer'
    """
    codes: dict[str, str] = {}
    for part in (unit or "").split(";"):
        code, colon, names = part.partition(":")
        if colon and code.isascii() and code.isdecimal():
            codes[code] = names.strip()
    return codes.get(_CODE_OF_ROLES, "").split(",")[0].strip()
