"""The figures, the bar and the table of a training bill: first with the allocator's reserve as a range, and after the
first paint with the step's allocations replayed. What is needed and the verdict are the same before and after."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import streamlit as st

from calculator.bill import Bill
from calculator.errors import CalculatorError
from calculator.hardware import Gpu
from calculator.model.shape import ModelShape
from calculator.training.plan import TrainingPlan
from ui import later
from ui.kept import Kept
from ui.screen import Screen
from ui.views import table, verdict

BillOf = Callable[..., Bill]
_kept: Kept[Bill] = Kept(256)


def _key(plan: TrainingPlan, gpu: Gpu) -> Hashable:
    return plan, gpu.key, gpu.total_bytes


def replayed(shape: ModelShape, plan: TrainingPlan, gpu: Gpu, estimate: Bill, bill_of: BillOf) -> Bill:
    """The bill with the replayed reserve; the estimate where the replay cannot be made."""

    def make() -> Bill:
        try:
            return bill_of(shape, plan, gpu, replay=True)
        except CalculatorError:
            return estimate

    return _kept.make(shape, _key(plan, gpu), make)


@st.fragment
def settled_bill(screen: Screen, plan: TrainingPlan, estimate: Bill, bill_of: BillOf) -> None:
    words, shape, gpu = screen.words, screen.model.shape, screen.gpu
    with st.container(gap=None):
        found = _kept.get(shape, _key(plan, gpu))
        due = None if found is not None else later.token(id(shape), _key(plan, gpu))
        if later.asked(due, "settled.later"):
            found = replayed(shape, plan, gpu, estimate, bill_of)
        with st.container():
            bill = found or estimate
            verdict.training_figures(bill, gpu, words, estimating=found is None)
            st.caption(words("explore.replay.order"))
            table.bar(bill, words)
            table.bill_table(bill, words)
