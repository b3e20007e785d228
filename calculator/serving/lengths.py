"""How long requests are: presets, lognormal parameters, or a list that somebody measured."""

from __future__ import annotations

import csv
import json
import random
import re
from collections.abc import Iterable, Sequence
from math import exp, log
from types import MappingProxyType

from pydantic import Field

from calculator.base import Frozen
from calculator.errors import PlanError, TooLargeError

MAX_ROWS = 200_000
MAX_LINE = 100_000
LONGEST = 16_777_216

_PROMPT_NAMES = (
    "prompt_tokens", "prompt", "input_tokens", "input", "prompt_len", "input_len", "isl", "context_tokens",
    "contexttokens", "num_prefill_tokens", "request_tokens", "prompt_length", "input_length", "num_prompt_tokens",
)  # fmt: skip
_OUTPUT_NAMES = (
    "output_tokens", "output", "completion_tokens", "completion", "output_len", "osl", "generated_tokens",
    "generatedtokens", "num_decode_tokens", "response_tokens", "output_length", "num_output_tokens",
)  # fmt: skip
"""Headings of usual traces too: "ContextTokens", "GeneratedTokens" (Azure's LLM inference traces,
github.com/Azure/AzurePublicDataset), "num_prefill_tokens", "num_decode_tokens" (Vidur,
github.com/microsoft/vidur), "Request tokens", "Response tokens" (BurstGPT, github.com/HPMLL/BurstGPT),
"input_length", "output_length" (Mooncake, github.com/kvcache-ai/Mooncake)."""


class Lognormal(Frozen):
    """Tokens with ``median`` and ``spread`` (the standard deviation of the logarithm; 0: always the median)."""

    median: float = Field(gt=0, le=LONGEST)
    spread: float = Field(ge=0, le=4)

    @property
    def mean(self) -> float:
        return self.median * exp(self.spread**2 / 2)

    @staticmethod
    def from_mean(mean: float, p99: float) -> Lognormal:
        """The distribution with this mean and 99th percentile.

        Raises ``PlanError`` ("lengths.p99") where no lognormal has them: a 99th percentile below the mean, or above
        14.9 times the mean.
        """
        z = 2.3263478740408408
        inside = z * z - 2 * log(p99 / mean) if mean > 0 and p99 > 0 else -1.0
        if inside < 0 or p99 < mean:
            raise PlanError("lengths.p99", field="request_lengths", mean_tokens=mean, p99_tokens=p99)
        spread = z - inside**0.5
        return Lognormal(median=mean / exp(spread**2 / 2), spread=spread)


class Lengths(Frozen):
    """Prompt and output lengths of a stream of requests.

    ``pairs`` holds measured requests and replaces the two distributions. No request is longer than
    ``longest_tokens``, prompt and output together; longer draws are cut at the prompt.
    """

    name: str
    prompt: Lognormal = Lognormal(median=512, spread=0)
    output: Lognormal = Lognormal(median=256, spread=0)
    pairs: tuple[tuple[int, int], ...] = ()
    longest_tokens: int = LONGEST

    def draw(self, count: int, seed: int = 0) -> list[tuple[int, int]]:
        """``count`` requests as (prompt, output), each at least one token."""
        source = random.Random(seed)
        if self.pairs:
            return [self._cut(*self.pairs[source.randrange(len(self.pairs))]) for _ in range(count)]
        gauss = source.gauss
        mu, nu = log(self.prompt.median), log(self.output.median)
        sigma, tau = self.prompt.spread, self.output.spread
        return [self._cut(round(exp(gauss(mu, sigma))), round(exp(gauss(nu, tau)))) for _ in range(count)]

    def _cut(self, prompt: int, output: int) -> tuple[int, int]:
        output = min(max(output, 1), self.longest_tokens - 1)
        return min(max(prompt, 1), self.longest_tokens - output), output

    def capped(self, longest_tokens: int) -> Lengths:
        """The same requests under an engine's context limit."""
        return self.model_copy(update={"longest_tokens": max(min(self.longest_tokens, longest_tokens), 2)})


