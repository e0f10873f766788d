"""Properties of one step of corrupted prediction."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from ritornello.methods.cav2vec import (
    AVBatch,
    AVHubertConfig,
    AVHubertModel,
    CAV2vecForPreTraining,
    PretrainingConfig,
    distillation_targets,
    reference,
)
from ritornello.methods.cav2vec.baselines import TASK_SETS
from ritornello.methods.cav2vec.masking import draw_masks
from ritornello.methods.cav2vec.tasks import MODES, TASKS

ENCODER = AVHubertConfig.tiny(
    embed_dim=16,
    ffn_dim=24,
    num_layers=2,
    num_heads=2,
    pos_conv_kernel=4,
    pos_conv_groups=2,
    image_size=12,
    frontend_widths=(4, 6),
    dropout=0.0,
    attention_dropout=0.0,
    input_dropout=0.0,
)


def model_of(tasks=("mlm", "mp", "acp", "vcp"), **changes) -> CAV2vecForPreTraining:
    torch.manual_seed(0)
    config = PretrainingConfig(ENCODER, num_classes=7, tasks=tasks, final_dim=8, top_k=2, **changes)
    return CAV2vecForPreTraining(config).train()


def batch_of(batch: int, frames: int, *, seed: int = 0, pad: int = 0) -> AVBatch:
    g = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=g)

    padding = None
    if pad:
        padding = torch.zeros(batch, frames, dtype=torch.bool)
        padding[-1, -pad:] = True
    return AVBatch(
        normal(batch, 104, frames),
        normal(batch, 1, frames, 12, 12),
        normal(batch, 104, frames),
        normal(batch, 1, frames, 12, 12),
        torch.rand(batch, frames, generator=g) < 0.4,
        torch.rand(batch, frames, generator=g) < 0.4,
        torch.randint(7, (batch, frames), generator=g),
        padding,
    )


@pytest.mark.parametrize("frames", [1, 2, 3, 7, 24, 60])
@pytest.mark.parametrize(("batch", "pad"), [(1, 0), (3, 0), (3, 1)])
def test_any_length_gives_a_finite_loss_over_all_real_frames(frames, batch, pad):
    pad = min(pad, frames - 1)
    clips = batch_of(batch, frames, pad=pad)
    model = model_of()
    for mode in MODES:
        output = model(clips, mode=mode, generator=np.random.default_rng(frames))
        assert torch.isfinite(output.loss)
        real = batch * frames - pad
        assert output.n_frames == real
        assert output.counts["mlm_masked"] + output.counts["mlm_unmasked"] == real


@pytest.mark.parametrize("dropped", ["audio", "video"])
def test_the_output_does_not_depend_on_a_dropped_modality(dropped):
    model, clips = model_of().eval(), batch_of(2, 20)
    generator = np.random.default_rng(0)
    masks = draw_masks(clips.audio_corrupted, None, generator=generator)
    other = clips._replace(**{dropped: torch.full_like(getattr(clips, dropped), 9.0)})
    hidden = [model(b, masks=masks, mode=f"{dropped}_dropped").hidden for b in (clips, other)]
    assert torch.equal(*hidden)
    kept = [model(b, masks=masks, mode="av").hidden for b in (clips, other)]
    assert not torch.allclose(*kept)


def test_an_absent_modality_equals_zero_features():
    model = AVHubertModel(ENCODER).eval()
    clips = batch_of(2, 9)
    features = model.feature_extractor_audio(clips.audio)
    fused = torch.cat([features, torch.zeros_like(features)], -1)
    want = model.encode(fused).last_hidden_state
    assert torch.equal(model(clips.audio, None).last_hidden_state, want)


def test_no_corrupted_frame_means_no_corrupted_prediction():
    clips = batch_of(2, 20)
    nothing = torch.zeros_like(clips.audio_corrupted)
    clips = clips._replace(audio_corrupted=nothing, video_corrupted=nothing)
    for mode, name in (("audio_dropped", "acp"), ("video_dropped", "vcp")):
        output = model_of()(clips, mode=mode, generator=np.random.default_rng(0))
        assert output.counts[name] == 0
        assert float(output.losses[name].detach()) == 0.0


@pytest.mark.parametrize("mode", MODES)
def test_every_loss_equals_its_loop(mode):
    """All regressions and cross-entropies of all task sets, against one frame at a time."""
    model = model_of(tuple(dict.fromkeys(t for tasks in TASK_SETS.values() for t in tasks)))
    clips = batch_of(3, 22, pad=4)
    output = model(clips, mode=mode, generator=np.random.default_rng(3))
    masks, present = output.masks, ~clips.padding_mask
    masked = masks.audio | masks.video
    frames = {
        "masked": masked,
        "masked_audio": masks.audio,
        "masked_video": masks.video,
        "audio": clips.audio_corrupted & ~masked & present,
        "video": clips.video_corrupted & ~masked & present,
        "either": (clips.audio_corrupted | clips.video_corrupted) & ~masked & present,
    }
    targets = model.targets(clips, ("av", "audio", "video"))
    active = [task for task in TASKS if task.mode == mode]
    assert active
    for task in active:
        want = reference.regression(
            output.hidden, getattr(model, task.head), targets[task.target], frames[task.frames]
        )
        # the batch statistics of the front-end are those of the batch in both calls
        torch.testing.assert_close(output.losses[task.name], want, rtol=1e-4, atol=1e-4)
    for name, where in (("mlm_masked", masked), ("mlm_unmasked", ~masked)):
        want = reference.masked_language_model(
            output.hidden,
            model.final_proj,
            model.label_embs_concat,
            clips.labels,
            where & present,
        )
        torch.testing.assert_close(output.losses[name], want, rtol=1e-4, atol=1e-4)


def test_acp_predicts_the_clean_sound_and_vcp_the_clean_picture():
    """Changing the clean sound moves ACP's loss, not what it is predicted from; VCP the reverse."""
    clips = batch_of(2, 20)
    louder = clips._replace(clean_audio=clips.clean_audio.flip(-1))
    masks = draw_masks(clips.audio_corrupted, None, generator=np.random.default_rng(0))
    for mode, name, moves in (("audio_dropped", "acp", True), ("video_dropped", "vcp", False)):
        first, second = (model_of()(b, masks=masks, mode=mode) for b in (clips, louder))
        assert torch.equal(first.hidden, second.hidden)
        assert (float(first.losses[name]) != float(second.losses[name])) is moves


