"""Serving: what the engine holds, and how many requests that leaves room for."""

from calculator import serving
from ui.inputs.serving import plan_inputs
from ui.screen import open_screen, with_drafter
from ui.views.serving import serving_page

if (screen := open_screen(plan_inputs, files=True)) and (screen := with_drafter(screen)):
    serving_page(screen, serving.bill)
