"""Measured memory of real runs, and how far the calculator is from it.

``data/`` holds the cases with their sources. A case is a plan plus readings: ``plans`` turns it into the calculator's
own plan, ``training``, ``serving``, ``lab`` and ``facts`` predict what was measured, ``score`` compares, ``report``
prints. ``python -m validation FILE...`` scores files, without a file the cases of ``data/``.
"""