def test_corrupted_prediction_sends_no_gradient_to_the_teacher():
    model, clips = model_of(), batch_of(2, 20)
    model(clips, mode="audio_dropped", generator=np.random.default_rng(0)).loss.backward()
    assert all(p.grad is None for p in model.teacher.parameters())
    missing = [
        name
        for name, p in model.named_parameters()
        if p.grad is None and not name.startswith("teacher.")
    ]
    assert missing == []  # a static graph: every parameter has a gradient in every mode


def test_targets_have_mean_0_and_variance_1_over_real_frames(generator):
    layers = [5 + 3 * torch.randn(2, 30, 4, generator=generator) for _ in range(3)]
    padding = torch.zeros(2, 30, dtype=torch.bool)
    padding[1, 20:] = True
    target = distillation_targets(layers, top_k=1, padding_mask=padding)
    for row, length in ((0, 30), (1, 20)):
        real = target[row, :length]
        torch.testing.assert_close(real.mean(0), torch.zeros(4), atol=1e-5, rtol=0)
        torch.testing.assert_close(real.var(0, unbiased=False), torch.ones(4), atol=1e-4, rtol=0)
        want = reference.instance_norm(layers[-1][row, :length])
        torch.testing.assert_close(real, want, atol=1e-5, rtol=1e-5)


def test_padding_changes_no_hidden_state():
    model, clips = AVHubertModel(ENCODER).eval(), batch_of(2, 20)
    mask = torch.zeros(2, 20, dtype=torch.bool)
    mask[:, 15:] = True
    whole = model(clips.audio, None, mask).last_hidden_state[:, :15]
    cut = model(clips.audio[..., :15], None).last_hidden_state
    torch.testing.assert_close(whole, cut, atol=1e-5, rtol=1e-4)


def test_the_stem_equals_its_three_dimensional_convolution(generator):
    stem = AVHubertModel(ENCODER).feature_extractor_video.resnet
    video = torch.randn(2, 1, 5, 12, 12, generator=generator)
    want = reference.stem(video, stem.frontend3D[0]).transpose(1, 2).flatten(0, 1)
    torch.testing.assert_close(stem.stem(video), want, atol=1e-5, rtol=1e-5)


def test_the_gradient_to_the_front_ends_is_a_tenth():
    clips = batch_of(2, 12)
    norms = []
    for scale in (1.0, 0.1):
        torch.manual_seed(0)
        encoder = AVHubertConfig(**(ENCODER.to_dict() | {"feature_gradient_scale": scale}))
        config = PretrainingConfig(
            encoder, num_classes=7, tasks=("mlm",), final_dim=8, top_k=2, feature_penalty=0.0
        )
        model = CAV2vecForPreTraining(config).train()
        output = model(clips, mode="av", generator=np.random.default_rng(0))
        output.total.backward()
        norms.append((float(output.total.detach()), model.feature_extractor_audio.proj.weight.grad))
    assert norms[0][0] == norms[1][0]
    torch.testing.assert_close(norms[1][1], 0.1 * norms[0][1], rtol=1e-4, atol=1e-7)


def test_the_mode_is_drawn_once_a_batch_with_the_papers_chances():
    model, generator = model_of(), np.random.default_rng(0)
    drawn = [model.draw_mode(generator) for _ in range(4000)]
    shares = [drawn.count(mode) / 4000 for mode in MODES]
    np.testing.assert_allclose(shares, [0.5, 0.25, 0.25], atol=0.03)
    assert model.eval().draw_mode(generator) == "av"


