"""CAV2vec's front-end, corruption, encoder and loading against what is used for them elsewhere."""

from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ritornello.common.data.speech.filterbank import LogFilterbank
from ritornello.common.optional import require
from ritornello.experiments.benchmarks import Benchmark
from ritornello.methods.cav2vec import AVHubertConfig, AVHubertModel, fold_batch_norm
from ritornello.methods.cav2vec.pictures import gaussian_blur, overlay


def _filterbank() -> Benchmark:
    """32 clips of two seconds, as `python_speech_features` computes them one by one."""
    psf = require("python_speech_features", extra="bench")
    waveforms = np.random.default_rng(0).integers(-8000, 8000, (32, 32_000), dtype=np.int16)
    bank, tensor = LogFilterbank(), torch.from_numpy(waveforms)

    def peer() -> np.ndarray:
        return np.stack([psf.logfbank(w, samplerate=16_000).astype(np.float32) for w in waveforms])

    def agree(mine: Tensor, theirs: np.ndarray) -> None:
        np.testing.assert_allclose(mine.numpy(), theirs, atol=1e-3)

    return Benchmark(
        "log filterbank, 32 clips of 2 s",
        lambda: bank.log_mel(tensor),
        peer,
        "python_speech_features",
        target=20.0,
        agree=agree,
    )


def _occlusion() -> Benchmark:
    """An object over 75 frames: whole clip at once against a frame and a channel at a time."""
    cv2 = require("cv2", extra="bench")
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 256, (75, 96, 96), dtype=np.uint8)
    patch, alpha = rng.uniform(0, 255, (36, 36)), rng.uniform(0, 1, (36, 36))
    left = rng.integers(-10, 80, 75)
    top = rng.integers(-10, 80, 75)

    buffer = np.empty_like(frames)

    def peer() -> np.ndarray:
        done = []
        for frame, x, y in zip(frames, left, top, strict=True):
            colour = cv2.cvtColor(frame, cv2.COLOR_GRAY2BGR)
            x1, x2 = max(0, x), min(96, x + 36)
            y1, y2 = max(0, y), min(96, y + 36)
            if x1 < x2 and y1 < y2:
                a = alpha[y1 - y : y2 - y, x1 - x : x2 - x]
                for channel in range(3):
                    under = colour[y1:y2, x1:x2, channel]
                    over = patch[y1 - y : y2 - y, x1 - x : x2 - x]
                    colour[y1:y2, x1:x2, channel] = a * over + (1 - a) * under
            done.append(cv2.cvtColor(colour, cv2.COLOR_BGR2GRAY))
        return np.stack(done)

    def agree(mine: np.ndarray, theirs: np.ndarray) -> None:
        assert np.abs(mine.astype(int) - theirs).max() <= 1

    return Benchmark(
        "object over 75 frames of 96 x 96",
        lambda: overlay(frames, patch, alpha, top, left, buffer),
        peer,
        "OpenCV, frame by frame",
        target=10.0,
        agree=agree,
        inner=10,
    )


def _blur() -> Benchmark:
    """The 7 x 7 blur of 75 frames."""
    cv2 = require("cv2", extra="bench")
    frames = np.random.default_rng(0).integers(0, 256, (75, 96, 96), dtype=np.uint8)

    def agree(mine: np.ndarray, theirs: np.ndarray) -> None:
        assert np.abs(mine.astype(int) - theirs).max() <= 2

    return Benchmark(
        "blur of 75 frames of 96 x 96",
        lambda: gaussian_blur(frames, 1.2),
        lambda: np.stack([cv2.GaussianBlur(frame, (7, 7), 1.2) for frame in frames]),
        "OpenCV, frame by frame",
        agree=agree,
    )


def _plain_encoder(
    model: AVHubertModel, audio: Tensor, video: Tensor, padding: Tensor | None
) -> Tensor:
    """The same weights the way fairseq runs them: 3-D stem, loose norms, its attention call."""
    resnet = model.feature_extractor_video.resnet
    convolution, norm, relu, pool = resnet.frontend3D
    x = convolution(video).transpose(1, 2).flatten(0, 1)
    x = resnet.trunk(pool(relu(norm(x)))).unflatten(0, (len(video), -1))
    fused = torch.cat(
        [model.feature_extractor_audio(audio), model.feature_extractor_video.proj(x)], dim=-1
    )
    x = model.project(fused)
    if padding is not None:
        x = x.masked_fill(padding[..., None], 0)
    x = (x + model.encoder.positions(x)).transpose(0, 1)
    for layer in model.encoder.layers:
        attention = layer.self_attn
        normed = layer.self_attn_layer_norm(x)
        mixed, _ = F.multi_head_attention_forward(
            normed,
            normed,
            normed,
            x.shape[-1],
            attention.num_heads,
            None,
            torch.cat([attention.q_proj.bias, attention.k_proj.bias, attention.v_proj.bias]),
            None,
            None,
            False,
            0.0,
            attention.out_proj.weight,
            attention.out_proj.bias,
            training=False,
            key_padding_mask=padding,
            need_weights=True,
            use_separate_proj_weight=True,
            q_proj_weight=attention.q_proj.weight,
            k_proj_weight=attention.k_proj.weight,
            v_proj_weight=attention.v_proj.weight,
        )
        x = x + mixed
        x = x + layer.fc2(F.gelu(layer.fc1(layer.final_layer_norm(x))))
    return model.encoder.layer_norm(x).transpose(0, 1)


