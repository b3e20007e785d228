"""One rank's whole step: what is there before it, its program, and what is left."""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import itemgetter

from calculator.bill import HostBill
from calculator.hardware import Gpu
from calculator.model.shape import ModelShape
from calculator.text import Text, Value
from calculator.training import fp8, overheads
from calculator.training.assumptions import Assumed, assumed, evaluated, too_long
from calculator.training.build import build_pattern
from calculator.training.compiled import compiled
from calculator.training.forms import NOTHING, Form, rounded
from calculator.training.host import host_bill, offloaded, steps_on_host, with_activations
from calculator.training.loading import card_copies
from calculator.training.numerics import Numerics
from calculator.training.optimizer import StepMemory
from calculator.training.parallel import Part, degrees, parts_of
from calculator.training.pattern import Pattern
from calculator.training.plan import TrainingPlan
from calculator.training.program import Program, Walk
from calculator.training.recipe import BYTES, Recipe, adapted, resolve
from calculator.training.settings import head_form, numerics, outputs_fp32, regime, row_counts
from calculator.training.sharding import FSDP, ZERO_BUCKET, Division, data_parallel, division, edits_of
from calculator.training.stack import accumulates, expandable, outputs_held, stack_of
from calculator.training.statics import Statics, groups_of, statics
from calculator.training.tape import TOKENS


@dataclass(frozen=True, eq=False)
class RankStep:
    """The step of a rank that runs one part of the model, for every micro-batch and length. The other fields are those
    of ``Step``."""

    pattern: Pattern
    part: Part
    values: dict[str, Value | Text]
    divided: dict[str, int]
    compute_item_bytes: int
    end: dict[str, Form]
    host: HostBill | None
    offloaded: Form
    loading: dict[str, int]
    assumed: Assumed
    apart: dict[str, dict[str, int]]


@dataclass(frozen=True, eq=False)
class Step:
    """The program of the worst-loaded rank, named ``rank``; ``spread``: peak bytes by rank; ``divided``: over how many
    GPUs an item is spread; ``values``: the plan's numbers for the items' formulas; ``end``: what is left after the
    last step; ``apart``: items of which experts have a division of their own; ``host``: what the process holds in host
    memory; ``loading``: bytes by item at loading's own highest instant, where that is not just the weights."""

    program: Program
    rank: str
    spread: dict[str, int]
    divided: dict[str, int]
    values: dict[str, Value | Text]
    compute_item_bytes: int
    assumptions: tuple[Text, ...]
    end: dict[str, int]
    host: HostBill | None
    loading: dict[str, int]
    apart: dict[str, dict[str, int]]


