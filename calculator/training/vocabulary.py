"""A model whose vocabulary a tuning script has enlarged."""

from __future__ import annotations

from collections import OrderedDict

from calculator.model.shape import ModelShape, Tensor

_KEPT = 16
_made: OrderedDict[tuple[int, int], tuple[ModelShape, ModelShape]] = OrderedDict()


def enlarged(shape: ModelShape, added_tokens: int) -> ModelShape:
    """The shape with ``added_tokens`` more rows in embedding and head, as ``resize_token_embeddings`` makes them.

    The same object for the same question, since recordings are kept by it.
    """
    if not added_tokens:
        return shape
    key = (id(shape), added_tokens)
    found = _made.get(key)
    if found is None or found[0] is not shape:
        rows = shape.vocab + added_tokens

        def grown(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return tuple(
                tensor.model_copy(update={"shape": (rows, *tensor.shape[1:])})
                if tensor.shape[0] == shape.vocab
                else tensor
                for tensor in tensors
            )

        fields = {name: getattr(shape, name) for name in ModelShape.model_fields}
        fields |= {"vocab": rows, "embedding": grown(shape.embedding), "head": grown(shape.head)}
        found = _made[key] = (shape, ModelShape(**fields))
        while len(_made) > _KEPT:
            _made.popitem(last=False)
    return found[1]
