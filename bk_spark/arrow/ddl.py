"""Parses the part of Spark's DDL that names columns of a log: ``id BIGINT, tags ARRAY<STRING> COMMENT 'of the flight'``. Pure.

It agrees with Spark's own parser in what it takes (a test compares them) and refuses the rest. ``NOT NULL`` is refused, because all
columns of a log are nullable.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

import pyarrow as pa

from bk_core.errors import LogSchemaError
from bk_core.near import meant

DEPTH_MAX = 60  # of types in one another; Arrow reads no schema that is deeper than 64
_TOKEN = re.compile(
    r"\s*(?:(?P<name>[A-Za-z_]\w*)|(?P<quoted>`(?:[^`]|``)*`)|(?P<number>\d+)|(?P<text>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")"
    r"|(?P<sign>[<>(),:]))",
    re.ASCII,
)
_TYPES = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "BYTE": pa.int8(),
    "SMALLINT": pa.int16(),
    "SHORT": pa.int16(),
    "INT": pa.int32(),
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "LONG": pa.int64(),
    "FLOAT": pa.float32(),
    "REAL": pa.float32(),
    "DOUBLE": pa.float64(),
    "STRING": pa.string(),
    "BINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us", "UTC"),
    "TIMESTAMP_LTZ": pa.timestamp("us", "UTC"),
    "TIMESTAMP_NTZ": pa.timestamp("us"),
}
_DECIMAL = ("DECIMAL", "DEC", "NUMERIC")
_NESTED = ("ARRAY", "MAP", "STRUCT")
_KNOWN = (*_TYPES, *_DECIMAL, *_NESTED, "INTERVAL DAY TO SECOND")
_COMMENT = b"SPARK::metadata::json"


def columns_of_ddl(text: str) -> pa.Schema:
    """Return the columns. LogSchemaError, which tells the place, for what is no such list of columns."""
    return _Parser(text).columns()


def ddl_of(kind: pa.DataType) -> str:
    """Return the name of a type that ``columns_of_ddl`` takes for it, or Arrow's name for one that DDL of ours has no name for."""
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision}, {kind.scale})"
    if pa.types.is_list(kind):
        return f"ARRAY<{ddl_of(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"MAP<{ddl_of(kind.key_type)}, {ddl_of(kind.item_type)}>"
    if pa.types.is_struct(kind):
        fields = (kind.field(index) for index in range(kind.num_fields))
        return f"STRUCT<{', '.join(f'{_quoted(field.name)}: {ddl_of(field.type)}' for field in fields)}>"
    if kind == pa.duration("us"):
        return "INTERVAL DAY TO SECOND"
    return next((name for name, one in _TYPES.items() if one == kind), str(kind))


