"""LoRA, QLoRA and DoRA: a frozen base, small adapters, and what one step holds at its peak."""

from calculator import training
from ui.inputs.training import plan_inputs
from ui.screen import open_screen
from ui.views.training import training_page

if screen := open_screen(lambda words: plan_inputs("finetuning", words)):
    training_page("finetuning", screen, training.bill, training.timeline)
