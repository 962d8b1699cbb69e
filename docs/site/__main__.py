"""``python -m docs.site``: build the site into .cache/site, or into ``--out DIR``. Exit status 1 if a link leads nowhere."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from docs.site import assemble
from docs.site.links import ROOT

CONFIG = Path(__file__).parent / "mkdocs.yml"


def build(source: Path, out: Path) -> None:
    """Put the source together and have MkDocs build it, strictly: a warning ends it."""
    from mkdocs.commands.build import build as build_site
    from mkdocs.config import load_config

    assemble.write(source)
    out.mkdir(parents=True, exist_ok=True)
    build_site(load_config(str(CONFIG), docs_dir=str(source), site_dir=str(out)))


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