def divided(made: Statics, plan: TrainingPlan, by: Division) -> StepMemory:
    """The optimizer's memory on one of the ranks that share its states; experts have their own number of such ranks."""
    memory, experts = made.memory, made.expert_memory
    if plan.base_quant != "none" and plan.sharding in FSDP:
        by = Division()

    def both(name: str) -> int:
        dense, expert = getattr(memory, name), getattr(experts, name)
        return int(-(-dense // by.states) + -(-expert // by.expert_states))

    states, temporary, wide, master = both("states"), both("temporary"), both("wide_gradients"), both("master")
    if plan.sharding in ("fsdp2", "hsdp") and plan.optimizer == "adamw_foreach":
        temporary = 2 * rounded(4 * made.largest // by.states)
    host = both("host_states")
    gradients = memory.gradients + experts.gradients
    if steps_on_host(plan):
        return StepMemory(states=0, temporary=0, host_states=host + states, host_master=master, gradients=gradients)
    return StepMemory(
        states=states, temporary=temporary, master=master, wide_gradients=wide, host_states=host, gradients=gradients
    )


def before(
    made: Statics, memory: StepMemory, plan: TrainingPlan, recipe: Recipe, gpu: Gpu, by: Division, *, tensors_only: bool
) -> dict[str, Form]:
    """Bytes by item that exist before a step begins on one rank. 8-bit parameters replace 16-bit ones among the
    weights, else their casts are an item of their own."""
    adapters = made.adapter_parameters
    if not (plan.base_quant != "none" and plan.sharding in FSDP):
        adapters = -(-adapters // by.weights)
    weights = -(-(made.parameters - made.whole) // by.weights) + made.whole
    weights += -(-made.expert_parameters // by.expert_weights)
    eight_bit = -(-fp8.resident_bytes(made.products, plan, gpu) // by.weights)
    if plan.fp8_param_gather:
        weights, eight_bit = weights + eight_bit, 0
    if "parameters" in plan.offload:
        weights = made.whole
    start = {
        "parameters": Form.of(weights),
        "adapter_parameters": Form.of(adapters),
        "optimizer_states": Form.of(memory.master if plan.first_step else memory.states),
        "inputs": 2 * Form.allocation(TOKENS, 8),
    }
    start |= {key: Form.of(size) for key, size in gradient_buffers(made, plan, recipe, by).items()}
    if eight_bit:
        start["casts"] = Form.of(eight_bit)
    if not tensors_only:
        start["kernel_workspace"] = Form.of(overheads.cublas_workspace_bytes(gpu))
    return start


def gradient_buffers(made: Statics, plan: TrainingPlan, recipe: Recipe, by: Division) -> dict[str, int]:
    """Buffers for gradients that a framework makes before the first step."""
    item, elements = BYTES[recipe.gradient], made.trained_elements
    if plan.framework == "megatron":
        return {"gradients": int(elements * item)}
    if plan.n_gpus == 1 or data_parallel(plan) == 1:
        return {}
    part = rounded(2 * -(-elements // data_parallel(plan)))
    match plan.sharding:
        case "ddp":
            return {"comm_buffers": int(elements * item)}
        case "zero1":
            return {"gradients": part}
        case "zero2" if accumulates(plan) and "optimizer" not in plan.offload:
            return {"gradients": part}
        case "zero3":
            bucket = 2 * min(plan.zero_reduce_bucket or ZERO_BUCKET, elements)
            return {"gradients": 0 if "optimizer" in plan.offload else part, "comm_buffers": bucket}
    return {}


def step(shape: ModelShape, plan: TrainingPlan, gpu: Gpu, *, tensors_only: bool = False, rank: str = "") -> Step:
    """The step of the worst-loaded rank, of a pipeline the stage with the highest peak; or of the ``rank`` named."""
    ranks = compiled(shape).steps.ask(
        (regime(shape, plan), structure(plan), gpu.vendor, gpu.compute_capability, tensors_only),
        lambda: rank_steps(shape, plan, gpu, tensors_only=tensors_only),
    )
    rows = row_counts(shape, plan)
    walks = {pattern: Walk(pattern, rows) for pattern in {one.pattern: None for one in ranks}}
    programs = [Program(one.pattern, walks[one.pattern], one.part.in_flight) for one in ranks]
    wanted = [both for both in zip(ranks, programs, strict=True) if not rank or both[0].part.name == rank]
    made, program = max(wanted, key=lambda both: both[1].peak_bytes)
    peaks = {one.part.name: its.peak_bytes for one, its in zip(ranks, programs, strict=True)}
    host = made.host
    if made.offloaded:
        host = with_activations(host, made.offloaded, rows, made.part.in_flight, plan)
    return Step(
        program=program,
        rank=made.part.name,
        spread=peaks if len(peaks) > 1 else {},
        divided=made.divided,
        values=made.values,
        compute_item_bytes=made.compute_item_bytes,
        assumptions=(*made.assumed.before, *too_long(shape, plan), *made.assumed.after, *evaluated(plan)),
        end={key: form.at(rows) for key, form in made.end.items()},
        host=host,
        loading=made.loading,
        apart=made.apart,
    )


def structure(plan: TrainingPlan) -> tuple[object, ...]:
    """All of a plan but its micro-batch, length and card; and what hangs on whether a field was set."""
    return (accumulates(plan), expandable(plan), outputs_fp32(plan), *STRUCTURE(plan.__dict__))


SIZES = ("micro_batch", "seq_len", "gpu", "gpu_capacity_bytes", "eval_batch", "eval_accumulation_steps")
STRUCTURE = itemgetter(*(name for name in TrainingPlan.model_fields if name not in SIZES))


def rank_steps(shape: ModelShape, plan: TrainingPlan, gpu: Gpu, *, tensors_only: bool) -> tuple[RankStep, ...]:
    """The steps of all ranks that differ. Ranks with equal parts share a pattern."""
    recipe = resolve(shape, plan)
    n = numerics(shape, plan, recipe, gpu, scratch=not tensors_only)
    found: dict[Part, RankStep] = {}
    steps = []
    for part in parts_of(shape, plan):
        alike = replace(part, in_flight=1.0, name="")
        if alike not in found:
            found[alike] = rank_step(shape, plan, gpu, recipe, n, alike, tensors_only=tensors_only)
        steps.append(replace(found[alike], part=part))
    return tuple(steps)


def rank_step(
    shape: ModelShape, plan: TrainingPlan, gpu: Gpu, recipe: Recipe, n: Numerics, part: Part, *, tensors_only: bool
) -> RankStep:
    """The step of a rank that runs one part of the model."""
    book = compiled(shape)
    made, by = statics(book, plan, recipe, n, part), division(plan)
    memory = divided(made, plan, by)
    start = before(made, memory, plan, recipe, gpu, by, tensors_only=tensors_only)
    edits = edits_of(made.units, plan, recipe)
    buffered = plan.framework == "megatron"
    pattern = build_pattern(start, shape, plan, n, head_form(shape, plan), memory, part, edits, buffered=buffered)
    values: dict[str, Value | Text] = {
        "model_params": shape.parameters.total,
        "trained_params": made.trained_elements,
        "layers_count": len(part.layers),
        "vocab_count": shape.vocab,
    }
    counts = {"parameters": by.weights, "gradients": by.gradients, "optimizer_states": by.states}
    apart = apart_experts(shape, plan, by) if n.degrees.expert > 1 else {}
    return RankStep(
        pattern=pattern,
        part=part,
        values=values,
        compute_item_bytes=int(BYTES[recipe.compute]),
        end=at_end(start, made, memory, shape, plan, recipe, by),
        host=host_bill(made, memory, shape, plan, recipe, by),
        offloaded=offloaded(pattern.stages),
        loading=card_copies(groups_of(book, n, part), book.units_for(n).head, book.buffers_bytes, plan, recipe),
        assumed=assumed(shape, plan, recipe, n),
        divided={key: count for key, count in counts.items() if count > 1},
        apart=apart,
    )


def apart_experts(shape: ModelShape, plan: TrainingPlan, by: Division) -> dict[str, dict[str, int]]:
    """By item, how many weights lie outside and inside experts, and over how many ranks each of the two is spread:
    experts over their own groups, and their states over the ranks that hold the same experts."""
    inside = sum(t.elements for i in shape.order for t in shape.blocks[i].tensors if t.component == "experts")
    cut, own = plan.tp * plan.pp, plan.ep * degrees(plan).expert_tensor * plan.pp
    shards = {"parameters": (by.weights, by.expert_weights)}
    if not adapted(plan):
        shards["gradients"] = (by.gradients, by.expert_weights if by.gradients > 1 else 1)
        shards["optimizer_states"] = (by.states, by.expert_states)
    return {
        key: {
            "dense_params": shape.parameters.total - inside,
            "dense_gpus_count": cut * dense,
            "expert_params": inside,
            "expert_gpus_count": own * expert,
        }
        for key, (dense, expert) in shards.items()
    }


def at_end(
    start: dict[str, Form],
    made: Statics,
    memory: StepMemory,
    shape: ModelShape,
    plan: TrainingPlan,
    recipe: Recipe,
    by: Division,
) -> dict[str, Form]:
    """Live tensors after the last step, by item."""
    brief = ("inputs",) if plan.sharding in ("zero3", "ddp") else ("inputs", "comm_buffers")
    end = {key: size for key, size in start.items() if size and key not in brief}
    if outputs_held(plan) and plan.loss == "standard":
        item = 4 if recipe.compute == "fp32" or stack_of(plan).era == "shifted_freed" else 2
        end["logits_loss"] = Form.allocation(TOKENS, item * shape.vocab * plan.cp)
    if memory.states:
        end["optimizer_states"] = Form.of(memory.states)
    if plan.sharding in FSDP and by.gradients > 1 and "parameters" not in plan.offload:
        shards = int(made.trained_elements * BYTES[recipe.gradient])
        end["gradients"] = Form.of(shards // (1 if plan.base_quant != "none" else by.gradients))
    elif plan.sharding == "zero2":
        end["gradients"] = end.get("gradients", NOTHING) + rounded(2 * made.trained_elements // by.gradients)
    return end
