"""What CAV2vec is compared with: other task sets on the same encoder, and reliability scores.

AV-HuBERT, AV2vec, AV-data2vec and the paper's own ablations differ from CAV2vec only in the tasks
of `CAV2vecForPreTraining`; AV-RelScore changes the fusion (`AVHubertConfig(fusion="reliability")`).
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

TASK_SETS: dict[str, tuple[str, ...]] = {
    "avhubert": ("mlm",),
    "av_data2vec": ("mp",),
    "av2vec": ("mlm", "mp"),
    "cav2vec": ("mlm", "mp", "acp", "vcp"),
    "acp_only": ("mlm", "mp", "acp"),
    "vcp_only": ("mlm", "mp", "vcp"),
    "multimodal_target": ("mlm", "mp", "avcp"),
    "multimodal_input": ("mlm", "mp", "macp", "mvcp"),
}


class ReliabilityScores(nn.Module):
    """Scores between 0 and 1 for every frame and channel of each stream (AV-RelScore).

    Both streams are looked at over three frames; a stream that seems unreliable there is damped
    before fusion.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.context = nn.Conv1d(2 * dim, dim, 3, padding=1)
        self.audio_score = nn.Linear(dim, dim)
        self.video_score = nn.Linear(dim, dim)

    def forward(
        self, audio: Float[Tensor, "batch time dim"], video: Float[Tensor, "batch time dim"]
    ) -> tuple[Float[Tensor, "batch time dim"], Float[Tensor, "batch time dim"]]:
        """Both streams, each multiplied by its scores, (batch, time, dim) as they came."""
        both = torch.cat([audio, video], dim=-1).transpose(1, 2)
        context = torch.relu(self.context(both)).transpose(1, 2)
        return (
            audio * torch.sigmoid(self.audio_score(context)),
            video * torch.sigmoid(self.video_score(context)),
        )
