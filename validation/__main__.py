"""``python -m validation [FILE ...]``: score measured cases against the calculator."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from rich.console import Console

from calculator.render import LANGUAGES, render
from calculator.text import text
from validation import leaveout
from validation.report import print_report
from validation.rows import PACKAGED, Row, packaged, read_file
from validation.run import lines, predict_all, summary


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0 when every file was read, 2 when one could not be."""
    parser = argparse.ArgumentParser(prog="python -m validation", description=render(text("validation.cli.about")))
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help=render(text("validation.cli.files")))
    parser.add_argument("--json", action="store_true", help=render(text("validation.cli.json")))
    parser.add_argument("--rows", type=Path, metavar="OUT.jsonl", help=render(text("validation.cli.rows")))
    parser.add_argument("--no-replay", action="store_true", help=render(text("validation.cli.no_replay")))
    parser.add_argument("--lang", choices=LANGUAGES, default="en", help=render(text("validation.cli.lang")))
    options = parser.parse_args(arguments)

    rows: list[Row] = []
    for path in options.files:
        try:
            rows += read_file(path)
        except (OSError, UnicodeDecodeError) as error:
            print(
                render(text("validation.cli.unreadable", path=str(path), error=str(error)), options.lang),
                file=sys.stderr,
            )
            return 2
    if not options.files:
        rows = [row for kind in PACKAGED for row in packaged(kind)]
    outcomes = predict_all(rows, replay=not options.no_replay)
    if options.rows:
        try:
            with options.rows.open("w", encoding="utf-8") as out:
                out.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines(outcomes))
        except OSError as error:
            print(
                render(text("validation.cli.unwritable", path=str(options.rows), error=str(error)), options.lang),
                file=sys.stderr,
            )
            return 2
    report = summary(outcomes)
    leaveout.add(report, rows)
    if options.json:
        json.dump(report, sys.stdout, ensure_ascii=False, indent=1)
        print()
    else:
        print_report(report, Console(width=None if sys.stdout.isatty() else 160), language=options.lang)
    return 0


if __name__ == "__main__":
    sys.exit(main())
