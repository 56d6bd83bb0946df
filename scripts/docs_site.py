"""What MkDocs does with the pages beyond its own: those outside of docs/ are part of the site, and links fit it.

The pages link to files as they lie in the project, which is right where people read them there. In the site a link to a
page leads to that page; one to any other file of the project, such as a test, becomes its text.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
#: Pages outside of docs/, and where they are in the site.
MORE_PAGES = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
_SOURCES = {target: source for source, target in MORE_PAGES.items()}
_FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[((?:[^\]\[]|\[[^\]]*\])*)\]\(([^)\s]+)\)")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages that are outside of docs/."""
    for source, target in MORE_PAGES.items():
        files.append(File.generated(config, target, content=(ROOT / source).read_text()))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let the links of a page lead to where things are in the site."""
    site_path = page.file.src_uri
    source = _SOURCES.get(site_path, f"docs/{site_path}")
    parts = _FENCED.split(markdown)
    return "".join(
        part if part.startswith("```") else _LINK.sub(lambda link: _fitted(link, source, site_path), part)
        for part in parts
    )


def _fitted(link: re.Match[str], source: str, site_path: str) -> str:
    text, address = link.groups()
    if re.match(r"[a-z]+:|#", address):
        return link[0]
    path, hash_sign, anchor = address.partition("#")
    target = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    in_site = MORE_PAGES.get(target) or (target.removeprefix("docs/") if target.startswith("docs/") else "")
    if not in_site:
        return text
    return f"[{text}]({posixpath.relpath(in_site, posixpath.dirname(site_path) or '.')}{hash_sign}{anchor})"