def _quoted(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) else f"`{name.replace('`', '``')}`"


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    at: int


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(self._cut(text))
        self._next = 0
        self._depth = 0

    def _cut(self, text: str) -> list[_Token]:
        found: list[_Token] = []
        at, end = 0, len(text.rstrip())
        while at < end:
            match = _TOKEN.match(text, at)
            if match is None or match.lastgroup is None:
                raise self._wrong(at + len(text[at:]) - len(text[at:].lstrip()), "a name, a type or one of < > ( ) , :")
            found.append(_Token(match.lastgroup, match[match.lastgroup], match.start(match.lastgroup)))
            at = match.end()
        return [*found, _Token("end", "", end)]

    def columns(self) -> pa.Schema:
        schema = pa.schema(self._list("end"))
        twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
        if twice:
            raise LogSchemaError(f"schema {self._shown()}: more than one column is named {', '.join(map(repr, twice))}")
        return schema

    # --- tokens -----------------------------------------------------------------------------------------------------------

    def _wrong(self, at: int, wanted: str) -> LogSchemaError:
        there = repr(self._text[at : at + 20]) if self._text[at:].strip() else "the end"
        return LogSchemaError(f"schema {self._shown()}, character {at}: there must be {wanted}, not {there}")

    def _shown(self) -> str:
        return repr(self._text if len(self._text) <= 80 else f"{self._text[:80]} ...")

    @property
    def _here(self) -> _Token:
        return self._tokens[self._next]

    def _take(self) -> _Token:
        self._next += 1
        return self._tokens[self._next - 1]

    def _sign(self, sign: str) -> bool:
        """Take a sign if it is there."""
        there = self._here.kind == "sign" and self._here.text == sign
        self._next += there
        return there

    def _must(self, sign: str) -> None:
        if not self._sign(sign):
            raise self._wrong(self._here.at, repr(sign))

    def _word(self, *words: str) -> bool:
        """Take these words if all are there, in any case."""
        given = [token.text.upper() if token.kind == "name" else "" for token in self._tokens[self._next : self._next + len(words)]]
        there = given == list(words)
        self._next += len(words) if there else 0
        return there

    def _name(self) -> str:
        token = self._take()
        if token.kind == "quoted" and len(token.text) > 2:
            return token.text[1:-1].replace("``", "`")
        if token.kind != "name":
            raise self._wrong(token.at, "the name of a column")
        return token.text

    def _number(self) -> int:
        token = self._take()
        if token.kind != "number":
            raise self._wrong(token.at, "a number")
        return int(token.text)

    # --- columns and types ------------------------------------------------------------------------------------------------

    def _list(self, end: str) -> list[pa.Field]:
        """One or more, with commas between them, until ``end``, which is a sign or the end of the text."""
        found = [self._column()]
        while self._sign(","):
            found.append(self._column())
        if end == "end":
            if self._here.kind != "end":
                raise self._wrong(self._here.at, "a comma or the end")
        else:
            self._must(end)
        return found

    def _column(self) -> pa.Field:
        name = self._name()
        self._sign(":")
        return self._ended(name, self._type())

    def _ended(self, name: str, kind: pa.DataType) -> pa.Field:
        at = self._here.at
        if self._word("NOT", "NULL"):
            raise LogSchemaError(f"schema {self._shown()}, character {at}: all columns of a log are nullable; leave NOT NULL out")
        if not self._word("COMMENT"):
            return pa.field(name, kind)
        token = self._take()
        if token.kind != "text" or "\\" in token.text:
            raise self._wrong(token.at, "a comment in quotes, without a backslash")
        return pa.field(name, kind, metadata={_COMMENT: json.dumps({"comment": token.text[1:-1]}).encode()})

    def _type(self) -> pa.DataType:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise LogSchemaError(f"schema {self._shown()}: its types are nested more than {DEPTH_MAX} deep")
        try:
            return self._any_type()
        finally:
            self._depth -= 1

    def _any_type(self) -> pa.DataType:
        token = self._take()
        if token.kind != "name":
            raise self._wrong(token.at, "a type")
        word = token.text.upper()
        if word in _TYPES:
            return _TYPES[word]
        if word in _DECIMAL:
            return self._decimal(token.at)
        if word == "INTERVAL" and self._word("DAY", "TO", "SECOND"):
            return pa.duration("us")
        if word in _NESTED:
            return self._nested(word)
        hint = meant(word, _KNOWN) or f"there are {', '.join(_KNOWN)}"
        raise LogSchemaError(f"schema {self._shown()}, character {token.at}: no column can be made of type {token.text!r}; {hint}")

    def _decimal(self, at: int) -> pa.DataType:
        digits, scale = 10, 0
        if self._sign("("):
            digits = self._number()
            scale = self._number() if self._sign(",") else 0
            self._must(")")
        if not (1 <= digits <= 38 and scale <= digits):
            raise LogSchemaError(f"schema {self._shown()}, character {at}: DECIMAL has 1 to 38 digits, as many behind the point")
        return pa.decimal128(digits, scale)

    def _nested(self, word: str) -> pa.DataType:
        self._must("<")
        if word == "STRUCT":
            return self._struct()
        first = self._type()
        if word == "ARRAY":
            self._must(">")
            return pa.list_(pa.field("element", first))
        self._must(",")
        value = self._type()
        self._must(">")
        return pa.map_(first, value)

    def _struct(self) -> pa.DataType:
        at = self._here.at
        fields = self._list(">")
        names = [field.name for field in fields]
        if len(set(names)) < len(names):
            raise LogSchemaError(f"schema {self._shown()}, character {at}: two fields of a STRUCT have one name")
        return pa.struct(fields)
