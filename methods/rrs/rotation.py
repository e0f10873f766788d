"""Rotations that leave the function alone and spread outliers over all channels (QuaRot's)."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ritornello.common.kernels.hadamard import hadamard_factors, hadamard_transform
from ritornello.common.kernels.hadamard.matrices import hadamard_order_exists
from ritornello.methods.rrs.experts import separate_experts
from ritornello.methods.rrs.families import (
    decoder_of,
    family_of,
    head_shape,
    layers_of,
    linear_of,
)
from ritornello.methods.rrs.input_rotation import InputRotation, block_hadamard
from ritornello.methods.rrs.offload import working_layers

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_ROWS = 4096


class StreamRotation:
    """The orthogonal matrix Q that turns the residual stream: x becomes x Q.

    Q = diag(random signs) H / sqrt(n), or a random orthogonal matrix (QR of a Gaussian one).
    """

    def __init__(self, width: int, mode: Literal["hadamard", "random"], seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.matrix: Tensor | None = None
        self.signs = torch.randint(0, 2, (width,), generator=generator).double() * 2 - 1
        if mode == "hadamard":
            hadamard_factors(width)
        else:
            gaussian = torch.randn(width, width, generator=generator, dtype=torch.float64)
            q, r = torch.linalg.qr(gaussian)
            self.matrix = q * r.diagonal().sign()

    def __call__(self, x: Float[Tensor, "*rows width"]) -> Float[Tensor, "*rows width"]:
        """x Q in float64."""
        x = x.double()
        if self.matrix is not None:
            return x @ self.matrix.to(x.device)
        return hadamard_transform(x * self.signs.to(x.device), x.shape[-1] ** -0.5)


def rotate_model(
    model: "PreTrainedModel", seed: int = 0, *, mode: Literal["hadamard", "random"] = "hadamard"
) -> "PreTrainedModel":
    """Turns the residual stream of a model, in place; its logits stay the same.

    E <- E Q, readers W <- W Q, writers W <- Q^T W and b <- b Q, all computed in float64 (sec. 3.2).
    Norms with a gain do not commute with Q: they are fused first where that has not been done.

    Args:
        model: a supported causal language model.
        seed: of the random signs, or of the random matrix.
        mode: see `RRSConfig.rotate_mode`.

    Raises:
        ValueError: unsupported architecture, or no Hadamard matrix for the hidden size.
    """
    family, decoder = family_of(model), decoder_of(model)
    try:
        turn = StreamRotation(model.config.hidden_size, mode, seed)
    except ValueError as error:
        raise ValueError(f"hidden size: {error}; set rotate_mode='random'") from error
    fuse_rms_norms(model)
    for name in family.embeddings:
        _replace_rows(decoder.get_submodule(name), turn)
    for layer in working_layers(model):
        for name in family.readers:
            _replace_rows(layer.get_submodule(name), turn)
        for name in family.writers:
            writer = layer.get_submodule(name)
            _replace(writer, "weight", lambda w: turn(w.T).T)
            _replace(writer, "bias", turn)
    _replace_rows(model.lm_head, turn)
    return model


def rotate_inner_states(model: "PreTrainedModel", *, mode: str = "hadamard") -> "PreTrainedModel":
    """Folds the weight half of the online rotations, in place (sec. 3.2, items 3 and 4).

    W_down <- W_down H; v rows <- H_d^T v rows for every head; W_o <- W_o (H_heads kron H_d). The
    logits stay the same only together with `online_rotations` on the inputs of down and o.

    Raises:
        ValueError: a width without a Hadamard matrix in mode "hadamard".
    """
    family = family_of(model)
    _, _, head_width = head_shape(model)
    rotations = online_rotations(model, mode=mode)
    head_block = hadamard_block(head_width, mode, "head width")
    for layer in working_layers(model):
        value, output = (layer.get_submodule(n) for n in (family.value, family.attention_output))

        def per_head(rows: Tensor) -> Tensor:
            return block_hadamard(rows, head_block)

        _replace(value, "weight", lambda w: per_head(w.T).T)
        _replace(value, "bias", per_head)
        over_heads = rotations["attention_output"]
        _replace(output, "weight", lambda w, r=over_heads: r(per_head(w)))
        for name in family.mlp_outputs:
            _replace(layer.get_submodule(name), "weight", rotations["mlp_output"])
    return model


def online_rotations(
    model: "PreTrainedModel", *, mode: str = "hadamard"
) -> dict[str, InputRotation]:
    """What turns the inputs of `attention_output` and `mlp_output` at run time, by kind.

    A number of heads without a Hadamard matrix (9) leaves the heads unmixed.
    """
    family = family_of(model)
    heads, _, _ = head_shape(model)
    inner = linear_of(layers_of(model)[0], family.mlp_outputs[0]).in_features
    across = heads if hadamard_order_exists(heads) else 1
    return {
        "attention_output": InputRotation(across, heads),
        "mlp_output": InputRotation(hadamard_block(inner, mode, "MLP width")),
    }


def hadamard_block(width: int, mode: str, what: str) -> int:
    """Order of the Hadamard blocks for a width: all of it, or in mode "random" the largest divisor.

    Raises:
        ValueError: mode "hadamard" and no matrix of this order.
    """
    if hadamard_order_exists(width):
        return width
    if mode == "hadamard":
        try:
            hadamard_factors(width)
        except ValueError as error:
            raise ValueError(f"{what}: {error}; set rotate_mode='random'") from error
    divisors = (n for n in range(width, 0, -1) if width % n == 0)
    return next(n for n in divisors if hadamard_order_exists(n))


def fuse_rms_norms(
    model: "PreTrainedModel", *, center_embeddings: bool = False
) -> "PreTrainedModel":
    """Folds the gains of all norms into the linear layers that follow, in place, in float64.

    The norms keep the model's own eps and have gain 1 afterwards. A LayerNorm (OPT) becomes an
    RMSNorm: its bias moves into the readers, and the writers stop adding a mean (as in SliceGPT).
    Tied embeddings are untied first, with a warning, because only the head takes up a gain.

    Args:
        model: a supported causal language model.
        center_embeddings: subtract the mean of each embedding row also in RMSNorm models.

    Raises:
        ValueError: unsupported architecture, or an OPT variant that cannot be converted.
    """
    family, decoder = family_of(model), decoder_of(model)
    separate_experts(model)
    untie_embeddings(model)
    final = getattr(decoder, family.final_norm)
    layer_norm = isinstance(final, nn.LayerNorm) or final is None
    if layer_norm:
        _check_convertible(model)
    if center_embeddings or layer_norm:
        for name in family.embeddings:
            _replace_rows(decoder.get_submodule(name), _without_mean)
    for layer in working_layers(model):
        if layer_norm:
            for name in family.writers:
                writer = layer.get_submodule(name)
                _replace(writer, "weight", lambda w: _without_mean(w.T).T)
                _replace(writer, "bias", _without_mean)
        for norm, readers in family.norms.items():
            _fold_norm(layer, norm, [layer.get_submodule(name) for name in readers])
    _fold_norm(decoder, family.final_norm, [linear_of(model, "lm_head")])
    return model


def convert_norms(model: "PreTrainedModel") -> None:
    """Gives a freshly built model the norms and the head that `fuse_rms_norms` leaves behind."""
    family, decoder = family_of(model), decoder_of(model)
    untie_embeddings(model, warn=False)
    if not isinstance(getattr(decoder, family.final_norm), nn.LayerNorm):
        return
    for parent, name in _norms(model):
        norm = parent.get_submodule(name)
        assert isinstance(norm, nn.LayerNorm)
        setattr(parent, name, _plain_rms_norm(norm))
    head = linear_of(model, "lm_head")
    head.bias = nn.Parameter(head.weight.new_zeros(len(head.weight)), requires_grad=False)


def untie_embeddings(model: "PreTrainedModel", *, warn: bool = True) -> None:
    """Gives the head its own copy of a tied embedding."""
    embedding = model.get_input_embeddings()
    assert isinstance(embedding, nn.Embedding)
    if model.lm_head.weight is not embedding.weight:
        return
    if warn:
        warnings.warn(
            "the embeddings were tied to lm_head and are untied: rotating needs two matrices",
            stacklevel=3,
        )
    model.lm_head.weight = nn.Parameter(embedding.weight.detach().clone())
    model.config.tie_word_embeddings = False


def _norms(model: "PreTrainedModel") -> Iterator[tuple[nn.Module, str]]:
    family = family_of(model)
    for layer in layers_of(model):
        for name in family.norms:
            yield layer, name
    yield decoder_of(model), family.final_norm


def _check_convertible(model: "PreTrainedModel") -> None:
    config = model.config
    wanted = {
        "do_layer_norm_before": True,
        "_remove_final_layer_norm": False,
        "word_embed_proj_dim": config.hidden_size,
    }
    for name, value in wanted.items():
        if getattr(config, name, value) != value:
            raise ValueError(
                f"model has {name}={getattr(config, name)}: its LayerNorms cannot be turned into "
                f"RMSNorms; accepted: {name}={value}, or rotate=False"
            )


def _fold_norm(parent: nn.Module, name: str, readers: Sequence[nn.Module]) -> None:
    """W <- W diag(gain), b <- b + W shift; the norm keeps gain 1."""
    norm = parent.get_submodule(name)
    gains = dict(norm.named_parameters(recurse=False))
    shift = gains.get("bias")
    for reader in readers:
        if shift is not None:
            assert isinstance(reader, nn.Linear)
            moved = reader.weight.double() @ shift.double()
            if reader.bias is None:
                reader.bias = nn.Parameter(reader.weight.new_zeros(len(reader.weight)))
            _replace(reader, "bias", lambda b, moved=moved: b.double() + moved)
        if "weight" in gains and not gains["weight"].eq(1).all():
            gain = gains["weight"].double()
            _replace_rows(reader, lambda w, gain=gain: w * gain)
    if isinstance(norm, nn.LayerNorm):
        setattr(parent, name, _plain_rms_norm(norm))
    elif "weight" in gains:
        nn.init.ones_(gains["weight"])


def _plain_rms_norm(norm: nn.LayerNorm) -> nn.RMSNorm:
    return nn.RMSNorm(list(norm.normalized_shape), eps=norm.eps, elementwise_affine=False)


def _without_mean(rows: Tensor) -> Tensor:
    rows = rows.double()
    return rows - rows.mean(-1, keepdim=True)


def _replace(module: nn.Module, name: str, function: Callable[[Tensor], Tensor]) -> None:
    """parameter <- function(parameter), computed in float64 and rounded once; None stays."""
    parameter = getattr(module, name)
    if parameter is not None:
        with torch.no_grad():
            parameter.copy_(function(parameter.detach().double()).to(parameter.dtype))


def _replace_rows(module: nn.Module, function: Callable[[Tensor], Tensor]) -> None:
    """The same for a weight whose rows are computed each for itself, some thousands at a time.

    In float64 a whole vocabulary would take as much memory as the rest of a small model.
    """
    with torch.no_grad():
        for rows in module.get_parameter("weight").detach().split(_ROWS):
            rows.copy_(function(rows.double()).to(rows.dtype))
