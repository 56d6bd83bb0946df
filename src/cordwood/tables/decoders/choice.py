"""Decoders by the names that users give."""

from __future__ import annotations

from cordwood.common.errors import NotFoundError, RequestError
from cordwood.fs.base import Store
from cordwood.storage.log.files import read_file
from cordwood.tables.decoders.plain import PLAIN, Decoder
from cordwood.tables.decoders.schemas import ENDINGS, schema_decoder


def decoder_of(text: str, fs: Store) -> Decoder:
    """Return the decoder with a name, or with a kind of schemas and the folder that contains them.

    Args:
        text: such as `utf8` or `avro:schemas/orders-value`.

    Raises:
        RequestError: there is no such decoder, or the schemas cannot be used.
    """
    if text in PLAIN:
        return PLAIN[text]
    kind, _, folder = text.partition(":")
    if kind not in ENDINGS or not folder:
        known = ", ".join([*PLAIN, *(f"{one}:DIR" for one in ENDINGS)])
        raise RequestError(f"{text!r} is no decoder; there are {known}")
    try:
        names = [info.name for info in fs.list(folder) if info.name.endswith(ENDINGS[kind])]
    except (FileNotFoundError, NotADirectoryError):
        raise NotFoundError(f"{folder} is no folder; it was to hold the schemas of {text}") from None
    return schema_decoder(kind, folder, {name: read_file(fs, f"{folder}/{name}") for name in names})