def test_clean_batches_move_the_statistics_unless_told_otherwise():
    for choice, batches in (("update", 2), ("eval", 1)):
        model = model_of(teacher_batch_norm=choice)
        model(batch_of(2, 12), mode="av", generator=np.random.default_rng(0))
        norm = model.feature_extractor_video.resnet.frontend3D[1]
        assert int(norm.num_batches_tracked) == batches


def test_the_teacher_drifts_steadily_and_stays_in_eval_mode():
    model = model_of(ema_decay=(0.9, 0.9))
    assert not model.teacher.module.training
    with torch.no_grad():
        for p in model.encoder.parameters():
            p += 1.0
    distances = []
    for _ in range(5):
        model.update_teacher()
        pairs = zip(model.teacher.module.parameters(), model.encoder.parameters(), strict=True)
        distances.append(sum(float((a - b).abs().sum()) for a, b in pairs))
    assert all(after < before for before, after in pairwise(distances))
    copied = model.teacher.module.pos_conv[0].bias
    assert torch.equal(copied, model.encoder.pos_conv[0].bias)


@pytest.mark.parametrize("mode", MODES)
def test_fixed_masks_are_trimmed_with_the_labels(mode):
    clips, model = batch_of(2, 20), model_of().eval()
    masks = draw_masks(clips.audio_corrupted, None, generator=np.random.default_rng(3))
    masks.video_source[0, 3] = 19
    short = clips._replace(labels=clips.labels[:, :18])
    found = model(short, masks, mode)
    assert found.masks.audio.shape == (2, 18)
    assert found.masks.video_source[0, 3] == 17
    assert found.loss.isfinite()


def test_labels_slightly_shorter_than_the_clip_trim_everything():
    clips = batch_of(2, 20)
    output = model_of()(
        clips._replace(labels=clips.labels[:, :18]),
        mode="audio_dropped",
        generator=np.random.default_rng(0),
    )
    assert output.hidden.shape[1] == 18
    assert output.n_frames == 36


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": None}, "labels"),
        ({"labels": torch.zeros(2, 5, dtype=torch.long)}, "labels"),
        ({"video": torch.zeros(2, 1, 20, 10, 12)}, "video"),
        ({"audio": torch.zeros(2, 103, 20)}, "audio"),
        ({"audio": torch.zeros(2, 104, 19)}, "batch and time"),
        ({"padding_mask": torch.eye(2, 20).bool()}, "right end"),
        ({"padding_mask": torch.zeros(2, 3).bool()}, "padding_mask"),
    ],
)
def test_bad_batches_are_told(change, message):
    with pytest.raises(ValueError, match=message):
        model_of()(
            batch_of(2, 20)._replace(**change), mode="av", generator=np.random.default_rng(0)
        )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tasks": ("mlm", "cloze")}, "tasks"),
        ({"tasks": ()}, "tasks"),
        ({"top_k": 9}, "top_k"),
    ],
)
def test_bad_settings_are_told(arguments, message):
    with pytest.raises(ValueError, match=message):
        PretrainingConfig(ENCODER, **({"top_k": 2} | arguments))
    with pytest.raises(ValueError, match="num_heads"):
        AVHubertConfig.tiny(num_heads=5)
    with pytest.raises(ValueError, match="generator"):
        model_of()(batch_of(2, 20))
    with pytest.raises(ValueError, match="both None"):
        AVHubertModel(ENCODER)()


def test_the_penalty_is_weighted_by_all_frames():
    clips = batch_of(2, 12)
    output = model_of(("mlm",))(clips, mode="av", generator=np.random.default_rng(0))
    parts = output.losses
    want = parts["mlm_masked"] + parts["mlm_unmasked"] + 10 * parts["features"] * 24
    torch.testing.assert_close(output.total, want)
    assert math.isclose(
        float(output.loss.detach()) * 24, float(output.total.detach()), rel_tol=1e-6
    )


def test_bfloat16_autocast_gives_nearly_the_same_loss():
    """Targets and losses stay in float32."""
    clips = batch_of(2, 20)
    masks = draw_masks(clips.audio_corrupted, None, generator=np.random.default_rng(0))
    model = model_of()
    exact = model(clips, masks=masks, mode="audio_dropped")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        coarse = model(clips, masks=masks, mode="audio_dropped")
    assert coarse.loss.dtype == torch.float32
    torch.testing.assert_close(coarse.loss, exact.loss, rtol=0.02, atol=0.02)
    coarse.loss.backward()
    assert torch.isfinite(model.mask_emb.grad).all()


def test_reliability_scores_damp_a_stream_and_keep_the_published_names():
    plain = AVHubertModel(ENCODER)
    scored = AVHubertModel(AVHubertConfig(**(ENCODER.to_dict() | {"fusion": "reliability"})))
    extra = set(scored.state_dict()) - set(plain.state_dict())
    assert all(name.startswith("reliability.") for name in extra)
    clips = batch_of(2, 9)
    features = [torch.ones(2, 9, 16), torch.ones(2, 9, 16)]
    damped = scored.fuse(*features)
    assert ((damped > 0) & (damped < 1)).all()
    assert torch.isfinite(scored(clips.audio, clips.video).last_hidden_state).all()
