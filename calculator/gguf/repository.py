"""A model from the GGUF files of a repository or folder: file chosen, heads read, shape and weights made of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from calculator.base import Frozen
from calculator.gguf.files import GgufFile, choose, group_files, projector
from calculator.gguf.header import GgufHeader, read_header
from calculator.gguf.shape import Config, config_of, shape_of
from calculator.gguf.weights import weights_of
from calculator.model.shape import ModelShape
from calculator.model.stored import StoredWeights

ReadFile = Callable[[str, int, int], bytes]
"""``read(name, offset, length)`` gives up to ``length`` bytes of a file; fewer only at its end."""

WORKERS = 8


class GgufModel(Frozen):
    """A model as its GGUF files hold it. ``config`` has the metadata under the keys of a config.json; ``projector``
    is the multimodal file beside it, whose tensors are not in ``weights``."""

    file: GgufFile
    headers: tuple[GgufHeader, ...]
    config: Config
    shape: ModelShape
    weights: StoredWeights
    projector: GgufFile | None


def read_model(sizes: Mapping[str, int | None], read: ReadFile, wanted: str | None = None) -> GgufModel:
    """The model of the mix or file ``wanted``, or of the usual one, among files given as name to size.

    Reads heads only, of all parts side by side. Raises as ``choose``, ``read_header`` and ``shape_of`` do, and
    whatever ``read`` raises.
    """
    files = group_files(sizes)
    file = choose(files, wanted)
    headers = read_headers(file.names, read)
    return GgufModel(
        file=file,
        headers=headers,
        config=config_of(headers),
        shape=shape_of(headers),
        weights=weights_of(headers),
        projector=projector(files),
    )


def read_headers(names: Sequence[str], read: ReadFile) -> tuple[GgufHeader, ...]:
    """The heads of files, in order."""
    pool = ThreadPoolExecutor(max_workers=min(WORKERS, len(names)))
    try:
        return tuple(pool.map(lambda name: read_header(partial(read, name), name), names))
    finally:
        pool.shutdown(cancel_futures=True)
