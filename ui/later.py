"""What is computed after the first paint: the browser asks for it once it has drawn what there was.

Inside a fragment the request runs that fragment alone, so a change of a setting never waits for it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable

from ui.components.mount import mount


def token(*parts: Hashable) -> str:
    """A short name of a piece of work."""
    return hashlib.blake2b(repr(parts).encode(), digest_size=9).hexdigest()


def asked(due: str | None, key: str) -> bool:
    """Has the browser ask for ``due``, None for nothing; True in the run in which it does. Takes no room."""
    result = mount("later", {"due": due}, key, on_asked_change=lambda: None)
    return due is not None and str(getattr(result, "asked", None)).partition(" ")[0] == due
