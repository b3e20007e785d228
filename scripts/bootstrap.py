"""Make the project's Python environment with nothing but the standard library.

    python3 scripts/bootstrap.py ENVIRONMENT REQUIREMENTS...

Installs the requirement files into ENVIRONMENT, creating it first where it is missing or made for another Python. A
stamp per file remembers what was installed, so a second call returns at once and a changed file installs again.

Debian ships python3 without ensurepip, so ``python3 -m venv`` may refuse. Then the environment is laid out by hand
(PEP 405: a link to the interpreter and ``pyvenv.cfg``) and pip comes as a wheel from the package index, which pip's
own settings may name. If even that fails, root asks apt for Debian's venv package.
"""

from __future__ import annotations

import configparser
import hashlib
import os
import re
import shutil
import ssl
import subprocess
import sys
import sysconfig
import urllib.parse
import urllib.request
from collections.abc import Iterable
from pathlib import Path

OLDEST_PYTHON = (3, 11)
PIP_WHEEL = "pip-26.3-py3-none-any.whl"
PIP_WHEEL_SHA256 = "f3b60b20ffaadd4415ed7957212a38ac63fa4c5fa375bd0f4a797777940fad13"
PUBLIC_INDEX = "https://pypi.org/simple"
TIMEOUT_SECONDS = 60


class BootstrapError(Exception):
    """The environment cannot be made; the text says why and what to do."""


def main(arguments: list[str]) -> int:
    if len(arguments) < 2:
        print("usage: bootstrap.py ENVIRONMENT REQUIREMENTS...", file=sys.stderr)
        return 2
    try:
        prepare(Path(arguments[0]), [Path(name) for name in arguments[1:]])
    except BootstrapError as error:
        print(f"bootstrap: {error}", file=sys.stderr)
        return 1
    return 0


