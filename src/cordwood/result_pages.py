"""The page of each kind of result, as one HTML file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cordwood.cleaning.engine.results import CleanResult
from cordwood.cleaning.proof.violations import VerifyResult
from cordwood.commands.why.found_keys import ErasureResult
from cordwood.common.text import Paged
from cordwood.simulation.pages import explain, simulation
from cordwood.simulation.sizing.result import ExplainResult, SimulationResult
from cordwood.view.pages import clean, erasure, proof
from cordwood.view.pages.frame import Links, one_file
from cordwood.view.pages.markup import Content

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
    return one_file(title, Links(anchors={}), body(result))
