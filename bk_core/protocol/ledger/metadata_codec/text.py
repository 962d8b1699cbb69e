"""Protobuf text: reads the fields of a message, and quotes bytes. Nesting and numbers are bounded."""

from __future__ import annotations

from bk_core.errors import MetadataFormatError
from bk_core.protocol.ledger.metadata_codec.fields import DIGITS, LETTERS

_ESCAPES = {0x08: r"\b", 0x09: r"\t", 0x0A: r"\n", 0x0C: r"\f", 0x0D: r"\r", 0x22: r"\"", 0x27: r"\'", 0x5C: r"\\"}
_UNESCAPES = {
    ord("a"): 7, ord("b"): 8, ord("f"): 12, ord("n"): 10, ord("r"): 13, ord("t"): 9, ord("v"): 11,
    ord("\\"): 0x5C, ord("'"): 0x27, ord('"'): 0x22, ord("?"): 0x3F,
}  # fmt: skip
_NESTING_MAX = 64
NUMBER_DIGITS_MAX = 30  # more than any number in range has, leading zeros aside
TextValue = bytes | str | list["TextField"]  # string literal, bare word or number, nested message
TextField = tuple[str, TextValue]
_SPACE = frozenset(b" \t\r\n\f\v")
_WORD = frozenset((LETTERS + LETTERS.upper() + DIGITS + "_.+-").encode())
_MARKS = frozenset(b"{}<>[]:;,")
_QUOTES = frozenset(b"\"'")
_OCTAL = frozenset(b"01234567")
_HEXADECIMAL = frozenset(b"0123456789abcdefABCDEF")


def quote_text(data: bytes) -> str:
    """Return ``data`` as a protobuf text literal, with bytes outside printable ASCII as octal (metadata.md 3.5)."""
    return '"' + "".join(_ESCAPES.get(byte) or (chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}") for byte in data) + '"'


def parse_text(data: bytes) -> list[TextField]:
    """Return the fields of a protobuf text message in their order, nested ones as lists. Raises MetadataFormatError if it is no such text.

    Comments, both kinds of quotes and brackets, adjacent literals, list notation and field separators are understood (metadata.md 3.7).
    """
    return _TextParser(data).message(end="", depth=0)


class _TextParser:
    __slots__ = ("_data", "_kind", "_offset", "_text")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._offset = 0
        self._kind = ""
        self._text = b""
        self._next()

    def message(self, end: str, depth: int) -> list[TextField]:
        if depth > _NESTING_MAX:
            raise MetadataFormatError(f"metadata text is nested deeper than {_NESTING_MAX}")
        fields: list[TextField] = []
        while not self._at(end):
            if self._kind != "word":
                raise self._error("a field name")
            name = self._text.decode()
            self._next()
            separated = self._skip(":")
            if self._at("["):
                fields.extend((name, value) for value in self._list(depth))
            else:
                fields.append((name, self._value(depth, separated)))
            if not self._skip(","):
                self._skip(";")
        if end:
            self._next()
        return fields

    def _list(self, depth: int) -> list[TextValue]:
        self._next()
        values: list[TextValue] = []
        while not self._at("]"):
            values.append(self._value(depth, separated=True))
            if not self._skip(",") and not self._at("]"):
                raise self._error('"," or "]"')
        self._next()
        return values

    def _value(self, depth: int, separated: bool) -> TextValue:
        for opening, closing in (("{", "}"), ("<", ">")):
            if self._skip(opening):
                return self.message(closing, depth + 1)
        if not separated:
            raise self._error('":"')
        if self._kind == "word":
            word = self._text.decode()
            self._next()
            return word
        if self._kind != "string":
            raise self._error("a value")
        parts: list[bytes] = []
        while self._kind == "string":
            parts.append(_unquote(self._text))
            self._next()
        return b"".join(parts)

    def _at(self, mark: str) -> bool:
        if not mark:
            return self._kind == "end"
        return self._kind == "mark" and self._text == mark.encode()

    def _skip(self, mark: str) -> bool:
        if self._at(mark):
            self._next()
            return True
        return False

    def _next(self) -> None:
        start = self._skip_space()
        if start == len(self._data):
            self._kind, end = "end", start
        elif (first := self._data[start]) in _QUOTES:
            self._kind, end = "string", self._end_of_string(start)
        elif first in _MARKS:
            self._kind, end = "mark", start + 1
        elif first in _WORD:
            self._kind, end = "word", _end_of_run(self._data, start, _WORD, len(self._data))
        else:
            raise MetadataFormatError(f"metadata text has an unexpected byte near byte {start}")
        self._text, self._offset = self._data[start:end], end

    def _skip_space(self) -> int:
        offset = self._offset
        while offset < len(self._data):
            if self._data[offset] == ord("#"):
                end = self._data.find(b"\n", offset)
                offset = len(self._data) if end < 0 else end
            elif self._data[offset] in _SPACE:
                offset += 1
            else:
                break
        return offset

    def _end_of_string(self, start: int) -> int:
        offset = start + 1
        while offset < len(self._data) and self._data[offset] != ord("\n"):
            if self._data[offset] == self._data[start]:
                return offset + 1
            offset += 2 if self._data[offset] == ord("\\") else 1
        raise MetadataFormatError(f"metadata text has a quoted text without an end near byte {start}")

    def _error(self, wanted: str) -> MetadataFormatError:
        return MetadataFormatError(f"metadata text lacks {wanted} near byte {self._offset}")


def _end_of_run(data: bytes, start: int, wanted: frozenset[int], end: int) -> int:
    while start < end and data[start] in wanted:
        start += 1
    return start


def _unquote(literal: bytes) -> bytes:
    """Return the content of a literal with its quotes. Escapes are one letter, one to three octal or one to two hexadecimal digits."""
    out = bytearray()
    offset, last = 1, len(literal) - 1
    while offset < last:
        if literal[offset] != ord("\\"):
            out.append(literal[offset])
            offset += 1
            continue
        digits = offset + 2 if literal[offset + 1] in b"xX" else offset + 1
        octal = digits == offset + 1
        end = _end_of_run(literal, digits, _OCTAL if octal else _HEXADECIMAL, min(digits + (3 if octal else 2), last))
        if end > digits:
            code, offset = int(literal[digits:end], 8 if octal else 16), end
        else:
            code, offset = _UNESCAPES.get(literal[offset + 1], -1), offset + 2
        if not 0 <= code <= 0xFF:
            raise MetadataFormatError("metadata text holds an unknown escape")
        out.append(code)
    return bytes(out)
