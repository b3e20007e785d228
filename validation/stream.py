"""The outcomes of the packaged cases of one kind, a JSON line each as they come: for a program that waits for them.

    python -m validation.stream training

It runs beside the app in a process of its own, since a replay keeps an interpreter busy for a minute.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from validation.rows import PACKAGED, packaged
from validation.run import predict


def main(arguments: Sequence[str]) -> int:
    """0, or 2 where the argument is not a kind of case."""
    kind = next((kind for kind in PACKAGED if [kind] == list(arguments)), None)
    if kind is None:
        print(f"one of: {', '.join(PACKAGED)}", file=sys.stderr)
        return 2
    os.nice(10)
    for row in packaged(kind):
        print(predict(row).model_dump_json(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
