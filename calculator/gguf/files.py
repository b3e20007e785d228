"""The GGUF files of a repository: which belong together, which mix each is, and which one is meant."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from calculator.base import Frozen
from calculator.errors import HubAnswerError, PlanError

_PART = re.compile(r"^(?P<stem>.*?)[-.](?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$", re.IGNORECASE)
_MIX = re.compile(
    r"(?:^|[-._/])((?:UD-)?(?:I?Q[1-8](?:_(?:0|1|K|NL|XS|S|M|L|XL|XXS|XXL))*|TQ[12]_0|MXFP4(?:_MOE)?|NVFP4|BF16|F16|FP16|"
    r"F32|FP32))(?=$|[-._/])",
    re.IGNORECASE,
)
_NO_MODEL = re.compile(r"imatrix|(^|/)(lora|mtp-)|adapter|vocab", re.IGNORECASE)
_PREFERRED = (
    "Q4_K_M", "UD-Q4_K_XL", "Q4_K_L", "Q4_K_S", "Q4_0", "IQ4_NL", "IQ4_XS", "MXFP4", "MXFP4_MOE", "Q5_K_M", "Q8_0",
    "BF16", "F16",
)  # fmt: skip
_PROJECTOR_PREFERRED = ("F16", "BF16", "Q8_0", "F32")


class GgufFile(Frozen):
    """A model in one or several files. ``mix`` as its name says it ("" if it does not), ``size_bytes`` where the
    repository states the sizes of all parts. ``missing_part`` is the first of ``part_count`` that is not there."""

    mix: str
    names: tuple[str, ...]
    size_bytes: int | None = None
    projector: bool = False
    part_count: int = 1
    missing_part: int | None = None


def group_files(sizes: Mapping[str, int | None]) -> tuple[GgufFile, ...]:
    """The models among a repository's files (name to size), parts put together in order; importance matrices,
    adapters, prediction layers on their own and files of other kinds are left out."""
    sets: dict[str, dict[int, str]] = {}
    counts: dict[str, int] = {}
    for name in sorted(sizes):
        if not name.lower().endswith(".gguf") or _NO_MODEL.search(name):
            continue
        part = _PART.match(name)
        stem = part["stem"] if part else name[: -len(".gguf")]
        number, count = (int(part["number"]), int(part["count"])) if part else (1, 1)
        sets.setdefault(stem, {})[number] = name
        counts[stem] = count
    return tuple(_set(stem, parts, counts[stem], sizes) for stem, parts in sets.items())


def _set(stem: str, parts: Mapping[int, str], count: int, sizes: Mapping[str, int | None]) -> GgufFile:
    missing = next((n for n in range(1, count + 1) if n not in parts), None)
    names = tuple(parts[n] for n in sorted(parts))
    stated = [sizes[name] for name in names]
    known = [size for size in stated if size is not None]
    return GgufFile(
        mix=mix_of(stem),
        names=names,
        size_bytes=sum(known) if len(known) == len(stated) and missing is None else None,
        projector="mmproj" in stem.lower(),
        part_count=count,
        missing_part=missing,
    )


def mix_of(name: str) -> str:
    """The mix that a file name states: "Llama-3-8B-Instruct.q4_k_m" is "Q4_K_M"; the last one counts."""
    found = _MIX.findall(name)
    return found[-1].upper().replace("FP16", "F16").replace("FP32", "F32") if found else ""


def choose(files: Sequence[GgufFile], wanted: str | None = None) -> GgufFile:
    """The file of a mix or of a (part of a) file name; without one, Q4_K_M, which llama.cpp takes too, or the nearest
    to it that there is.

    Raises ``PlanError`` ("gguf.no_such_file") with what there is, and ``HubAnswerError`` ("gguf.no_files", and
    "gguf.missing_part" where the one that is meant is not whole).
    """
    # Of two files of one mix the one in fewer folders is meant.
    models = sorted((f for f in files if not f.projector), key=lambda f: f.names[0].count("/"))
    whole = [f for f in models if f.missing_part is None]
    if not models:
        raise HubAnswerError("gguf.no_files")
    if wanted:
        text = wanted.strip().removeprefix("gguf:").lower().replace("-", "_")
        name = wanted.strip().lower()
        for test in (
            lambda f: f.mix.lower().replace("-", "_") == text,
            lambda f: any(name == n.lower() for n in f.names),
            lambda f: any(name in n.lower() for n in f.names),
        ):
            found = sorted(filter(test, models), key=lambda f: f.missing_part is not None)
            if found:
                return _checked(found[0])
        there = ", ".join(dict.fromkeys(f.mix or f.names[0] for f in sorted(whole or models, key=lambda f: f.mix)))
        raise PlanError("gguf.no_such_file", field="weights", text=wanted[:80], candidates=there[:400])
    by_mix = {f.mix: f for f in reversed(whole or models)}
    return _checked(next((by_mix[mix] for mix in _PREFERRED if mix in by_mix), (whole or models)[0]))


def models_of(files: Sequence[GgufFile]) -> tuple[GgufFile, ...]:
    """Those that are a model and whole, smallest first where sizes are known."""
    whole = [f for f in files if not f.projector and f.missing_part is None]
    return tuple(sorted(whole, key=lambda f: (f.size_bytes is None, f.size_bytes or 0, f.names[0])))


def short_name(files: Sequence[GgufFile], file: GgufFile) -> str:
    """The shortest name by which ``choose`` finds the file: its mix, its name without folders, or the whole name."""
    for name in (file.mix, file.names[0].rpartition("/")[2]):
        if name and choose(files, name) == file:
            return name
    return file.names[0]


def _checked(file: GgufFile) -> GgufFile:
    if file.missing_part is None:
        return file
    raise HubAnswerError(
        "gguf.missing_part", field=file.names[0][-80:], part=file.missing_part, part_count=file.part_count
    )


def projector(files: Sequence[GgufFile]) -> GgufFile | None:
    """The multimodal file that goes beside the model, 16 bit before other types; None where there is none."""
    found = {f.mix: f for f in reversed([f for f in files if f.projector])}
    return next((found[mix] for mix in _PROJECTOR_PREFERRED if mix in found), next(iter(found.values()), None))
