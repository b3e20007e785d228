"""Full training: what one step of it holds at its peak."""

from calculator import training
from ui.inputs.training import plan_inputs
from ui.screen import open_screen
from ui.views.training import training_page

if screen := open_screen(lambda words: plan_inputs("training", words)):
    training_page("training", screen, training.bill, training.timeline)
