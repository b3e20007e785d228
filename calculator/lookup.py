"""From what a person gave to a model: a preset, an id or address of the hub, pasted JSON, a file, a shape by hand."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Literal

from calculator import hub
from calculator.base import Frozen
from calculator.errors import (
    CalculatorError,
    HubError,
    HubOfflineError,
    ModelIdError,
    ModelNotFoundError,
    NoConfigError,
    NotTrainableError,
    ShapeError,
    TooLargeError,
)
from calculator.gguf.files import GgufFile, group_files, mix_of, models_of, short_name
from calculator.gguf.header import GgufHeader, read_header
from calculator.gguf.shape import shape_of
from calculator.gguf.weights import weights_of
from calculator.hub.address import Address, parse_address
from calculator.hub.client import FileMissing
from calculator.hub.headers import FolderFiles, WeightHeaders, read_headers
from calculator.jsonin import LIMIT_BYTES, parse_object
from calculator.model import read
from calculator.model.shape import ModelShape
from calculator.model.weights import StoredWeights, stored_weights
from calculator.presets import Preset, find_preset, near, preset
from calculator.text import Text, text

_FILE_OF_HUB = re.compile(r"[a-z]+://|[\w.-]+\.(co|com)/|[\w-][\w.-]*/[\w.-]+(@[^:]+)?:[^/\\]")

Origin = Literal["preset", "hub", "pasted", "file", "manual"]


class LoadedModel(Frozen):
    """A model ready to be billed, and where it came from.

    ``name`` is what to call it. ``id``, ``revision`` (as asked) and ``commit`` are the hub's; ``preset`` is the key of
    a built-in one. ``config_json`` is the text that was read ("" where there was none). ``headers`` list the stored
    tensors; ``hub_totals`` are the hub's own sums where no header could be read, and name no tensor; ``gguf`` are the
    weights of ``gguf_file`` (``gguf_named``: somebody asked for it) and of the projector ``mmproj_file`` beside it.
    ``base_model`` is what the repository or
    the file says it was made from. ``notes`` say what was assumed, what could not be read, and why a preset stands in.
    """

    shape: ModelShape
    origin: Origin
    name: str
    id: str | None = None
    revision: str | None = None
    commit: str | None = None
    preset: str | None = None
    config_json: str = ""
    sidecar_json: str | None = None
    headers: WeightHeaders | None = None
    hub_totals: WeightHeaders | None = None
    gguf: StoredWeights | None = None
    gguf_file: str | None = None
    gguf_named: bool = False
    mmproj_file: str | None = None
    base_model: str | None = None
    facts: hub.Facts | None = None
    notes: tuple[Text, ...] = ()

    @cached_property
    def gguf_choices(self) -> tuple[GgufFile, ...]:
        """The models among the repository's GGUF files, smallest first."""
        return models_of(self._grouped)

    def gguf_name(self, file: GgufFile) -> str:
        """The shortest name by which the repository's file is found again."""
        return short_name(self._grouped, file)

    @cached_property
    def _grouped(self) -> tuple[GgufFile, ...]:
        files = self.facts.gguf_files if self.facts is not None else ()
        return group_files({file.name: file.size_bytes for file in files})

    @property
    def assumptions(self) -> tuple[Text, ...]:
        """Everything about this model that was not read but taken for granted."""
        return (*self.notes, *self.shape.assumptions)

    @cached_property
    def stored(self) -> StoredWeights | None:
        """The weights as the files' headers tell them; None where none were read, so that they are computed."""
        if self.gguf is not None:
            return self.gguf
        return None if self.headers is None else stored_weights(self.shape, self.headers)

    def check_trainable(self) -> None:
        """Raises ``NotTrainableError`` ("gguf.not_trainable", "gguf.not_trainable_of") where there are no other weights
        than GGUF: they are quantised for inference, and the number of another model would be the wrong one."""
        if self.gguf is None or self.headers is not None or self.hub_totals is not None:
            return
        if self.base_model is not None:
            raise NotTrainableError("gguf.not_trainable_of", field="model", id=self.name, base=self.base_model)
        raise NotTrainableError("gguf.not_trainable", field="model", id=self.name)


