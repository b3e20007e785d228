"""What lies beside a bill: the replayed figure, the table of neighbours, ranks, presets, traffic, commands."""

from __future__ import annotations

import pytest

from calculator import hardware, lookup, training
from calculator.axes import around
from calculator.errors import PlanError
from calculator.render import catalogue
from calculator.serving.plan import ServingPlan
from calculator.serving.speed import Estimate
from calculator.serving.wish import options
from calculator.training.grid import MICRO_BATCHES, SEQUENCES, axes, grid
from calculator.training.plan import TrainingPlan
from calculator.units import GIB
from tests.ui.bills import training_bill
from tests.ui.test_pages import checked, figures, opened
from ui import later
from ui.i18n import Words
from ui.kept import Kept
from ui.views.cards import CARDS
from ui.views.ranks import ranks_data
from ui.views.speed import span

SMALL = "qwen2.5-0.5b"


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The browser asks for everything in the first run."""
    monkeypatch.setattr(later, "asked", lambda due, key: due is not None)


def test_the_catalogues_hold_the_same_texts() -> None:
    ids = {key for key in catalogue("en") if key.startswith("explore.")}
    assert len(ids) > 10
    assert ids == {key for key in catalogue("zh") if key.startswith("explore.")}


def test_a_first_paint_says_that_it_is_estimating() -> None:
    at = opened("training", v="1", p=SMALL, t="1333")
    notes = [metric.delta for metric in at.metric]
    assert notes.count("estimating …") == 2
    assert "–" in at.metric[1].value
    assert "–" in at.metric[2].value


def test_the_replayed_figure_takes_the_same_place(monkeypatch: pytest.MonkeyPatch) -> None:
    first = opened("training", v="1", p=SMALL, t="1334")
    monkeypatch.setattr(later, "asked", lambda due, key: due is not None)
    settled = checked(first.run())
    shape, gpu = lookup.load_preset(SMALL).shape, hardware.resolve("h100-80gb-sxm")
    plan = TrainingPlan(seq_len=1334)
    replayed = training.bill(shape, plan, gpu, replay=True)
    assert figures(settled)["Reserved"] == Words().size(replayed.reserved.value)
    assert settled.header[0].value == first.header[0].value
    assert replayed.verdict == training.bill(shape, plan, gpu).verdict
    assert not [metric for metric in settled.metric if metric.delta == "estimating …"]


@pytest.mark.parametrize("steps", [MICRO_BATCHES, SEQUENCES])
def test_an_axis_holds_the_value_and_its_length(steps: tuple[int, ...]) -> None:
    for value in (1, 2, 3, 7, 8, 100, 4096, 65_535, 200_000):
        axis = around(value, steps, 6)
        assert len(axis) == 6
        assert value in axis
        assert list(axis) == sorted(set(axis))
    assert around(steps[0], steps, 6) == around(steps[1], steps, 6)


def test_the_grid_is_the_bill_of_every_cell() -> None:
    shape, gpu = lookup.load_preset(SMALL).shape, hardware.resolve("rtx-4090-24gb")
    plan = TrainingPlan(micro_batch=4, seq_len=2048)
    cells = grid(shape, plan, gpu, *axes(shape, plan))
    flat = [cell for row in cells for cell in row]
    assert {cell.verdict for cell in flat} >= {"fits", "does_not_fit"}
    for cell in flat[::9]:
        alone = plan.model_copy(update={"micro_batch": cell.micro_batch, "seq_len": cell.seq_len})
        assert cell.need_bytes == training.bill(shape, alone, gpu).need.value
    for row in cells:
        assert [cell.need_bytes for cell in row] == sorted(cell.need_bytes for cell in row)


def test_a_cell_that_cannot_run_says_why() -> None:
    shape, gpu = lookup.load_preset(SMALL).shape, hardware.resolve("rtx-4090-24gb")

    def refusing(*_: object) -> training.bill:
        raise PlanError("training.ranks", field="n_gpus", gpus_count=1, ranks_count=2)

    cell = grid(shape, TrainingPlan(), gpu, [1], [512], refusing)[0][0]
    assert cell.verdict is None
    assert cell.refusal is not None
    assert cell.refusal.id == "training.ranks"


@pytest.mark.parametrize("page", ["training", "finetuning"])
def test_a_page_draws_its_grid(page: str, at_once: None) -> None:
    at = opened(page, v="1", p=SMALL)
    assert "Micro-batch × sequence length" in [h.value for h in at.subheader]


def test_the_worst_rank_is_named() -> None:
    at = opened("training", v="1", p="llama-3.1-8b", n="8", pp="4")
    said = [caption.value for caption in at.caption]
    assert any("pipeline stage 4, the worst-loaded" in text for text in said)
    bill = training_bill().model_copy(update={"rank": "pp1", "rank_spread": {"pp0": 2 * GIB, "pp1": 3 * GIB}})
    rows = ranks_data(bill, Words())["rows"]
    assert [row["note"] for row in rows] == ["", "worst"]
    assert rows[1]["share"] == pytest.approx(3 / 80)


def test_kept_results_are_bounded_and_by_object() -> None:
    kept: Kept[int] = Kept(2)
    one, other = lookup.load_preset(SMALL).shape, lookup.load_preset("llama-3.1-8b").shape
    assert kept.make(one, "a", lambda: 1) == 1
    assert kept.make(one, "a", lambda: 2) == 1
    assert kept.make(other, "a", lambda: 3) == 3
    kept.make(one, "b", lambda: 4)
    assert kept.get(one, "a") is None
    assert kept.get(other, "a") == 3


@pytest.mark.parametrize("page", ["training", "finetuning"])
def test_a_framework_sets_its_recipe_and_says_so(page: str) -> None:
    at = opened(page, v="1", p=SMALL)
    checked(at.selectbox(key="training.framework").set_value("torchtune").run())
    assert at.selectbox(key="training.loss").value == "chunked"
    said = [caption.value for caption in at.caption if "torchtune" in caption.value]
    assert said
    assert "Chunked cross" in said[0]
    assert not [button for button in at.button if button.key == "training.framework.reset"]
    checked(at.selectbox(key="training.loss").set_value("standard").run())
    assert any("Changed from that" in caption.value and "Loss" in caption.value for caption in at.caption)
    checked(at.button(key="training.framework.reset").click().run())
    assert at.selectbox(key="training.loss").value == "chunked"
    if page == "finetuning":
        assert at.number_input(key="adapter.rank").value == 8
        assert at.selectbox(key="adapter.targets").value == ("q", "v", "o", "gate", "up", "down")


def test_the_serving_page_draws_its_table_and_speed(at_once: None) -> None:
    at = opened("serving", v="1", p=SMALL)
    assert {"Context × concurrent requests", "Speed, as a range", "Start it"} <= {h.value for h in at.subheader}
    command = "vllm serve Qwen/Qwen2.5-0.5B --max-model-len 8192"
    assert at.code[0].value.replace("\\\n", "").split() == command.split()
    assert any(metric.label == "First token" and metric.value.endswith("ms") for metric in at.metric)


@pytest.mark.parametrize(("locale", "said"), [("en-US", "without end"), ("zh-CN", "越排越长")])
def test_traffic_beyond_what_a_replica_serves_is_said(at_once: None, locale: str, said: str) -> None:
    at = opened("serving", locale, v="1", p=SMALL, rl="chat", cc="3000")
    cells = [str(cell) for table in at.table for cell in table.value.values.flatten()]
    assert any(said in cell for cell in cells)


@pytest.mark.parametrize("locale", ["en-US", "zh-CN"])
def test_traffic_is_simulated(at_once: None, locale: str) -> None:
    at = opened("serving", locale, v="1", p=SMALL, rl="agent")
    assert not at.error
    checked(
        at.selectbox(key=f"serving.request_lengths{'.zh' if locale == 'zh-CN' else ''}").set_value("lognormal").run()
    )
    checked(at.number_input(key="serving.prompt_median_tokens").set_value(3000).run())
    assert dict(at.query_params)["rlp"] == "3000"


def test_a_pasted_command_fills_the_page() -> None:
    at = opened("serving", v="1", p=SMALL)
    line = "vllm serve llama-3.1-8b --max-model-len 16K --tensor-parallel-size 2 --frobnicate 7 --kv-cache-dtype fp8"
    checked(at.text_area(key="command.pasted").set_value(line).run())
    assert at.number_input(key="serving.max_model_len").value == 16384
    assert at.number_input(key="hardware.n_gpus").value == 2
    assert at.selectbox(key="serving.kv_cache_dtype").value == "fp8"
    assert at.text_input(key="model.id").value.endswith("Llama-3.1-8B-Instruct")
    assert any("frobnicate" in warning.value for warning in at.warning)
    assert "--frobnicate 7" in at.code[0].value.replace("\\\n", "")


@pytest.mark.parametrize("line", ["rm -rf /", "vllm serve '", "vllm serve x --max-model-len many", "a" * 5000])
def test_a_line_that_is_no_command_says_so(line: str) -> None:
    at = opened("serving", v="1", p=SMALL)
    before = figures(at)
    checked(at.text_area(key="command.pasted").set_value(line).run())
    assert at.warning
    assert figures(at) == before


def test_a_release_can_be_chosen_or_written() -> None:
    at = opened("serving", v="1", p=SMALL)
    checked(at.selectbox(key="serving.engine_version").set_value("0.19.0").run())
    assert dict(at.query_params)["ev"] == "0.19.0"
    written = opened("serving", v="1", p=SMALL, ev="0.15.1")
    assert written.selectbox(key="serving.engine_version").value == "0.15.1"


@pytest.mark.parametrize(("low", "high", "shown"), [
    (0.0144, 0.0316, "14 – 32 ms"), (0.0062, 0.0141, "6.2 – 14 ms"), (0.21, 0.38, "0.21 – 0.38 s"),
    (0.5, 2.4, "0.50 – 2.4 s"), (3.2, 14.0, "3.2 – 14 s"),
])  # fmt: skip
def test_spans_have_one_unit(low: float, high: float, shown: str) -> None:
    assert span(Estimate(low=low, value=(low + high) / 2, high=high)) == shown


@pytest.mark.parametrize("locale", ["en-US", "zh-CN"])
def test_the_fewest_cards_are_found_when_asked(locale: str) -> None:
    at = opened("serving", locale, v="1", p="llama-3.1-70b")
    at = checked(next(b for b in at.button if b.key == "cards.find").click().run())
    shape, plan = lookup.load_preset("llama-3.1-70b").shape, ServingPlan(concurrency=16, max_model_len=8192)
    best = options(shape, plan, [hardware.find(key) for key in CARDS])[0]
    shown = " ".join(str(table.value.to_dict()) for table in at.table)
    assert f"{best.plan.n_gpus} × {hardware.find(best.plan.gpu).name}" in shown
    assert any("vllm serve" in block.value for block in at.code)