PRESETS = MappingProxyType(
    {
        lengths.name: lengths
        for lengths in (
            Lengths(name="chat", prompt=Lognormal(median=600, spread=1.1), output=Lognormal(median=250, spread=0.8)),
            Lengths(name="rag", prompt=Lognormal(median=4000, spread=0.5), output=Lognormal(median=300, spread=0.6)),
            Lengths(name="code", prompt=Lognormal(median=2000, spread=1.0), output=Lognormal(median=200, spread=1.0)),
            Lengths(
                name="long_document", prompt=Lognormal(median=32_000, spread=0.6),
                output=Lognormal(median=800, spread=0.6),
            ),
            Lengths(
                name="agent", prompt=Lognormal(median=12_000, spread=0.8), output=Lognormal(median=400, spread=0.9)
            ),
        )
    }
)  # fmt: skip
"""Round assumptions to start from, to be replaced by one's own traffic: none is a measurement."""


def preset(name: str) -> Lengths:
    """Raises ``PlanError`` ("lengths.unknown")."""
    found = PRESETS.get(name)
    if found is None:
        raise PlanError("lengths.unknown", field="request_lengths", text=name[:40], candidates=", ".join(PRESETS))
    return found


def read_lengths(lines: Iterable[str]) -> Lengths:
    """Lengths from the lines of a CSV file (with or without a heading) or of JSON Lines: a prompt and an output count
    in each. Lines are read one at a time and only the numbers kept.

    Raises ``PlanError`` ("lengths.line", naming the line; "lengths.empty") and ``TooLargeError`` ("lengths.too_many",
    "lengths.long_line").
    """
    pairs: list[tuple[int, int]] = []
    columns: tuple[int, int] | None = None
    for number, line in enumerate(lines, 1):
        if len(line) > MAX_LINE:
            raise TooLargeError("lengths.long_line", field="request_lengths", line=number)
        if not line.strip():
            continue
        if len(pairs) >= MAX_ROWS:
            raise TooLargeError("lengths.too_many", field="request_lengths", rows_count=MAX_ROWS)
        if line.lstrip().startswith("{"):
            pairs.append(_from_json(line, number))
            continue
        cells = next(csv.reader([line]))
        if columns is None:
            columns = _heading(cells)
            if columns is not None:
                continue
            columns = (0, 1)
        pairs.append(_pair(cells, columns, number))
    if not pairs:
        raise PlanError("lengths.empty", field="request_lengths")
    return Lengths(name="uploaded", pairs=tuple(pairs))


def _heading(cells: Sequence[str]) -> tuple[int, int] | None:
    names = [_name(cell) for cell in cells]
    found = [next((names.index(n) for n in wanted if n in names), -1) for wanted in (_PROMPT_NAMES, _OUTPUT_NAMES)]
    return (found[0], found[1]) if min(found) >= 0 else None


def _name(heading: str) -> str:
    return re.sub(r"[\s-]+", "_", heading.strip().lstrip("\ufeff").lower())


def _pair(cells: Sequence[object], columns: tuple[int, int], number: int) -> tuple[int, int]:
    try:
        prompt, output = (float(str(cells[column])) for column in columns)
    except (IndexError, ValueError):
        raise PlanError("lengths.line", field="request_lengths", line=number) from None
    if not (0 <= prompt <= LONGEST and 0 <= output <= LONGEST):
        raise PlanError("lengths.line", field="request_lengths", line=number)
    return int(prompt), int(output)


def _from_json(line: str, number: int) -> tuple[int, int]:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict):
        raise PlanError("lengths.line", field="request_lengths", line=number)
    data = {_name(str(key)): value for key, value in data.items()}
    found = [next((data[n] for n in names if n in data), None) for names in (_PROMPT_NAMES, _OUTPUT_NAMES)]
    return _pair(found, (0, 1), number)
