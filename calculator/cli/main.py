"""Arguments to output and exit code.

Exit codes: 0 fits (or a list was printed), 1 does not fit, 4 tight, 2 bad input or a typed refusal, 3 the hub failed,
70 a fault of the calculator itself, 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

from pydantic.fields import FieldInfo
from rich.console import Console

from calculator import hardware
from calculator.cli.commands import PLANS, compute, load_model
from calculator.cli.options import ALIASES, choices, is_flag, is_list, is_mapping, option_fields
from calculator.cli.pace import pace_json
from calculator.cli.tables import Printer
from calculator.errors import CalculatorError, InputError
from calculator.jsonout import SCHEMA, bill_json, error_json, shape_json
from calculator.presets import presets
from calculator.render import LANGUAGES, known_language
from calculator.units import Unit

COMMANDS = (*PLANS, "shape", "gpus", "presets")
EXIT_CODES: Mapping[str, int] = {"fits": 0, "does_not_fit": 1, "tight": 4}
INTERNAL_FAULT = 70
INTERRUPTED = 130
NARROWEST = 110
"""Columns of the tables where the output is no terminal."""


class Parser(argparse.ArgumentParser):
    """argparse, with a typed error in place of its exit."""

    def error(self, message: str) -> NoReturn:
        raise InputError("cli.usage", reason=message, command=self.prog)


def main(arguments: Sequence[str]) -> int:
    """Run one command. Prints, returns the exit code, and lets nothing but output out."""
    asked = list(arguments)
    printer = _printer(asked, error=False)
    try:
        code = _run(asked, printer)
        sys.stdout.flush()
        return code
    except CalculatorError as error:
        if "--json" in asked:
            _write(error_json(error, printer.language, printer.unit))
        _printer(asked, error=True).error(error)
        return error.exit_code
    except BrokenPipeError:
        # The reader has left, as "| head" does. Python would complain once more when it closes the stream.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as fault:
        _printer(asked, error=True).show(printer.say("cli.fault", kind=type(fault).__name__, detail=str(fault)[:300]))
        return INTERNAL_FAULT


def _run(arguments: list[str], printer: Printer) -> int:
    parser = build_parser()
    if not arguments:
        parser.print_help()
        return 2
    if not arguments[0].startswith("-") and arguments[0] not in COMMANDS:
        near = get_close_matches(arguments[0], COMMANDS, n=1, cutoff=0.5)
        raise InputError("cli.unknown_command", command=arguments[0][:40], near=near[0] if near else "train")
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        raise _unknown(unknown[0], options.command)
    match options.command:
        case "shape":
            model = load_model(options.model, options.revision)
            _write(shape_json(model, printer.language, printer.unit)) if options.json else printer.shape(model)
            return 0
        case "gpus":
            cards = hardware.catalogue().values()
            if options.json:
                _write({"schema": SCHEMA, "gpus": [card.model_dump(mode="json") for card in cards]})
            else:
                printer.gpus(cards)
            return 0
        case "presets":
            models = presets().values()
            if options.json:
                _write({"schema": SCHEMA, "presets": [model.model_dump(mode="json") for model in models]})
            else:
                printer.presets(models)
            return 0
        case command:
            return _bill(command, options, printer)


def _bill(command: str, options: argparse.Namespace, printer: Printer) -> int:
    fields = option_fields(PLANS[command])
    given = {name: value for name in (*fields, *ALIASES) if (value := getattr(options, name, None)) is not None}
    result = compute(
        command, options.model, given, options.plan, revision=options.revision, replay=not options.no_replay
    )
    if options.json:
        out = bill_json(
            result.bill, result.model, result.plan, result.gpu, printer.language, printer.unit, result.assumptions
        )
        _write(out if result.pace is None else out | {"pace": pace_json(result.pace)})
    else:
        printer.bill(result)
    return EXIT_CODES[result.bill.verdict]


def build_parser() -> Parser:
    """The commands and, for those that bill, an option for every field of their plan."""
    parser = Parser(prog="python -m calculator", description="GPU memory of training, fine-tuning and serving a model.")
    commands = parser.add_subparsers(dest="command", required=True, parser_class=Parser)
    for name, plan in PLANS.items():
        usage = f"python -m calculator {name} MODEL [--FIELD VALUE ...] [--gpu KEY] [--count N] [--json]"
        command = commands.add_parser(name, help=f"the bill to {name} a model", usage=usage, allow_abbrev=False)
        _model(command)
        command.add_argument("--plan", type=Path, metavar="FILE.json", help="plan fields as JSON; options win over it")
        command.add_argument("--no-replay", action="store_true", help="estimate the allocator instead of replaying it")
        _common(command)
        group = command.add_argument_group("plan")
        for field, info in option_fields(plan).items():
            _option(group, field, info)
    shape = commands.add_parser("shape", help="parameters and cache of a model", allow_abbrev=False)
    _model(shape)
    _common(shape)
    for name, purpose in (("gpus", "the cards by key"), ("presets", "the built-in models")):
        _common(commands.add_parser(name, help=purpose, allow_abbrev=False))
    return parser


def _model(parser: Parser) -> None:
    parser.add_argument("model", metavar="MODEL", help="built-in key, hub id or address, config.json or its folder")
    parser.add_argument("--revision", help="branch, tag or commit on the hub")


def _common(parser: Parser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--lang", choices=LANGUAGES, help="language of the sentences")
    parser.add_argument("--unit", choices=("GiB", "GB"), default="GiB", help="2^30 or 10^9 bytes")


def _option(group: argparse._ArgumentGroup, field: str, info: FieldInfo) -> None:
    names = [f"--{name.replace('_', '-')}" for name in (field, *(a for a, of in ALIASES.items() if of == field))]
    allowed = choices(info)
    purpose = ", ".join(allowed) if allowed else "bytes, or a size such as 24GiB" if field.endswith("_bytes") else ""
    if info.default is not None and not info.is_required():
        default = ",".join(info.default) if isinstance(info.default, tuple) else info.default
        purpose = f"{purpose} (default: {default})".strip()
    purpose = purpose.replace("%", "%%")
    if is_flag(info):
        group.add_argument(*names, dest=field, nargs="?", const="true", metavar="yes|no", help=purpose)
        group.add_argument(names[0].replace("--", "--no-", 1), dest=field, action="store_const", const="false")
    else:
        metavar = (
            "A,B"
            if is_list(info)
            else "JSON"
            if is_mapping(info) or field == "adapter"
            else "KEY"
            if field == "gpu"
            else "VALUE"
        )
        group.add_argument(*names, dest=field, metavar=metavar, help=purpose)


def _unknown(argument: str, command: str) -> InputError:
    if not argument.startswith("-"):
        return InputError("cli.extra", argument=argument[:60])
    name = argument.split("=", 1)[0]
    known = ["--json", "--lang", "--unit", "--revision"]
    if command in PLANS:
        known += ["--plan", "--no-replay", *(f"--{a}" for a in ALIASES)]
        known += [f"--{field.replace('_', '-')}" for field in option_fields(PLANS[command])]
    near = get_close_matches(name, known, n=3, cutoff=0.5)
    key = "cli.unknown_option_near" if near else "cli.unknown_option"
    return InputError(key, argument=name[:60], near=", ".join(near), command=command)


def _printer(arguments: Sequence[str], *, error: bool) -> Printer:
    """A printer by the arguments as typed, so that errors of their parsing speak the asked language too."""
    language = _after("--lang", arguments) or os.environ.get("LC_ALL") or os.environ.get("LANG") or "en"
    unit: Unit = "GB" if _after("--unit", arguments) == "GB" else "GiB"
    console = Console(stderr=error, markup=False, highlight=False, soft_wrap=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = Console(stderr=error, markup=False, highlight=False, width=NARROWEST)
    return Printer(console, known_language(language), unit)


def _after(name: str, arguments: Sequence[str]) -> str | None:
    for i, argument in enumerate(arguments):
        if argument == name and i + 1 < len(arguments):
            return arguments[i + 1]
        if argument.startswith(f"{name}="):
            return argument.split("=", 1)[1]
    return None


def _write(value: Mapping[str, Any]) -> None:
    print(json.dumps(value, ensure_ascii=False, indent=1, allow_nan=False))
