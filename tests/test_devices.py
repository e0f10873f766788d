"""Methods work on a device that is not the CPU: nothing is left behind, values are the same.

The device needs no hardware. `OtherDevice` tensors say that they lie on `meta` but hold data on the
CPU: mixing them with a CPU tensor raises as on a GPU, and what is made with `device=` of one lies
there too. Backward passes work; branches for CUDA alone do not run.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils import _device
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from ritornello.common.models import tiny_causal_lm

PLACE = torch.device("meta")
# Real devices take indices and sources of copies from the CPU too.
MIXING = {
    "aten.index.Tensor",
    "aten.index_put.default",
    "aten.index_put_.default",
    "aten._index_put_impl_.default",
    "aten.copy_.default",
    "aten._to_copy.default",
    "aten.to.other",
}


class OtherDevice(Tensor):
    data_: Tensor

    @staticmethod
    def __new__(cls, data: Tensor) -> "OtherDevice":
        return Tensor._make_wrapper_subclass(
            cls,
            data.size(),
            strides=data.stride(),
            storage_offset=data.storage_offset(),
            dtype=data.dtype,
            device=PLACE,
            requires_grad=data.requires_grad,
        )

    def __init__(self, data: Tensor) -> None:
        self.data_ = data

    def __repr__(self) -> str:
        return f"OtherDevice({self.data_})"

    def __deepcopy__(self, memo: dict) -> Tensor:
        return _like(self, self.data_.detach().clone())

    def tolist(self) -> list:
        return self.data_.detach().tolist()

    def numpy(self, **_: object) -> None:
        raise TypeError("a tensor on another device has no numpy array")

    __array__ = numpy

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _run(func, args, kwargs or {})


class _Everywhere(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return _run(func, args, kwargs or {})


def _like(tensor: Tensor, data: Tensor) -> Tensor:
    """The same parameter or tensor, with its attributes, on the other device."""
    new: Tensor = OtherDevice(data)
    if isinstance(tensor, nn.Parameter):
        new = nn.Parameter(new, requires_grad=tensor.requires_grad)
    new.__dict__.update({k: v for k, v in tensor.__dict__.items() if k != "data_"})
    return new


def move(tensor: Tensor) -> Tensor:
    return OtherDevice(tensor)


def move_module(module: nn.Module) -> nn.Module:
    """What `.to(device)` reaches: parameters and buffers, in place."""
    for part in module.modules():
        for kept in (part._parameters, part._buffers):
            for name, tensor in kept.items():
                if tensor is not None:
                    kept[name] = _like(tensor, tensor.detach())
    return module


def _run(func, args, kwargs):
    leaves = tree_flatten((args, kwargs))[0]
    tensors = [x for x in leaves if isinstance(x, Tensor)]
    moved = [x for x in tensors if isinstance(x, OtherDevice)]
    left = [x for x in tensors if not isinstance(x, OtherDevice) and x.dim() and x.numel()]
    if moved and left and (str(func) not in MIXING or not isinstance(args[0], OtherDevice)):
        shapes = [tuple(x.shape) for x in left]
        raise RuntimeError(f"{func}: tensors of shape {shapes} were left on the CPU")
    devices = [x for x in leaves if isinstance(x, torch.device)]
    there = devices[0] == PLACE if devices else bool(moved)
    generator = kwargs.get("generator")
    if there and generator is not None:
        raise RuntimeError(f"{func}: its generator lies on {generator.device}")

    def bare(x):
        if isinstance(x, torch.device):
            return torch.device("cpu")
        return x.data_ if isinstance(x, OtherDevice) else x

    args, kwargs = tree_map(bare, (args, kwargs))
    result = func(*args, **kwargs)
    known = {id(x.data_): x for x in moved}  # in-place operations give their own argument back

    def wrap(x):
        if not (there and isinstance(x, Tensor)):
            return x
        return known[id(x)] if id(x) in known else OtherDevice(x)

    return tree_map(wrap, result)


@contextmanager
def other_device() -> Iterator[None]:
    """Inside, what is asked to lie on the other device lies there; no autocast."""
    _device._device_constructors()  # remembered before the constructors are replaced

    def constructor(make):
        def construct(*args, device=None, **options):
            made = make(*args, **options)
            return made if device is None else made.to(device)

        return construct

    enabled, chosen = torch.is_autocast_enabled, torch.get_autocast_dtype
    start = torch.autocast.__init__

    def is_enabled(kind=None):
        return False if kind == "meta" else enabled(kind) if kind else enabled()

    def dtype(kind):
        return torch.half if kind == "meta" else chosen(kind)

    def autocast(self, kind, *args, **options):
        start(self, "cpu" if kind == "meta" else kind, *args, **options)

    with (
        mock.patch("torch.tensor", constructor(torch.tensor)),
        mock.patch("torch.as_tensor", constructor(torch.as_tensor)),
        mock.patch("torch.is_autocast_enabled", is_enabled),
        mock.patch("torch.get_autocast_dtype", dtype),
        mock.patch("torch.autocast.__init__", autocast),
        _Everywhere(),
    ):
        yield


def both(module: nn.Module, run) -> tuple[Tensor, Tensor]:
    """`run(module, place)` here and on the other device, from the same weights and seed."""
    elsewhere = copy.deepcopy(module)
    torch.manual_seed(0)
    here = run(module, lambda x: x)
    with other_device():
        torch.manual_seed(0)
        there = run(move_module(elsewhere), move)
        assert isinstance(there, OtherDevice)
    return here, there.data_


def agree(module: nn.Module, run) -> None:
    """Values and gradients agree."""

    def losses(module: nn.Module, place) -> Tensor:
        loss = run(module, place)
        loss.backward()
        grads = [p.grad.flatten() for p in module.parameters() if p.grad is not None]
        return torch.cat([loss.detach().flatten(), *grads])

    torch.testing.assert_close(*both(module, losses), rtol=1e-4, atol=1e-5)


def ids(*shape: int) -> Tensor:
    return torch.randint(256, shape, generator=torch.Generator().manual_seed(0))


def values(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def test_a_tensor_left_behind_is_found():
    with other_device(), pytest.raises(RuntimeError, match="left on the CPU"):
        move(torch.ones(2)) + torch.ones(2)


@torch.no_grad()
@pytest.mark.parametrize("options", [{"execution": "integer"}, {"k_bits": 4, "v_bits": 4}])
def test_rrs(options):
    from ritornello.methods.rrs import RRSConfig, quantize_model

    def run(model, place):
        config = RRSConfig(group_size=32, **options)
        quantized = quantize_model(model, config, calibration_ids=place(ids(4, 16)))
        quantized.generate(
            place(ids(1, 4)), max_new_tokens=2, do_sample=False, pad_token_id=1,
            attention_mask=place(torch.ones(1, 4, dtype=torch.long)),
        )  # fmt: skip
        return quantized(place(ids(2, 8))).logits

    torch.testing.assert_close(*both(tiny_causal_lm("llama"), run), rtol=1e-4, atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("method", ["probe", "static"])
def test_probe_pruning(method):
    from ritornello.methods.probe_pruning import ProbePruningConfig, prune_model

    def run(model, place):
        pruned = prune_model(model, ProbePruningConfig(ratio=0.4, skip_layers=(0,), method=method))
        pruned.calibrate([place(ids(4, 16)), place(ids(4, 16).flip(0))])
        return pruned(input_ids=place(ids(4, 16).flip(1))).logits

    model = tiny_causal_lm("llama", layers=3, hidden=128)
    torch.testing.assert_close(*both(model, run), rtol=1e-4, atol=1e-5)


def test_ac_router():
    from ritornello.common.moe import Experts, MoELayer, SMoERouter
    from ritornello.methods.ac_router import ACRouter

    layers = nn.ModuleList(
        MoELayer(Experts(4, 16, 32), router(16, 4, top_k=2)) for router in (SMoERouter, ACRouter)
    )

    def run(layers, place):
        tokens = place(values(2, 12, 16))
        output, state = layers[0](tokens)
        return layers[1](tokens + output, state)[0].square().mean()

    agree(layers, run)


def test_umup():
    from ritornello.methods.umup import AdamW, DecoderConfig, DecoderLM, UMuP

    config = DecoderConfig(vocab_size=256, width=32, layers=2, heads=2)

    def run(model, place):
        optimizer = AdamW(model, lr=0.5, weight_decay=2**-13)
        loss = model.loss(place(ids(2, 9))[:, :-1], place(ids(2, 9))[:, 1:])
        loss.backward(retain_graph=True)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    model = DecoderLM(config, UMuP(), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(*both(model, lambda m, p: run(m, p).detach()))


@pytest.mark.parametrize("kind", ["pretraining", "classification"])
def test_arm(kind):
    from ritornello.methods.arm import ARMForImageClassification, ARMForPretraining

    if kind == "pretraining":
        model: nn.Module = ARMForPretraining(96, depth=2, dim=16, decoder_dim=16, cluster_size=2)
        agree(model, lambda model, place: model(place(values(2, 3, 96, 96))).loss)
    else:
        model = ARMForImageClassification(96, num_classes=3, depth=2, dim=16)
        agree(model, lambda model, place: model(place(values(2, 3, 96, 96))).square().mean())


@pytest.mark.parametrize(
    "name", ["DiceTopographLoss", "SoftDiceCLDiceLoss", "HuTopoLoss", "BettiMatchingLoss"]
)
def test_topograph(name):
    from ritornello.methods import topograph

    label = torch.zeros(1, 32, 32, dtype=torch.long)
    label[:, 8:16, 4:12] = label[:, 18:26, 16:24] = 1

    def run(loss, place):
        logits = place(values(1, 2, 32, 32)).requires_grad_()
        found = loss(logits, place(label))
        found = found[0] if isinstance(found, tuple) else found
        found.backward()
        topograph.diu(logits.argmax(1) == 1, place(label) == 1)
        return torch.cat([found.detach().flatten(), logits.grad.flatten()])

    torch.testing.assert_close(*both(getattr(topograph, name)(), run))


def test_comm():
    from ritornello.methods.comm import (
        CoMM,
        FeaturesInputAdapter,
        FusionTransformer,
        MultimodalEncoder,
        PatchedInputAdapter,
    )

    encoder = MultimodalEncoder(
        [nn.Conv2d(3, 8, 4, stride=4), nn.Linear(5, 4)],
        [PatchedInputAdapter(8, 16, image_size=4), FeaturesInputAdapter(4, 16)],
        FusionTransformer(width=16, n_heads=2),
    )

    def run(model, place):
        views = [[place(values(4, 3, 16, 16) + k), place(values(4, 5) + k)] for k in range(2)]
        model.embed([views[0][0], None])
        return model(*views).loss

    agree(CoMM(encoder), run)


@pytest.mark.parametrize("mode", ["av", "audio_dropped", "video_dropped"])
def test_cav2vec(mode):
    from ritornello.methods.cav2vec import (
        AVBatch,
        AVHubertConfig,
        CAV2vecForPreTraining,
        LogFilterbank,
        PretrainingConfig,
    )

    sound = (values(2, 16_000) * 1000).to(torch.int16)
    video, hurt = values(2, 1, 25, 28, 28), torch.arange(25).expand(2, 25).ge(8).clone()
    config = PretrainingConfig(AVHubertConfig.tiny(), num_classes=48, top_k=2)
    model = CAV2vecForPreTraining(config).eval()
    model.add_module("filterbank", LogFilterbank())

    def run(model, place):
        audio = model.filterbank(place(sound), num_frames=25)
        lips, marks, labels = place(video), place(hurt), place(ids(2, 25) % 48)
        batch = AVBatch(audio, lips, audio, lips, marks, marks, labels)
        return model(batch, mode=mode, generator=np.random.default_rng(0)).loss

    agree(model, run)


def test_f_fidelity():
    from ritornello.methods.f_fidelity import f_fidelity, integrated_gradients

    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(784, 3)).eval()

    def run(model, place):
        images, labels = place(values(4, 3, 16, 16)), place(ids(4) % 3)
        scores = integrated_gradients(model, images, labels)
        return f_fidelity(model, images, labels, scores, [0.2, 0.5], beta=0.1, n_samples=5).delta

    torch.testing.assert_close(*both(model, run))


@pytest.mark.parametrize("options", [{}, {"temperature": 0.8, "top_p": 0.9}])
def test_chat(options):
    from ritornello.common.chat import GenerationParams, TransformersClient
    from ritornello.common.models import load_smollm2, load_smollm2_tokenizer

    model, tokenizer = load_smollm2(), load_smollm2_tokenizer()
    params = GenerationParams(max_tokens=4, seed=1, **options)
    prompts = ["hi", "tell me more"]

    def ask(model):
        client = TransformersClient(model, tokenizer, model_id="SmolLM2")
        return [c.text for c in client.generate(prompts, params)], client.score_continuations(
            ["hi"], [[" there", " you"]]
        )[0].total

    here = ask(model)
    model = move_module(model)
    with other_device():
        there = ask(model)
    assert there[0] == here[0]
    assert there[1] == pytest.approx(here[1], abs=1e-3)
