"""How README.md becomes the page of a package index, whose readers have no files beside it. The builds of wheel and sdist run this.

A relative link leads nowhere there. With a project URL named "Files", below which the files of the repository lie, it becomes absolute.
Without one its words stay and the name of the file follows, which is in the source distribution. Other links stay.
"""

from __future__ import annotations

import re

from setuptools.command.egg_info import egg_info

LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")
CODE = re.compile(r"(^```.*?^```$|^ {4}.*?$|`[^`\n]*`)", re.MULTILINE | re.DOTALL)


def index_page(readme: str, files: str | None) -> str:
    """The page; ``files`` is where the files of the repository lie, if anywhere."""

    def instead(link: re.Match[str]) -> str:
        words, path, section = link.group(1), link.group(2), link.group(3) or ""
        return f"[{words}]({files.rstrip('/')}/{path}{section})" if files else f"{words} (`{path}`)"

    parts = CODE.split(readme)  # code stands at the odd places
    return "".join(part if at % 2 else LINK.sub(instead, part) for at, part in enumerate(parts))


class WithIndexPage(egg_info):
    """Every build makes its metadata by this command."""

    def run(self) -> None:
        metadata = self.distribution.metadata
        metadata.long_description = index_page(metadata.long_description, (metadata.project_urls or {}).get("Files"))
        super().run()
