"""Makes every Python process that has this folder on its PYTHONPATH ignore one option: BK_IGNORED_OPTION, by its name in the table.

Spark plans, reads and writes in processes of its own, which inherit the environment and nothing else; Python imports a module of this name
at every start. The product has no switch for it: the function is wrapped when ``bk_spark.options.table`` is imported.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import Any

MODULE = "bk_spark.options.table"
VARIABLE = "BK_IGNORED_OPTION"


def ignoring(parse: Callable[..., Any], option: Any) -> Callable[..., Any]:
    """``parse_options`` that takes the option and checks its value as ever, and then leaves its field as if it had not been given."""
    spellings = {spelling.lower() for spelling in (option.name, *option.aliases)}

    def parse_options(given: Mapping[str, str], environment: Mapping[str, str] | None = None) -> Any:
        parsed = parse(given, environment)
        others = {key: value for key, value in given.items() if key.lower() not in spellings}
        if len(others) == len(given):
            return parsed
        if option.field == "uri":  # its default is what the environment says, or an error
            return parse(others, environment)
        return replace(parsed, **{option.field: option.default}, given=parsed.given - {option.field})

    return parse_options


class _Loader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        named = {option.name: option for option in module.OPTIONS}
        module.__dict__["parse_options"] = ignoring(module.parse_options, named[os.environ[VARIABLE]])


class _Finder(MetaPathFinder):
    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name == MODULE else None
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(name, spec.origin)
        return spec


if os.environ.get(VARIABLE):
    sys.meta_path.insert(0, _Finder())