def load(
    written: str, *, revision: str | None = None, token: str | None = None, allow_local: bool = False
) -> LoadedModel:
    """The model of a preset key, hub id, hub address or JSON text, and of a path where ``allow_local`` says so.

    The key of a preset needs no network. An id is asked of the hub; if the hub cannot give it and the model is built
    in, the built-in copy stands in and a note says why.

    Raises ``InputError``, ``ShapeError`` or ``HubError``.
    """
    wanted = written.strip()
    if wanted.startswith("{"):
        return load_text(written)
    if allow_local and (path := _local_path(wanted)) is not None:
        return load_path(path)
    if revision is None and (built_in := find_preset(wanted)) is not None and built_in.key == wanted.lower():
        return load_preset(built_in.key)
    address = parse_address(wanted, hub.endpoint_from_environment())
    if revision is not None:
        address = address.model_copy(update={"revision": revision})
    try:
        return load_hub(address, token=token)
    except HubError as error:
        built_in = find_preset(address.repo) if address.revision is None and address.file is None else None
        if built_in is not None:
            return _stand_in(built_in, address, error)
        # Hardly a model of today has no organisation before its name: a built-in one was meant.
        if "/" not in address.repo and (keys := ", ".join(near(address.repo))):
            if isinstance(error, ModelNotFoundError):
                raise ModelNotFoundError("hub.not_found_near", field="model", id=address.repo, near=keys) from error
            if isinstance(error, HubOfflineError):
                raise HubOfflineError("hub.offline_near", field="model", id=address.repo, near=keys) from error
        raise


@cache
def load_preset(key: str) -> LoadedModel:
    """A built-in model. Raises ``ModelIdError`` ("preset.unknown")."""
    found = preset(key)
    return LoadedModel(
        shape=read(found.config()),
        origin="preset",
        name=found.id,
        id=found.id,
        preset=found.key,
        config_json=found.config_text(),
    )


def load_hub(address: Address, *, token: str | None = None) -> LoadedModel:
    """A model of the hub. Where the address names a GGUF file or the repository holds no other weights, the weights are
    that file's, and the shape too where there is no config.json."""
    try:
        loaded = from_hub(hub.fetch_model(address, None, token))
    except NoConfigError as error:
        if not error.key.startswith("hub.gguf"):
            raise
        gguf = hub.fetch_gguf(address, token)
        loaded = LoadedModel(
            shape=_gguf_shape(gguf, token),
            origin="hub",
            name=gguf.facts.repo,
            id=gguf.facts.repo,
            revision=address.revision,
            commit=gguf.facts.commit,
            facts=gguf.facts,
        )
        return _with_gguf(loaded, gguf, named=address.file is not None)
    assert loaded.facts is not None
    if address.file is not None or (loaded.headers is None and loaded.hub_totals is None and loaded.facts.gguf_files):
        return _with_gguf(loaded, hub.fetch_gguf(address, token), named=address.file is not None)
    return loaded


def _gguf_shape(gguf: hub.GgufModel, token: str | None) -> ModelShape:
    """The shape by the file's metadata; of an architecture that is not read from them, the base model's."""
    base = gguf.facts.base_model
    try:
        return shape_of(gguf.headers)
    except ShapeError:
        if base is None:
            raise
    built_in = find_preset(base)
    return (
        load_preset(built_in.key).shape if built_in is not None else from_hub(hub.fetch_model(base, None, token)).shape
    )


def _with_gguf(loaded: LoadedModel, gguf: hub.GgufModel, *, named: bool) -> LoadedModel:
    name = gguf.file.names[0]
    beside = gguf.projector_file.names[0] if gguf.projector_file is not None else None
    model = sum(header.tensor_bytes for header in gguf.headers)
    notes = [text("lookup.gguf", file=name, stored_bytes=model)]
    if beside is not None:
        size = sum(header.tensor_bytes for header in gguf.projector_headers)
        notes.append(text("lookup.mmproj", file=beside, stored_bytes=size))
    return loaded.model_copy(
        update={
            "gguf": weights_of(gguf.headers, gguf.projector_headers, mix=gguf.file.mix),
            "gguf_file": name,
            "gguf_named": named,
            "mmproj_file": beside,
            "base_model": gguf.facts.base_model or _base_of(gguf.headers),
            "notes": tuple(notes),
        }
    )


def _base_of(headers: Sequence[GgufHeader]) -> str | None:
    """The model that a file says it was made from."""
    address = headers[0].metadata.get("general.base_model.0.repo_url") if headers else None
    try:
        return parse_address(address).repo if isinstance(address, str) else None
    except ModelIdError:  # free text
        return None


def from_hub(model: hub.HubModel) -> LoadedModel:
    """What was fetched, read into a shape."""
    counted = model.headers is not None and model.headers.origin == "headers"
    return LoadedModel(
        shape=read(model.config, sidecar=model.sidecar),
        origin="hub",
        name=model.facts.repo,
        id=model.facts.repo,
        revision=model.address.revision,
        commit=model.facts.commit,
        config_json=model.config_json,
        sidecar_json=model.sidecar_json,
        headers=model.headers if counted else None,
        hub_totals=None if counted else model.headers,
        facts=model.facts,
        notes=model.facts.notes,
    )


