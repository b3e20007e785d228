"""The result of the training and the fine-tuning page."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from calculator.bill import Bill, TimePoint
from calculator.errors import CalculatorError, NotTrainableError
from calculator.hardware import Gpu
from calculator.model.shape import ModelShape
from calculator.training.plan import TrainingPlan
from ui.inputs.model import base_model_button
from ui.screen import Screen
from ui.settings import Page
from ui.views import notes, share, step, verdict
from ui.views.host import host_memory
from ui.views.neighbours import neighbours
from ui.views.ranks import ranks
from ui.views.settled import replayed, settled_bill

BillOf = Callable[..., Bill]
TimelineOf = Callable[[ModelShape, TrainingPlan, Gpu], Sequence[TimePoint]]


def training_page(page: Page, screen: Screen, bill_of: BillOf, timeline_of: TimelineOf) -> None:
    words, shape, gpu = screen.words, screen.model.shape, screen.gpu
    plan = screen.settings.training_plan(page)
    try:
        screen.model.check_trainable()
        bill = bill_of(shape, plan, gpu)
        points = timeline_of(shape, plan, gpu)
    except CalculatorError as error:
        notes.refusal(error, words)
        if isinstance(error, NotTrainableError):
            base_model_button(words, screen.model.base_model)
        return
    sentence = verdict.verdict_text(bill, screen.model, gpu, plan.n_gpus, words)
    verdict.headline(bill.verdict, sentence, verdict.need_text(bill, words))
    settled_bill(screen, plan, bill, bill_of)
    step.step_over_time(points, bill, words)
    ranks(bill, words)
    host_memory(bill, words)
    neighbours(screen, plan, bill_of)
    notes.assumptions((*screen.model.assumptions, *bill.assumptions), words)
    share.share(page, screen, bill, plan, settled=lambda: replayed(shape, plan, gpu, bill, bill_of))
