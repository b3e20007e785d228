"""Foreign text inside Markdown."""

import re

_ACTIVE = re.compile(r"([\\`*_{}\[\]<>()#+!|~$:^&@/-])")


def plain(text: str) -> str:
    """``text`` so that Streamlit's Markdown shows it as it is: no link, image, colour, icon, formula or HTML."""
    return _ACTIVE.sub(r"\\\1", " ".join(text.split()))
