"""The page of each kind of result, as one HTML file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cordwood.cleaning.found_keys import ErasureResult
from cordwood.engine.results import CleanResult
from cordwood.pages import clean, erasure, explain, proof, simulation
from cordwood.pages.frame import one_file
from cordwood.pages.links import FileLinks
from cordwood.pages.markup import Content
from cordwood.presentable import Paged, register_page
from cordwood.sizing.explained import ExplainResult
from cordwood.sizing.result import SimulationResult
from cordwood.verification.result import VerifyResult

#: For each class of result, the page's title and the function that builds its body.
_PAGES: Mapping[type[Paged], tuple[str, Callable[[Any], Content]]] = {
    CleanResult: ("Clean", clean.body),
    ErasureResult: ("Erasure", erasure.body),
    SimulationResult: ("Simulation", simulation.body),
    ExplainResult: ("What if", explain.body),
    VerifyResult: ("Proof", proof.body),
}


def file_page(result: Paged) -> str:
    """Return a result's page as a file, which loads no other file and runs no script."""
    title, body = _PAGES[type(result)]
    return one_file(title, FileLinks(), body(result))


for _kind in _PAGES:
    register_page(_kind, file_page)
