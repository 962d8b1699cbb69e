"""``python -m docs.site``: build the site into .cache/site, or into ``--out DIR``. Exit status 1 if a link leads nowhere."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from docs.site import assemble
from docs.site.links import ROOT

CONFIG = Path(__file__).parent / "mkdocs.yml"


def build(source: Path, out: Path) -> None:
    """Put the source together and have MkDocs build it, strictly: a warning ends it."""
    from mkdocs.commands.build import build as build_site
    from mkdocs.config import load_config

    assemble.write(source)
    out.mkdir(parents=True, exist_ok=True)
    config = load_config(str(CONFIG), docs_dir=str(source), site_dir=str(out))
    complete(config["nav"], sorted(path.relative_to(source).as_posix() for path in source.rglob("*.md")))
    build_site(config)


def complete(nav: list[Any], pages: Iterable[str]) -> None:
    """Put every page that the navigation does not name behind the others of its folder."""
    parts = [*_parts(nav)]
    named = {page for part in parts for page in _pages(part)}
    for page in pages:
        if page not in named:
            top = f"{page.partition('/')[0]}/"
            home = max(parts, key=lambda part: sum(other.startswith(top) for other in _pages(part)))
            home.append(page)


def _parts(nav: list[Any]) -> Iterator[list[Any]]:
    """Yield the navigation and all lists in it."""
    yield nav
    for item in nav:
        for entry in item.values() if isinstance(item, dict) else ():
            if isinstance(entry, list):
                yield from _parts(entry)


def _pages(part: list[Any]) -> list[str]:
    """Return the pages that a list names itself."""
    entries = [entry for item in part for entry in (item.values() if isinstance(item, dict) else [item])]
    return [entry for entry in entries if isinstance(entry, str)]


def main() -> int:
    from mkdocs.exceptions import Abort

    parser = argparse.ArgumentParser(prog="python -m docs.site", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / ".cache" / "site")
    out: Path = parser.parse_args().out.resolve()
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    try:
        build(out.with_name(f"{out.name}-source"), out)
    except (Abort, LookupError, AssertionError) as error:
        print(f"the site was not built: {error}", file=sys.stderr)
        return 1
    print(f"{out}/index.html")
    return 0


if __name__ == "__main__":
    sys.exit(main())
