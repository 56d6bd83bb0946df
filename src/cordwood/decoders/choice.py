"""Decoders by the names that users give."""

from __future__ import annotations

from cordwood.decoders.decoder import Decoder
from cordwood.decoders.plain import PLAIN
from cordwood.errors import RequestError


def decoder_of(text: str) -> Decoder:
    """The decoder of a name.

    Raises:
        RequestError: there is none.
    """
    if text in PLAIN:
        return PLAIN[text]
    raise RequestError(f"{text!r} is no decoder; there are {', '.join(PLAIN)}")
