"""Gates the paper compares with, beyond those of `ritornello.common.moe`."""

import torch
from torch import Tensor

from ritornello.common.moe import EmbeddingRouter, SMoERouter
from ritornello.methods.ac_router.router import ACRouter


class StableMoERouter(EmbeddingRouter):
    """The gate of StableMoE as CompeteSMoE-like codes use it: full-width unit embeddings.

    Like the control `EmbeddingRouter`, but the stored embeddings are never rescaled.
    """

    def __init__(self, d_model: int, num_experts: int, top_k: int = 2) -> None:
        super().__init__(d_model, num_experts, top_k, embedding_norm=None)


class SMoEDropoutRouter(SMoERouter):
    """SMoE-Dropout: a random gate that is never trained, and more experts as training goes on.

    Args:
        d_model: width of the tokens.
        num_experts: number of experts.
        top_k: experts per token at the start of training.
        final_top_k: experts per token at its end; all of them by default.
    """

    def __init__(
        self,
        d_model: int,
        num_experts: int,
        top_k: int = 2,
        *,
        final_top_k: int | None = None,
    ) -> None:
        super().__init__(d_model, num_experts, top_k)
        self.first_top_k = top_k
        self.final_top_k = num_experts if final_top_k is None else final_top_k
        if not top_k <= self.final_top_k <= num_experts:
            raise ValueError(
                f"final_top_k must be in [top_k={top_k}, num_experts={num_experts}], "
                f"got {final_top_k}"
            )
        self.projection.requires_grad_(False)

    def set_progress(self, fraction: float) -> None:
        """Sets how much of training is done, in [0, 1]; k grows linearly with it."""
        if not 0 <= fraction <= 1:
            raise ValueError(f"fraction must be in [0, 1], got {fraction}")
        self.top_k = self.first_top_k + round(fraction * (self.final_top_k - self.first_top_k))

    def get_extra_state(self) -> Tensor:
        """The current k belongs into the checkpoint."""
        return torch.tensor(self.top_k)

    def set_extra_state(self, state: Tensor) -> None:
        """Restores the current k."""
        self.top_k = int(state)


def adaptive_smoe(d_model: int, num_experts: int, top_k: int = 2) -> ACRouter:
    """The adaptive weights before the plain gate: what they do without unit-norm embeddings."""
    return ACRouter(d_model, num_experts, gate=SMoERouter(d_model, num_experts, top_k))
