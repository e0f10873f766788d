"""Vision models of the paper: Swin-MoE and a SoftMoE ViT, timm backbones with MoE blocks."""

from collections.abc import Sequence
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from ritornello.common.moe import Experts, MoELayer, RoutingState, SMoERouter
from ritornello.common.moe.losses import importance_loss, load_loss
from ritornello.methods.ac_router.router import ACRouter, RouterFactory
from ritornello.methods.ac_router.softmoe import ACSoftMoE
from ritornello.methods.ac_router.thread import RoutingThread


class ThreadedMoE(nn.Module):
    """An MoE layer in the place of a block's MLP: reads and continues the model's thread."""

    def __init__(
        self, layer: nn.Module, thread: RoutingThread, *, first: bool, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.layer = layer
        self.thread = thread
        self.first = first
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Float[Tensor, "b m d"]) -> Float[Tensor, "b m d"]:
        """Routes with the state of the stage's previous MoE layer."""
        previous = None if self.first else self.thread.previous
        output, state = self.layer(tokens, previous)
        self.thread.states.append(state)
        return self.dropout(output)


class MoEClassifier(nn.Module):
    """A timm classifier some of whose MLPs are MoE layers.

    Args:
        backbone: the classifier; the named submodules are replaced in place.
        layers: MoE layers by submodule name, in the order in which they run.
        first: names of those that start a stage: they see no previous assignment.
        dropout: on the MoE layers' outputs.
    """

    def __init__(
        self,
        backbone: nn.Module,
        layers: dict[str, nn.Module],
        *,
        first: Sequence[str],
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.thread = RoutingThread()
        for name, layer in layers.items():
            moe = ThreadedMoE(layer, self.thread, first=name in first, dropout=dropout)
            backbone.set_submodule(name, moe)

    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b classes"]:
        """Classifies images; the routing of this pass is in `states` afterwards."""
        self.thread.begin()
        logits = self.backbone(images)
        self.thread.end()
        return logits

    @property
    def states(self) -> list[RoutingState]:
        """Routing states of the last forward pass, one per MoE layer."""
        return self.thread.states

    def balance_loss(self) -> Float[Tensor, ""]:
        """Mean over MoE layers of (importance + load) / 2, for the last forward pass."""
        losses = [(importance_loss(state) + load_loss(state)) / 2 for state in self.states]
        return sum(losses[1:], losses[0]) / len(losses)


def linear_gate(d_model: int, num_experts: int, top_k: int = 2) -> SMoERouter:
    """Swin-MoE's gate: linear without bias, softmax over the kept logits."""
    return SMoERouter(d_model, num_experts, top_k, bias=False)


def adaptive_linear_gate(
    d_model: int, num_experts: int, top_k: int = 2, **weight_options: Any
) -> ACRouter:
    """The paper's Swin recipe: the linear gate on scaled tokens, clip 1.5, global scale."""
    options = {"clip": 1.5, "scale": "global_preclip"} | weight_options
    return ACRouter(d_model, num_experts, gate=linear_gate(d_model, num_experts, top_k), **options)


def swin_moe(
    gate: RouterFactory = linear_gate,
    adaptive_gate: RouterFactory | None = adaptive_linear_gate,
    *,
    img_size: int = 224,
    patch_size: int = 4,
    in_chans: int = 3,
    num_classes: int = 1000,
    embed_dim: int = 96,
    depths: Sequence[int] = (2, 2, 18, 2),
    num_heads: Sequence[int] = (3, 6, 12, 24),
    window_size: int = 7,
    mlp_ratio: float = 4.0,
    drop_path_rate: float = 0.2,
    num_experts: int = 16,
    capacity_factor: float | None = 1.25,
    moe_dropout: float = 0.1,
) -> MoEClassifier:
    """Swin-MoE: the odd blocks of the last two stages are MoE (Swin-S: 1,3,..,17 and 1).

    Within a stage the first MoE block has the ordinary gate, the others the adaptive one, whose
    experts see the scaled tokens too. Assignments do not cross stages.

    Args:
        gate: makes the ordinary gate from (width, experts).
        adaptive_gate: makes the others; None gives the baseline, ordinary gates everywhere.
        img_size: side of the images; the rest up to `drop_path_rate` is timm's `SwinTransformer`.
        num_experts: experts per MoE block.
        capacity_factor: see `MoELayer`.
        moe_dropout: on the MoE blocks' outputs.
    """
    from timm.models.swin_transformer import SwinTransformer

    backbone = SwinTransformer(
        img_size=img_size,
        patch_size=patch_size,
        in_chans=in_chans,
        num_classes=num_classes,
        embed_dim=embed_dim,
        depths=tuple(depths),
        num_heads=tuple(num_heads),
        window_size=window_size,
        mlp_ratio=mlp_ratio,
        drop_path_rate=drop_path_rate,
    )
    layers: dict[str, nn.Module] = {}
    first: list[str] = []
    for stage in range(max(len(depths) - 2, 0), len(depths)):
        width = embed_dim * 2**stage
        for block in range(1, depths[stage], 2):
            name = f"layers.{stage}.blocks.{block}.mlp"
            if block == 1:
                first.append(name)
            make = gate if block == 1 or adaptive_gate is None else adaptive_gate
            experts = Experts(num_experts, width, int(mlp_ratio * width), activation="gelu")
            layers[name] = MoELayer(
                experts,
                make(width, num_experts),
                scale_expert_input=True,
                capacity_factor=capacity_factor,
            )
    return MoEClassifier(backbone, layers, first=first, dropout=moe_dropout)


def soft_moe_vit(
    *,
    adaptive: bool = True,
    img_size: int = 224,
    patch_size: int = 16,
    in_chans: int = 3,
    num_classes: int = 1000,
    embed_dim: int = 192,
    depth: int = 12,
    num_heads: int = 3,
    num_experts: int = 128,
    slots: int = 1,
    top_k: int = 8,
    drop_path_rate: float = 0.0,
) -> MoEClassifier:
    """SoftMoE ViT-tiny: the second half of the blocks is SoftMoE, all but the first adaptive.

    Args:
        adaptive: False gives the SoftMoE baseline.
        img_size: side of the images; the rest up to `num_heads` is timm's `VisionTransformer`.
        num_experts: experts per SoftMoE block.
        slots: slots per expert.
        top_k: slots that mix a token's weights.
        drop_path_rate: stochastic depth.
    """
    from timm.models.vision_transformer import VisionTransformer

    backbone = VisionTransformer(
        img_size=img_size,
        patch_size=patch_size,
        in_chans=in_chans,
        num_classes=num_classes,
        embed_dim=embed_dim,
        depth=depth,
        num_heads=num_heads,
        drop_path_rate=drop_path_rate,
        class_token=False,
        global_pool="avg",
    )
    names = [f"blocks.{block}.mlp" for block in range(depth // 2, depth)]
    layers: dict[str, nn.Module] = {
        name: ACSoftMoE(
            embed_dim,
            num_experts,
            slots,
            top_k=top_k,
            adaptive=adaptive and name != names[0],
        )
        for name in names
    }
    return MoEClassifier(backbone, layers, first=names[:1])