def load_text(
    written: str | bytes, name: str = "config.json", origin: Literal["pasted", "file"] = "pasted"
) -> LoadedModel:
    """Pasted or uploaded JSON. Raises ``TooLargeError``, ``NotAConfigError`` or another ``ShapeError``."""
    config = parse_object(written)
    shown = config.get("_name_or_path")
    if origin == "pasted" and isinstance(shown, str) and 0 < len(shown) <= 96 and shown.isprintable():
        name = shown
    return LoadedModel(
        shape=read(config),
        origin=origin,
        name=name,
        config_json=written.decode("utf-8-sig", errors="replace") if isinstance(written, bytes) else written,
    )


def load_path(path: Path) -> LoadedModel:
    """A config.json, or a folder that holds one, with the headers of the weight files beside it.

    Raises ``ModelIdError`` ("local.unreadable", "local.no_config") and as ``load_text``.
    """
    folder = path if path.is_dir() else path.parent
    if path.suffix == ".gguf":
        return _load_gguf(path)
    config = _read_file(folder / "config.json" if path.is_dir() else path)
    if not path.is_dir():
        return load_text(config, path.name, "file")
    loaded = load_text(config, folder.resolve().name, "file")
    sidecar_path = folder / "hf_quant_config.json"
    sidecar = _read_file(sidecar_path) if sidecar_path.is_file() else None
    headers, note = read_headers(FolderFiles(folder), sorted(p.name for p in folder.iterdir() if p.is_file()))
    return loaded.model_copy(
        update={
            "shape": read(parse_object(config), sidecar=None if sidecar is None else parse_object(sidecar, "sidecar")),
            "sidecar_json": None if sidecar is None else sidecar.decode("utf-8-sig", errors="replace"),
            "headers": headers,
            "notes": () if note is None else (note,),
        }
    )


def _load_gguf(path: Path) -> LoadedModel:
    """A GGUF file of this machine, with the other parts where it is one of several."""
    sizes: dict[str, int | None] = {p.name: p.stat().st_size for p in path.parent.glob("*.gguf")}
    names = next((f.names for f in group_files(sizes) if path.name in f.names), (path.name,))
    source = FolderFiles(path.parent)
    try:
        headers = tuple(read_header(partial(source.part, name), name) for name in names)
    except FileMissing:
        raise ModelIdError("local.unreadable", field="model", path=str(path)) from None
    return LoadedModel(
        shape=shape_of(headers), origin="file", name=path.name, gguf_file=path.name,
        gguf=weights_of(headers, mix=mix_of(path.name)), base_model=_base_of(headers),
    )  # fmt: skip


def load_shape(shape: ModelShape, name: str) -> LoadedModel:
    """A shape made by hand."""
    return LoadedModel(shape=shape, origin="manual", name=name)


def _stand_in(built_in: Preset, address: Address, error: CalculatorError) -> LoadedModel:
    note = text("lookup.preset_instead", id=address.repo, preset=built_in.id, reason=error.message)
    return load_preset(built_in.key).model_copy(update={"id": address.repo, "name": address.repo, "notes": (note,)})


def _local_path(written: str) -> Path | None:
    """The path that a person on this machine means, or None for what can only be an id.

    An id never starts with a dot, a slash or a tilde and never ends in .json or .gguf, unless it is an address or names
    a file after a colon; anything else is a path if it exists.
    """
    of_hub = _FILE_OF_HUB.match(written) is not None
    meant = written.startswith((".", "/", "~")) or (written.endswith((".json", ".gguf")) and not of_hub)
    try:
        path = Path(written).expanduser()
        path.stat()
    except (OSError, RuntimeError, ValueError):  # nothing there, a name too long, a home that nobody has
        if meant:
            raise ModelIdError("local.missing", field="model", path=written[:200]) from None
        return None
    if meant:
        return path
    return path if path.is_file() or (path / "config.json").is_file() else None


def _read_file(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            body = file.read(LIMIT_BYTES + 1)
    except FileNotFoundError:
        raise ModelIdError("local.no_config", field="model", path=str(path.parent)) from None
    except OSError:
        raise ModelIdError("local.unreadable", field="model", path=str(path)) from None
    if len(body) > LIMIT_BYTES:
        raise TooLargeError("json.too_large", field="config", size_bytes=path.stat().st_size, limit_bytes=LIMIT_BYTES)
    return body
