"""The page of each kind of result: as one file, and as one of a server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cordwood.cleaning.found_keys import ErasureResult
from cordwood.engine.results import CleanResult
from cordwood.pages import clean, erasure, explain, simulation
from cordwood.pages.frame import one_file, page
from cordwood.pages.links import FileLinks
from cordwood.pages.markup import Content
from cordwood.presentable import Paged, register_page
from cordwood.sizing.explained import ExplainResult
from cordwood.sizing.result import SimulationResult

#: By the class of a result: the title of its page, and what makes the body.
_PAGES: Mapping[type[Paged], tuple[str, Callable[[Any], Content]]] = {
    CleanResult: ("Clean", clean.body),
    ErasureResult: ("Erasure", erasure.body),
    SimulationResult: ("Simulation", simulation.body),
    ExplainResult: ("What if", explain.body),
}


def file_page(result: Paged) -> str:
    """The page as one file, which loads nothing and runs nothing."""
    title, body = _PAGES[type(result)]
    return one_file(title, FileLinks(), body(result))


def server_page(result: Paged) -> str:
    """The page as one of a server."""
    title, body = _PAGES[type(result)]
    return page(title, FileLinks(parts=((title, "/"),)), body(result), document_link="/result.json")


for _kind in _PAGES:
    register_page(_kind, file_page)
