"""A plugin of pytest that breaks one rule: ``BK_MUTANT`` is a number in the table of unit_mutations.py.

The module is changed while it is imported, so nobody has a copy of the sound one. Nothing of the product may be imported before.
"""

from __future__ import annotations

import os
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType
from typing import Any

from tests.simulation.unit_mutations import UNIT_MUTATIONS, VARIABLE, UnitMutation


class _Loader(SourceFileLoader):
    mutation: UnitMutation

    def get_code(self, fullname: str) -> CodeType | None:
        text = self.get_data(self.path).decode()
        if text.count(self.mutation.sound) != 1:
            raise RuntimeError(f"{self.path} has {text.count(self.mutation.sound)} times {self.mutation.sound!r}, not once")
        return compile(text.replace(self.mutation.sound, self.mutation.broken), self.path, "exec")


class _Finder(MetaPathFinder):
    def __init__(self, mutation: UnitMutation) -> None:
        self.mutation = mutation

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name == self.mutation.module else None
        if spec is not None and spec.origin is not None:
            loader = _Loader(name, spec.origin)
            loader.mutation = self.mutation
            spec.loader = loader
        return spec


if os.environ.get(VARIABLE):
    chosen = UNIT_MUTATIONS[int(os.environ[VARIABLE])]
    if chosen.module in sys.modules:
        raise RuntimeError(f"{chosen.module} was imported before it could be broken")
    sys.meta_path.insert(0, _Finder(chosen))
