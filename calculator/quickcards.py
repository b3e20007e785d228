"""The rules of thumb for training, as arithmetic on round numbers: what a person computes in the head.

Full training: 2 bytes a parameter for weights, 2 for gradients, 12 for the optimizer (two fp32 moments and an fp32
copy of the weights), plus activations. Fine-tuning with adapters: the frozen base, the adapters with their states,
the activations of a checkpointed step, and the framework. The bill replaces each of them by what the model and the
software really take; ``why`` says where the two part.
"""

from __future__ import annotations

from typing import Literal

from calculator.base import Frozen
from calculator.text import Text, text
from calculator.units import GB

Card = Literal["full", "lora", "qlora"]
WEIGHT_BYTES, GRADIENT_BYTES, OPTIMIZER_BYTES = 2, 2, 12
"""A parameter in 16-bit mixed precision: its weight, its gradient, and two fp32 moments with an fp32 master copy."""


class FullCard(Frozen):
    """The four-item bill of full training, before activations. Sizes in bytes."""

    parameters: int

    @property
    def weights_bytes(self) -> int:
        return self.parameters * WEIGHT_BYTES

    @property
    def gradients_bytes(self) -> int:
        return self.parameters * GRADIENT_BYTES

    @property
    def optimizer_bytes(self) -> int:
        return self.parameters * OPTIMIZER_BYTES

    @property
    def total_bytes(self) -> int:
        return self.weights_bytes + self.gradients_bytes + self.optimizer_bytes


class AdapterCard(Frozen):
    """The three-item bill of LoRA or QLoRA at batch 1 and 2048 tokens, checkpointed, as a low and a high end.

    ``base_bytes_per_parameter``: 2 for a 16-bit base, about 0.55 for 4-bit blocks with their scales. Adapters with
    gradients and states stay under 1 GB. Activations are 2 to 4 GB for 7 B and grow with layers times width, taken as
    the parameters to the power of 2/3. The framework (context, kernels, unpacked matrices, cache) has its own range.
    """

    parameters: int
    base_bytes_per_parameter: float = 2.0
    adapters_bytes: tuple[int, int] = (GB // 2, GB)
    activations_7b_bytes: tuple[int, int] = (2 * GB, 4 * GB)
    framework_bytes: tuple[int, int] = (1 * GB, 3 * GB)

    @property
    def base_bytes(self) -> int:
        return int(self.parameters * self.base_bytes_per_parameter)

    @property
    def range_bytes(self) -> tuple[int, int]:
        growth = (self.parameters / 7e9) ** (2 / 3)
        low, high = (
            self.base_bytes
            + self.adapters_bytes[i]
            + int(self.activations_7b_bytes[i] * growth)
            + self.framework_bytes[i]
            for i in range(2)
        )
        return low, high

    @property
    def total_bytes(self) -> int:
        """The middle of the range."""
        return sum(self.range_bytes) // 2


def full(parameters: int) -> FullCard:
    return FullCard(parameters=parameters)


def lora(parameters: int) -> AdapterCard:
    """A 16-bit frozen base."""
    return AdapterCard(parameters=parameters)


def qlora(parameters: int) -> AdapterCard:
    """A 4-bit frozen base; the framework's part is larger, as matrices are unpacked and norms and head stay wide."""
    return AdapterCard(
        parameters=parameters, base_bytes_per_parameter=0.55, framework_bytes=(37 * GB // 10, 49 * GB // 10)
    )


def why(card: Card) -> tuple[Text, ...]:
    """Why a real step takes more or less than the card says."""
    reasons = {
        "full": ("pure_16_bit", "optimizer_step", "logits", "activations"),
        "lora": ("adapters_small", "checkpoints_small", "logits", "framework_small"),
        "qlora": ("head_wide", "logits", "kept_inputs", "framework_small"),
    }[card]
    return tuple(text(f"training.card.{reason}") for reason in reasons)