def _encoder(name: str, lengths: list[int]) -> Benchmark:
    """AV-HuBERT Base's front-end with four of its layers, float32; padding at the right."""
    torch.manual_seed(0)
    plain = AVHubertModel(AVHubertConfig.base(num_layers=4)).eval()
    fast = AVHubertModel(plain.config).eval()
    fast.load_state_dict(plain.state_dict())
    fold_batch_norm(fast.feature_extractor_video)
    batch, longest = len(lengths), max(lengths)
    padding = torch.arange(longest) >= torch.tensor(lengths)[:, None]
    present = ~padding
    audio = torch.randn(batch, 104, longest) * present[:, None]
    video = torch.randn(batch, 1, longest, 88, 88) * present[:, None, :, None, None]
    mask = padding if bool(padding.any()) else None

    def ours() -> Tensor:
        with torch.inference_mode():
            return fast(audio, video, mask).last_hidden_state[present]

    def peer() -> Tensor:
        with torch.inference_mode():
            return _plain_encoder(plain, audio, video, mask)[present]

    return Benchmark(
        f"encoder, {name}, 88 x 88, 4 layers of Base",
        ours,
        peer,
        "fairseq's operations in torch",
        target=1.5,
        agree=lambda mine, theirs: torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-3),
        seconds=8.0,
    )


def _training() -> Benchmark:
    """Forward and backward of the same encoder on 2 clips of 1 s, without dropout."""
    torch.manual_seed(0)
    still = {"dropout": 0.0, "attention_dropout": 0.0, "input_dropout": 0.0, "layerdrop": 0.0}
    ours = AVHubertModel(AVHubertConfig.base(num_layers=4, **still)).train()
    plain = AVHubertModel(ours.config).train()
    plain.load_state_dict(ours.state_dict())
    audio, video = torch.randn(2, 104, 25), torch.randn(2, 1, 25, 88, 88)

    def gradient(model: AVHubertModel, hidden: Tensor) -> Tensor:
        model.zero_grad()
        hidden.square().sum().backward()
        return model.mask_emb.new_tensor(
            [p.grad.norm() for p in model.parameters() if p.grad is not None]
        )

    return Benchmark(
        "encoder, forward and backward, 2 clips of 1 s",
        lambda: gradient(ours, ours(audio, video).last_hidden_state),
        lambda: gradient(plain, _plain_encoder(plain, audio, video, None)),
        "fairseq's operations in torch",
        agree=lambda mine, theirs: torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-3),
        seconds=8.0,
    )


def _loading() -> Benchmark:
    """Is a batch made faster than a step is taken? The small profile's sizes, one thread."""
    from ritornello.common.data.speech.av_speech import SyntheticAVSpeech
    from ritornello.common.data.speech.mixing import AudioMixer
    from ritornello.common.data.speech.noise import NOISE_KINDS, make_noise
    from ritornello.methods.cav2vec import CAV2vecForPreTraining, PretrainingConfig
    from ritornello.methods.cav2vec.corruption import VideoCorruptor
    from ritornello.methods.cav2vec.data import UptrainingBatches

    clips = SyntheticAVSpeech(48, seed=1, size=32)
    voices = [clip.waveform for clip in clips]
    rng = np.random.default_rng(0)
    noises = [make_noise(kind, 3.0, rng, utterances=voices) for kind in NOISE_KINDS]
    labels = [np.arange(len(clip.frames)) % 48 for clip in clips]
    batches = UptrainingBatches(
        clips, AudioMixer(noises), VideoCorruptor(), 28, 12, max_frames=28, labels=labels
    )
    config = PretrainingConfig(AVHubertConfig.tiny(), num_classes=48, final_dim=64, top_k=2)
    model = CAV2vecForPreTraining(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    batch, generator = batches(0), np.random.default_rng(0)
    numbers = iter(range(10**6))

    def step() -> None:
        optimizer.zero_grad()
        model(batch, mode="av", generator=generator).loss.backward()
        optimizer.step()
        model.update_teacher()

    return Benchmark(
        "making a batch of 12 corrupted clips",
        lambda: batches(next(numbers)),
        step,
        "the training step that consumes it",
        target=1.0,
    )


def benchmarks() -> Iterator[Benchmark]:
    """Front-end, corruptions, encoder, loading."""
    yield _filterbank()
    yield _occlusion()
    yield _blur()
    yield _encoder("2 clips of 1 s", [25, 25])
    yield _encoder("4 clips of 0.4, 0.6, 0.8 and 1 s", [10, 15, 20, 25])
    yield _training()
    yield _loading()