def prepare(environment: Path, requirements: list[Path]) -> None:
    """Bring ``environment`` to what the requirement files ask for."""
    if sys.version_info < OLDEST_PYTHON:
        raise BootstrapError(
            f"Python {OLDEST_PYTHON[0]}.{OLDEST_PYTHON[1]} or newer is needed, {sys.executable} is "
            f"{sys.version_info[0]}.{sys.version_info[1]}. Name another one: make PYTHON=/path/to/python3.11 ..."
        )
    if not usable(environment):
        create(environment)
    stale = [path for path in requirements if not is_current(environment, path)]
    if not stale:
        return
    print(f"bootstrap: installing {', '.join(path.name for path in stale)} into {environment}", flush=True)
    command = [python_of(environment), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for path in requirements:
        command += ["--requirement", str(path)]
    if subprocess.run(command, check=False).returncode:
        raise BootstrapError("pip could not install the requirements; its message is above.")
    for path in requirements:
        stamp(environment, path).write_text(fingerprint(path), encoding="utf-8")


def python_of(environment: Path) -> str:
    return str(environment / "bin" / "python")


def stamp(environment: Path, requirement: Path) -> Path:
    return environment / f".installed-{requirement.name}"


def fingerprint(requirement: Path) -> str:
    """What an installed file is remembered by: its text and the Python it was installed for."""
    return hashlib.sha256(requirement.read_bytes() + sys.version.encode()).hexdigest()


def is_current(environment: Path, requirement: Path) -> bool:
    path = stamp(environment, requirement)
    return path.is_file() and path.read_text(encoding="utf-8") == fingerprint(requirement)


def usable(environment: Path) -> bool:
    """Whether an environment of this very Python version with pip in it is there."""
    question = "import sys, pip; print(*sys.version_info[:2])"
    try:
        answer = subprocess.run([python_of(environment), "-c", question], capture_output=True, text=True, check=False)
    except OSError:
        return False
    return answer.stdout.split() == [str(part) for part in sys.version_info[:2]]


def create(environment: Path) -> None:
    """A fresh environment with pip, by the first way that works."""
    remove(environment)
    by_venv = [sys.executable, "-m", "venv", str(environment)]
    if subprocess.run(by_venv, capture_output=True, check=False).returncode == 0:
        return
    shutil.rmtree(environment, ignore_errors=True)  # what venv left of it
    try:
        lay_out(environment)
        install_pip(environment)
    except (OSError, BootstrapError) as error:
        if not install_debian_venv():
            raise BootstrapError(
                f"python3 -m venv does not work here and pip could not be fetched ({error}). "
                "Install Debian's python3-venv package, or set PIP_INDEX_URL to an index that this machine reaches."
            ) from error
        shutil.rmtree(environment, ignore_errors=True)
        if subprocess.run(by_venv, check=False).returncode:
            raise BootstrapError("python3 -m venv fails although its package is installed.") from error


def remove(environment: Path) -> None:
    """Clear an old environment, and refuse to delete a folder that is something else."""
    if not environment.exists():
        return
    if not (environment / "pyvenv.cfg").is_file() and any(environment.iterdir()):
        raise BootstrapError(f"{environment} exists and is not a Python environment; move it away first.")
    shutil.rmtree(environment)


def lay_out(environment: Path) -> None:
    """An environment without pip, as PEP 405 describes it."""
    interpreter = Path(getattr(sys, "_base_executable", None) or sys.executable).resolve()
    (environment / "bin").mkdir(parents=True)
    for name in ("python", "python3", f"python{sys.version_info[0]}.{sys.version_info[1]}"):
        (environment / "bin" / name).symlink_to(interpreter)
    (environment / "pyvenv.cfg").write_text(
        f"home = {interpreter.parent}\ninclude-system-site-packages = false\n"
        f"version = {'.'.join(str(part) for part in sys.version_info[:3])}\n",
        encoding="utf-8",
    )
    packages = sysconfig.get_path("purelib", scheme="venv", vars={"base": str(environment)})
    Path(packages).mkdir(parents=True)


def install_pip(environment: Path) -> None:
    """Fetch pip's wheel and let it install itself: a wheel is a zip file that Python can run."""
    wheel = environment / PIP_WHEEL
    wheel.write_bytes(fetch_pip())
    runnable = str(wheel / "pip")
    command = [python_of(environment), runnable, "install", "--quiet", "--no-index", "--no-deps", str(wheel)]
    if subprocess.run(command, check=False).returncode:
        raise BootstrapError("pip's wheel does not install itself")
    wheel.unlink()


def fetch_pip() -> bytes:
    """The wheel named above, from the first index that has it; its checksum is part of this file."""
    settings = pip_settings()
    certificates = settings.get("cert") or None
    context = ssl.create_default_context(cafile=certificates)
    failures = []
    for index in index_urls(settings):
        page = f"{index.rstrip('/')}/pip/"
        try:
            address = wheel_address(read(page, context).decode("utf-8", "replace"), page)
            content = read(address, context) if address else b""
        except OSError as error:
            failures.append(f"{index}: {error}")
            continue
        if hashlib.sha256(content).hexdigest() == PIP_WHEEL_SHA256:
            return content
        failures.append(f"{index}: {'checksum differs' if address else 'has no ' + PIP_WHEEL}")
    raise BootstrapError("; ".join(failures))


def read(address: str, context: ssl.SSLContext) -> bytes:
    with urllib.request.urlopen(address, timeout=TIMEOUT_SECONDS, context=context) as answer:
        body: bytes = answer.read()
    return body


def wheel_address(page: str, base: str) -> str | None:
    """The wheel's address on an index page (PEP 503: one link per file)."""
    found = re.search(rf"""href=["']([^"'#]*{re.escape(PIP_WHEEL)})["'#]""", page)
    return urllib.parse.urljoin(base, found.group(1)) if found else None


def index_urls(settings: dict[str, str]) -> Iterable[str]:
    """The indexes that pip itself would ask, the main one first."""
    yield settings.get("index-url") or PUBLIC_INDEX
    yield from settings.get("extra-index-url", "").split()


def pip_settings() -> dict[str, str]:
    """What pip's configuration files and environment variables say, the later overriding the earlier as in pip."""
    home = Path.home()
    folders = os.environ.get("XDG_CONFIG_DIRS", "/etc/xdg").split(":")
    files = [Path(folder) / "pip" / "pip.conf" for folder in folders if folder]
    files += [Path("/etc/pip.conf"), home / ".pip" / "pip.conf"]
    files += [Path(os.environ.get("XDG_CONFIG_HOME", home / ".config")) / "pip" / "pip.conf"]
    files += [Path(os.environ["PIP_CONFIG_FILE"])] if os.environ.get("PIP_CONFIG_FILE") else []
    settings: dict[str, str] = {}
    for file in files:
        parser = configparser.RawConfigParser()
        try:
            parser.read(file, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError):
            continue
        for section in ("global", "install"):
            if parser.has_section(section):
                settings.update(parser.items(section))
    for key in ("index-url", "extra-index-url", "cert"):
        value = os.environ.get("PIP_" + key.upper().replace("-", "_"))
        if value:
            settings[key] = value
    return settings


def install_debian_venv() -> bool:
    """Ask apt for the venv package; only root can."""
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return False
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["apt-get", "update", "-qq"], ["apt-get", "install", "-y", "-qq", "python3-venv"]):
        if subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=False).returncode:
            return False
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
