"""The page of each kind of result, as one HTML file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cordwood.cleaning.engine.results import CleanResult
from cordwood.cleaning.proof.violations import VerifyResult
from cordwood.commands.compare import CompareResult
from cordwood.commands.why.found_keys import ErasureResult
from cordwood.common.text import Paged
from cordwood.simulation.pages import explain_body, simulation_body
from cordwood.simulation.sizing.result import ExplainResult, SimulationResult
from cordwood.view.pages.frame import Links, one_file
from cordwood.view.pages.markup import Content
from cordwood.view.pages.results import clean_body, comparison_body, erasure_body, proof_body

#: For each class of result, the page's title and the function that builds its body.
_PAGES: Mapping[type[Paged], tuple[str, Callable[[Any], Content]]] = {
    CleanResult: ("Clean", clean_body),
    ErasureResult: ("Erasure", erasure_body),
    SimulationResult: ("Simulation", simulation_body),
    ExplainResult: ("What if", explain_body),
    VerifyResult: ("Proof", proof_body),
    CompareResult: ("Replicas", comparison_body),
}


def file_page(result: Paged) -> str:
    """Return a result's page as a file, which loads no other file and runs no script."""
    title, body = _PAGES[type(result)]
    return one_file(title, Links(anchors={}), body(result))
