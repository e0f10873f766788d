"""The encoder's faster forms against its plain ones: folded front-end, shortened positions."""

import pytest
import torch
import torch.nn.functional as F
from cav2vec_small import TINY
from torch import nn

from ritornello.common.kernels.compiled import build_obstacle
from ritornello.methods.cav2vec import AVHubertConfig, AVHubertModel, fold_batch_norm
from ritornello.methods.cav2vec.folding import SOURCE, FoldedConv
from ritornello.methods.cav2vec.transformer import PositionConv

BACKENDS = [
    "torch",
    pytest.param(
        "compiled",
        marks=pytest.mark.skipif(build_obstacle(*SOURCE) is not None, reason="no C++ compiler"),
    ),
]


def with_statistics(channels: int, generator: torch.Generator) -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(channels).eval()
    for value in (norm.weight.data, norm.bias.data, norm.running_mean):
        value.uniform_(-1, 1, generator=generator)
    norm.running_var.uniform_(0.5, 2, generator=generator)
    return norm


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("size", [(1, 1, 1), (3, 2, 3), (2, 7, 5), (5, 22, 9)])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_folded_convolution_equals_its_parts(backend, size, layout, generator):
    frames, *picture = size
    convolution = nn.Conv2d(64, 128, 3, 1, 1, bias=False).eval()
    norm, relu = with_statistics(128, generator), nn.PReLU(128)
    nn.init.uniform_(relu.weight, -0.5, 0.5, generator=generator)
    x = torch.randn(frames, 64, *picture, generator=generator).contiguous(memory_format=layout)
    shortcut = torch.randn(frames, 128, *picture, generator=generator)
    folded = FoldedConv(convolution, norm, relu, backend)
    with torch.no_grad():
        for added in (None, shortcut):
            got = folded(x, added)
            y = norm.double()(convolution.double()(x.double()))
            want = F.prelu(y if added is None else y + added, relu.weight.double())
            torch.testing.assert_close(got, want.float(), atol=2e-5, rtol=1e-5)


def test_threads_change_nothing(generator):
    parts = nn.Conv2d(64, 64, 3, 1, 1, bias=False).eval(), nn.BatchNorm2d(64).eval()
    folded = FoldedConv(*parts, nn.PReLU(64))
    x = torch.randn(5, 64, 7, 7, generator=generator)
    threads = torch.get_num_threads()
    with torch.no_grad():
        results = []
        for number in (1, 3):
            torch.set_num_threads(number)
            results.append(folded(x))
    torch.set_num_threads(threads)
    torch.testing.assert_close(*results, atol=1e-6, rtol=1e-6)


def test_the_compiled_convolution_says_what_it_cannot_take():
    parts = nn.Conv2d(64, 64, 3, 1, 1, bias=False).eval(), nn.BatchNorm2d(64).eval(), nn.PReLU(64)
    compiled, either = FoldedConv(*parts, "compiled"), FoldedConv(*parts)
    x = torch.randn(1, 64, 4, 4, requires_grad=True)
    with pytest.raises(ValueError, match="no gradient"):
        compiled(x)
    either(x).sum().backward()
    assert x.grad is not None
    with pytest.raises(ValueError, match="float32"):
        compiled.double()(x.detach().double())
    narrow = nn.Conv2d(8, 64, 3, 1, 1, bias=False).eval(), *parts[1:]
    with pytest.raises(ValueError, match=r"channels, got \(64, 8\)|no C\+\+ compiler"):
        FoldedConv(*narrow, "compiled")(torch.randn(1, 8, 4, 4))


@pytest.mark.parametrize("config", [TINY, AVHubertConfig.tiny(frontend_widths=(64, 64, 128))])
@pytest.mark.parametrize("slope", [0.25, -0.25])
def test_folding_the_front_end_changes_nothing(config, slope, generator):
    model = AVHubertModel(config)
    frontend = model.feature_extractor_video
    nn.init.constant_(frontend.resnet.frontend3D[2].weight, slope)
    size = config.image_size
    video = torch.randn(2, 1, 6, size, size, generator=generator)
    padding = torch.arange(6) >= torch.tensor([[6], [4]])
    with torch.no_grad():
        model(None, video)  # statistics away from 0 and 1
        model.eval()
        want = model(None, video, padding).last_hidden_state
        fold_batch_norm(frontend)
        fold_batch_norm(frontend)
        got = model(None, video, padding).last_hidden_state
    torch.testing.assert_close(got, want, atol=2e-5, rtol=1e-4)
    with pytest.raises(ValueError, match="eval"):
        fold_batch_norm(AVHubertModel(TINY).feature_extractor_video)


@pytest.mark.parametrize("kernel", [7, 8])
@pytest.mark.parametrize("frames", [1, 2, 4, 5, 9])
def test_positions_of_short_clips_use_the_taps_that_meet_a_frame(kernel, frames, generator):
    positions = PositionConv(6, kernel, 3)
    nn.init.normal_(positions.bias, generator=generator)
    x = torch.randn(2, 6, frames, generator=generator)
    weight = positions.parametrizations["weight"](slice(None))
    want = F.conv1d(x, weight, positions.bias, padding=kernel // 2, groups=3)[..., :frames]
    torch.testing.assert_close(positions(x), want)
