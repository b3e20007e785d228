"""One rank's whole step: what is there before it, its program, and what is left."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from calculator.hardware import Gpu
from calculator.model.shape import ModelShape
from calculator.text import Text, Value
from calculator.training import overheads
from calculator.training.assumptions import assumed
from calculator.training.build import build_program
from calculator.training.compiled import compiled
from calculator.training.numerics import Numerics
from calculator.training.optimizer import StepMemory
from calculator.training.parallel import Part, parts_of, share
from calculator.training.plan import TrainingPlan
from calculator.training.program import Program
from calculator.training.recipe import BYTES, Recipe, resolve
from calculator.training.settings import head_form, numerics
from calculator.training.sharding import FSDP, ZERO_BUCKET, Division, data_parallel, division, edits_of
from calculator.training.stack import accumulates, outputs_held, stack_of
from calculator.training.statics import Statics, statics
from calculator.training.template import rounded


@dataclass(frozen=True)
class Step:
    """The program of the worst-loaded rank, named ``rank``; ``spread``: peak bytes by rank; ``divided``: over how many
    GPUs an item is spread; ``values``: the plan's numbers for the items' formulas; ``end``: what is left after the
    last step."""

    program: Program
    rank: str = "0"
    spread: dict[str, int] = field(default_factory=dict)
    divided: dict[str, int] = field(default_factory=dict)
    values: dict[str, Value | Text] = field(default_factory=dict)
    compute_item_bytes: int = 2
    assumptions: tuple[Text, ...] = ()
    end: dict[str, int] = field(default_factory=dict)
    host_bytes: int = 0


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
    if "optimizer" in plan.offload:
        return StepMemory(states=0, temporary=0, host_states=host + states, gradients=gradients)
    return StepMemory(
        states=states, temporary=temporary, master=master, wide_gradients=wide, host_states=host, gradients=gradients
    )


def before(
    made: Statics, memory: StepMemory, plan: TrainingPlan, recipe: Recipe, gpu: Gpu, by: Division, *, tensors_only: bool
) -> dict[str, int]:
    """Bytes by item that exist before a step begins on one rank."""
    adapters = made.adapter_parameters
    if not (plan.base_quant != "none" and plan.sharding in FSDP):
        adapters = -(-adapters // by.weights)
    weights = -(-(made.parameters - made.whole) // by.weights) + made.whole
    weights += -(-made.expert_parameters // by.expert_weights)
    if "parameters" in plan.offload:
        weights = made.whole
    start = {
        "parameters": weights,
        "adapter_parameters": adapters,
        "optimizer_states": memory.master if plan.first_step else memory.states,
        "inputs": 2 * rounded(8 * plan.micro_batch * share(plan.seq_len, plan.cp)),
    }
    start |= gradient_buffers(made, plan, recipe, by)
    if not tensors_only:
        start["kernel_workspace"] = overheads.cublas_workspace_bytes(gpu)
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


def step(shape: ModelShape, plan: TrainingPlan, gpu: Gpu, *, tensors_only: bool = False) -> Step:
    """The step of the worst-loaded rank: of a pipeline, the stage with the highest peak."""
    recipe = resolve(shape, plan)
    n = numerics(shape, plan, recipe, gpu, scratch=not tensors_only)
    steps = [rank_step(shape, plan, gpu, recipe, n, part, tensors_only=tensors_only) for part in parts_of(shape, plan)]
    if len(steps) == 1:
        return steps[0]
    peaks = {one.rank: one.program.moments[one.program.peak_phase].bytes for one in steps}
    return replace(max(steps, key=lambda one: peaks[one.rank]), spread=peaks)


def rank_step(
    shape: ModelShape, plan: TrainingPlan, gpu: Gpu, recipe: Recipe, n: Numerics, part: Part, *, tensors_only: bool
) -> Step:
    """The step of a rank that runs one part of the model."""
    book = compiled(shape)
    made, by = statics(book, plan, recipe, n, part), division(plan)
    memory = divided(made, plan, by)
    start = before(made, memory, plan, recipe, gpu, by, tensors_only=tensors_only)
    edits = edits_of(made.units, plan, recipe)
    buffered = plan.framework == "megatron"
    program = build_program(start, shape, plan, n, head_form(shape, plan), memory, part, edits, buffered=buffered)
    values: dict[str, Value | Text] = {
        "model_params": shape.parameters.total,
        "trained_params": made.trained_elements,
        "layers_count": len(part.layers),
        "vocab_count": shape.vocab,
    }
    counts = {"parameters": by.weights, "gradients": by.gradients, "optimizer_states": by.states}
    host = host_memory(made, memory, plan, by)
    return Step(
        program=program,
        rank=part.name,
        values=values,
        compute_item_bytes=int(BYTES[recipe.compute]),
        end=at_end(start, made, memory, shape, plan, recipe, by),
        host_bytes=host,
        assumptions=assumed(shape, plan, recipe, n, host),
        divided={key: count for key, count in counts.items() if count > 1},
    )


def host_memory(made: Statics, memory: StepMemory, plan: TrainingPlan, by: Division) -> int:
    """Bytes in host memory for what a rank offloads: optimizer states with an fp32 gradient and a 16-bit staging copy,
    parameters."""
    host = memory.host_states
    if "optimizer" in plan.offload:
        host += 6 * made.trained_elements // by.states
    if "parameters" in plan.offload:
        host += (made.parameters - made.whole) // by.weights
    return host


def at_end(
    start: dict[str, int],
    made: Statics,
    memory: StepMemory,
    shape: ModelShape,
    plan: TrainingPlan,
    recipe: Recipe,
    by: Division,
) -> dict[str, int]:
    """Live tensors after the last step, by item."""
    brief = ("inputs",) if plan.sharding in ("zero3", "ddp") else ("inputs", "comm_buffers")
    end = {key: size for key, size in start.items() if size and key not in brief}
    if outputs_held(plan) and plan.loss == "standard":
        item = 4 if recipe.compute == "fp32" or stack_of(plan).era == "shifted_freed" else 2
        end["logits_loss"] = rounded(item * shape.vocab * plan.micro_batch * plan.seq_len)
    if memory.states:
        end["optimizer_states"] = memory.states
    if plan.sharding in FSDP and by.gradients > 1 and "parameters" not in plan.offload:
        shards = int(made.trained_elements * BYTES[recipe.gradient])
        end["gradients"] = shards // (1 if plan.base_quant != "none" else by.gradients)
    elif plan.sharding == "zero2":
        end["gradients"] = end.get("gradients", 0) + rounded(2 * made.trained_elements // by.gradients)
    return end
