"""Log-probabilities of given tokens without the logits of all positions at once.

With a vocabulary of 152 thousand, the logits of a batch of completions and the copies that a loss
makes of them outweigh the model. Here the head projects a few positions at a time, forward and
again backward, and keeps one number of each.

Shape legend: rows = scored positions; width of the hidden states; vocabulary.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

FEW_LOGITS = 2**25
"""Up to so many, 128 MiB in float32, logits are held at once: one projection less."""
_TILE = 2**23
# what a model does to its logits after the head, by the name in its configuration
_AFTER_HEAD = (
    "final_logit_softcapping",
    "logit_scale",
    "logits_scaling",
    "lm_head_multiplier",
    "output_multiplier",
)


class _TokenLogProbs(torch.autograd.Function):
    """log softmax(hidden weight^T + bias) at `ids`; the backward pass projects once more."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, ids: Tensor):
        normalizer = torch.empty(len(hidden), dtype=torch.float32, device=hidden.device)
        values = torch.empty_like(normalizer)
        for tile in _tiles(hidden, weight):
            logits = F.linear(hidden[tile], weight, bias).float()
            normalizer[tile] = logits.logsumexp(1)
            values[tile] = logits.gather(1, ids[tile, None]).squeeze(1) - normalizer[tile]
        ctx.save_for_backward(hidden, weight, bias, ids, normalizer)
        return values

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor):
        hidden, weight, bias, ids, normalizer = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        to_hidden = torch.empty_like(hidden) if wanted[0] else None
        # float32: tiles add up, and a sum in bf16 would lose what the later ones bring
        to_weight = torch.zeros_like(weight, dtype=torch.float32) if wanted[1] else None
        to_bias = torch.zeros_like(bias, dtype=torch.float32) if wanted[2] else None
        for tile in _tiles(hidden, weight):
            share = F.linear(hidden[tile], weight, bias).float()
            share = share.sub_(normalizer[tile, None]).exp_().neg_()
            share.scatter_add_(1, ids[tile, None], torch.ones_like(share[:, :1]))
            share.mul_(gradients[0][tile, None])
            if to_bias is not None:
                to_bias += share.sum(0)
            share = share.to(weight.dtype)
            if to_hidden is not None:
                to_hidden[tile] = share @ weight
            if to_weight is not None:
                _add_product(to_weight, share.T, hidden[tile])
        return (
            to_hidden,
            None if to_weight is None else to_weight.to(weight.dtype),
            None if to_bias is None else to_bias.to(bias.dtype),
            None,
        )


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    if left.dtype == total.dtype:
        total.addmm_(left, right)
    else:
        total += left @ right


def _tiles(hidden: Tensor, weight: Tensor) -> Iterator[slice]:
    rows = max(1, _TILE // len(weight))
    return (slice(start, start + rows) for start in range(0, len(hidden), rows))


def token_logprobs(
    hidden: Float[Tensor, "rows width"],
    weight: Float[Tensor, "vocabulary width"],
    bias: Float[Tensor, " vocabulary"] | None,
    ids: Int[Tensor, " rows"],
) -> Float[Tensor, " rows"]:
    """Log-probability (natural log, float32) of token `ids[i]` under the head at `hidden[i]`."""
    kind = hidden.device.type
    if torch.is_autocast_enabled(kind):
        precision = torch.get_autocast_dtype(kind)
        hidden, weight = hidden.to(precision), weight.to(precision)
        bias = None if bias is None else bias.to(precision)
    with torch.autocast(kind, enabled=False):
        return _TokenLogProbs.apply(hidden, weight, bias, ids)  # type: ignore[return-value]


def tiled_logprobs(
    model: nn.Module,
    inputs: Mapping[str, Any],
    sources: Int[Tensor, " tokens"],
    ids: Int[Tensor, "batch tokens"],
    mask: Bool[Tensor, "batch tokens"],
) -> Float[Tensor, "batch tokens"] | None:
    """Log-probabilities (natural log) of `ids`, tile by tile; None where the logits may be held.

    Args:
        model: a transformers causal language model, wrapped for several processes or not.
        inputs: its arguments.
        sources: position, of those whose logits the model keeps, that predicts each column of ids.
        ids: tokens to score.
        mask: where they count; elsewhere the result is 0 and nothing is computed.
    """
    head = _plain_head(model)
    if head is None or ids.numel() * head.out_features <= FEW_LOGITS:
        return None

    def forward(input: Tensor) -> Tensor:
        rows = input.index_select(1, sources)[mask]
        values = token_logprobs(rows, head.weight, head.bias, ids[mask])
        return values.new_zeros(mask.shape).masked_scatter(mask, values)

    # in the head's place, so that wrappers see a forward of the whole model
    head.forward = forward  # type: ignore[method-assign, assignment]
    try:
        return model(**inputs).logits
    finally:
        del head.forward


def _plain_head(model: Any) -> nn.Linear | None:
    """The head of a transformers model whose outputs are the logits; None where more follows."""
    inner = getattr(model, "module", model)
    config = getattr(inner, "config", None)
    if config is None or hasattr(model, "_orig_mod"):  # a compiled model would compile every step
        return None
    text, head = config.get_text_config(), inner.get_output_embeddings()
    changed = any(getattr(text, name, None) not in (None, 1.0) for name in _AFTER_HEAD)
    return None if changed or type(head) is not nn.Linear else head
