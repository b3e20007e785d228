"""``python -m tests.fakehub --port 8600``: serve the fake hub; point ``HF_ENDPOINT`` at the address it prints."""

import argparse
import contextlib

from tests.fakehub import FakeHub, good_repos, troubled_repos
from tests.fakehub.server import wait_forever

parser = argparse.ArgumentParser(prog="python -m tests.fakehub", description=__doc__)
parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
hub = FakeHub([*good_repos(), *troubled_repos()], parser.parse_args().port)
print(hub.endpoint, flush=True)
with contextlib.suppress(KeyboardInterrupt):
    wait_forever(hub)
