"""Cross-model DPO: the loss on the corrections of two models (paper eq. 8)."""

from jaxtyping import Bool, Float, Int
from torch import Tensor

from ritornello.common.training.preference import dpo_loss


def sequence_logprob(
    logits: Float[Tensor, "batch tokens vocabulary"],
    ids: Int[Tensor, "batch tokens"],
    mask: Bool[Tensor, "batch tokens"],
) -> Float[Tensor, " batch"]:
    """Summed log-probability (natural log) of the masked tokens; token t is predicted at t - 1.

    Args:
        logits: of a causal model that read `ids`.
        ids: prompt and completion.
        mask: true on the completion's tokens. The first token of a row cannot be predicted.

    Raises:
        ValueError: shapes that do not fit, or a mask that holds a row's first token.
    """
    if logits.shape[:2] != ids.shape or mask.shape != ids.shape:
        raise ValueError(
            f"logits, ids and mask must agree in (batch, tokens), got {tuple(logits.shape)}, "
            f"{tuple(ids.shape)} and {tuple(mask.shape)}"
        )
    if mask[:, 0].any():
        raise ValueError("mask must be false on the first token of each row, which has no context")
    wide = logits[:, :-1] if logits.element_size() == 8 else logits[:, :-1].float()
    picked = wide.log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1)
    return picked.masked_fill(~mask[:, 1:].bool(), 0.0).sum(1)


def cross_dpo_loss(
    policy_chosen_logps: Float[Tensor, " pairs"],
    policy_rejected_logps: Float[Tensor, " pairs"],
    ref_chosen_logps: Float[Tensor, " pairs"],
    ref_rejected_logps: Float[Tensor, " pairs"],
    beta: float = 0.1,
) -> tuple[Float[Tensor, " pairs"], Float[Tensor, " pairs"], Float[Tensor, " pairs"]]:
    """Eq. 8 for each pair: chosen = the teacher's correction, rejected = the student's own.

    Args:
        policy_chosen_logps: summed log-probability of the teacher's (a+, c+) under the policy.
        policy_rejected_logps: the same of the student's (a-, c-).
        ref_chosen_logps: as the first, under the HSFT model.
        ref_rejected_logps: as the second, under the HSFT model.
        beta: > 0. The paper does not state it; 0.1 is trl's default.

    Returns:
        Per-pair loss, chosen reward and rejected reward (the rewards without gradient). Train on
        the mean of the first.

    Raises:
        ValueError: `beta` <= 0 or unequal shapes.
    """
    if not beta > 0:
        raise ValueError(f"beta must be > 0, got {beta}")
    logps = (policy_chosen_logps, policy_rejected_logps, ref_chosen_logps, ref_rejected_logps)
    if len({value.shape for value in logps}) != 1:
        raise ValueError(
            f"the four log-probabilities must have one shape, got {[tuple(v.shape) for v in logps]}"
        )
    return dpo_loss(*logps, beta=beta)
