"""The official code's values on models and inputs filled by recipe."""

import numpy as np
import pytest
import torch
from cav2vec_recipe import GOLDEN, fill, fill_module, filled_tensor, golden_json

from ritornello.methods.cav2vec import (
    AVBatch,
    AVHubertConfig,
    CAV2vecForPreTraining,
    EMATeacher,
    PretrainingConfig,
    distillation_targets,
)
from ritornello.methods.cav2vec.beam_search import beam_search
from ritornello.methods.cav2vec.corruption import (
    cover_lower_face,
    pixelate,
    pixelate_mouth,
)
from ritornello.methods.cav2vec.masking import Masks, runs, span_mask
from ritornello.methods.cav2vec.pictures import overlay

TERMS = {"mp": "loss_avsp", "acp": "loss_uasp", "vcp": "loss_uvsp"}


def tiny_model(num_classes: int) -> CAV2vecForPreTraining:
    encoder = AVHubertConfig(
        embed_dim=32,
        ffn_dim=64,
        num_layers=3,
        num_heads=4,
        pos_conv_kernel=16,
        pos_conv_groups=4,
        dropout=0.0,
        attention_dropout=0.0,
        input_dropout=0.0,
        layerdrop=0.0,
    )
    config = PretrainingConfig(
        encoder, num_classes=num_classes, final_dim=16, top_k=2, target_statistics="all"
    )
    model = CAV2vecForPreTraining(config)
    fill_module(model, skip="teacher.")
    fill_module(model.teacher.module, "teacher.")
    return model.train()


def padding(batch: int, frames: int, lengths: list[int]) -> torch.Tensor | None:
    mask = torch.arange(frames) >= frames - torch.tensor(lengths)[:, None]
    return mask if mask.any() else None


@pytest.mark.parametrize("tag", ["av", "adrop", "vdrop", "pad"])
def test_one_training_forward_equals_the_official_losses_and_gradients(tag):
    want = golden_json(f"forward_{tag}")
    size, frames = want["B"], want["T"]
    flags = {k: torch.tensor(want[k]).bool() for k in ("audio_occ", "video_occ")}

    def values(name: str, *shape: int) -> torch.Tensor:
        return filled_tensor(f"{tag}.{name}", shape)

    batch = AVBatch(
        values("audio", size, 104, frames),
        values("video", size, 1, frames, 88, 88),
        values("clean_audio", size, 104, frames),
        values("clean_video", size, 1, frames, 88, 88),
        flags["audio_occ"],
        flags["video_occ"],
        torch.tensor(want["targets"]),
        padding(size, frames, want["pad"]),
    )
    masks = Masks(
        torch.tensor(want["audio_mask"]).bool(),
        torch.tensor(want["video_mask"]).bool(),
        torch.tensor(want["video_source_frame"]),
    )
    model = tiny_model(want["num_classes"])
    output = model(batch, masks=masks, mode=want["mode"])
    close = {"rtol": 2e-4, "atol": 1e-6}
    assert {TERMS[k] for k in output.losses if k in TERMS} == set(want["regression"])
    for ours, theirs in TERMS.items():
        if theirs in want["regression"]:
            assert float(output.losses[ours]) == pytest.approx(want["regression"][theirs], rel=2e-4)
    np.testing.assert_allclose(float(output.losses["features"]), want["features_pen"], **close)
    for name in ("mlm_masked", "mlm_unmasked"):
        np.testing.assert_allclose(float(output.losses[name]), want[name], **close)
    np.testing.assert_allclose(float(output.total), want["total_loss"], **close)
    counted = {k: output.counts[k] for k in ("mlm_masked", "mlm_unmasked")}
    assert counted == {"mlm_masked": want["count_m"], "mlm_unmasked": want["count_u"]}
    assert output.counts["correct_masked"] == want["correct_m"]
    assert output.counts["correct_unmasked"] == want["correct_u"]
    regressed = sum(output.counts.get(k, 0) for k in TERMS)
    assert (regressed, output.n_frames) == (want["regression_sample_size"], want["sample_size"])
    output.total.backward()
    parameters = dict(model.named_parameters())
    for name, norm in want["grad_norm"].items():
        tolerance = 5e-4 if "resnet" in name else 2e-4
        assert float(parameters[name].grad.norm()) == pytest.approx(norm, rel=tolerance), name
    norm = model.feature_extractor_video.resnet.frontend3D[1]
    want_mean = want["frontend_bn_running_mean_first8"]
    np.testing.assert_allclose(norm.running_mean[:8].numpy(), want_mean, **close)
    assert int(norm.num_batches_tracked) == want["frontend_bn_num_batches_tracked"]


def test_state_dict_has_the_published_names_and_shapes():
    keys = dict(golden_json("state_dict_keys"))
    own = {
        name: list(tensor.shape)
        for name, tensor in tiny_model(12).state_dict().items()
        if tensor.is_floating_point() and not name.startswith("teacher.")
    }
    assert own == keys


@pytest.mark.parametrize("case", range(5))
def test_span_masks_follow_the_official_draws(case):
    want = golden_json("mask_indices")[case]
    pad = None
    if want["pad"]:
        pad = padding(want["B"], want["T"], want["pad"]).numpy()
    mask = span_mask(
        want["B"],
        want["T"],
        probability=want["mask_prob"],
        length=want["mask_length"],
        generator=np.random.RandomState(want["np_seed"]),
        padding_mask=pad,
        min_spans=want["min_masks"],
    )
    np.testing.assert_array_equal(mask, np.array(want["mask"], dtype=bool))
    np.testing.assert_array_equal(runs(mask).T, [want["batch"], want["starts"], want["ends"]])


def test_the_teacher_follows_the_official_trace():
    (want,) = golden_json("ema") if isinstance(golden_json("ema"), list) else (golden_json("ema"),)
    student = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4))
    fill_module(student, want["tag"])
    schedule = want["schedule"]
    teacher = EMATeacher(
        student,
        (schedule["ema_decay"], schedule["ema_end_decay"]),
        schedule["end"],
        copy=want["skip_keys"],
    )
    for entry in want["trace"]:
        with torch.no_grad():
            for name, parameter in student.named_parameters():
                tag = f"{want['tag']}step{entry['step']}.{name}"
                parameter += 0.1 * filled_tensor(tag, tuple(parameter.shape))
        assert teacher.decay_at(entry["step"]) == pytest.approx(entry["decay"], abs=1e-12)
        teacher.steps.fill_(entry["step"] - 1)
        teacher.update(student)
        for name, value in entry["teacher"].items():
            own = teacher.module.get_parameter(name).numpy()
            np.testing.assert_allclose(own, value, atol=1e-7)


@pytest.mark.parametrize(
    ("name", "norms"),
    [
        ("instance_norm_target_layer", {}),
        ("layer_norm_target_layer", {"norm": "layer"}),
        ("layer_norm_targets", {"norm": "none", "output_norm": "layer"}),
    ],
)
def test_targets_equal_the_official_ones(name, norms):
    layers = [filled_tensor(f"tgA{k}", (15, 2, 6)).transpose(0, 1) * (1 + k) for k in range(3)]
    want = np.load(GOLDEN / "targets.npz")[name]
    np.testing.assert_allclose(distillation_targets(layers, top_k=3, **norms), want, atol=1e-5)


def test_the_group_norm_is_over_clips_and_channels_at_each_time():
    """The official option normalises the last two axes of time-first layers."""
    layer = filled_tensor("group", (7, 3, 6))  # time, batch, channels
    normed = distillation_targets([layer.transpose(0, 1)], top_k=1, norm="group")
    want = torch.nn.functional.layer_norm(layer, (3, 6)).transpose(0, 1)
    torch.testing.assert_close(normed, want)


@pytest.mark.parametrize("case", golden_json("visual"), ids=lambda c: f"{c['case']}-{c['kind']}")
def test_pictures_are_corrupted_as_officially(case):
    number, size = case["case"], case["size"]
    grey = (127.5 * (1 + fill(f"img{number}", (96, 96)))).astype(np.uint8)
    image = np.repeat(grey[..., None], 3, axis=2)[None]
    tolerance = 0
    if size:
        patch = (127.5 * (1 + fill(f"ov{number}", (size, size, 3)))).astype(np.uint8)
        alpha = 0.5 * (1 + fill(f"al{number}", (size, size)))
    if case["kind"] == "alpha":
        result = overlay(image, patch, alpha, np.array([case["y"]]), np.array([case["x"]]))
    elif case["kind"] == "hands":
        result = cover_lower_face(image, patch, alpha)
    else:
        tolerance = 1
        squares = pixelate if case["kind"] == "pixelate-whole" else pixelate_mouth
        result = squares(image, case["pixel_size"])
    want = np.load(GOLDEN / "visual.npz")[str(number)]
    assert np.abs(result[0].astype(int) - want).max() <= tolerance


@pytest.mark.parametrize("case", golden_json("beam_search"), ids=lambda c: c["tag"])
def test_a_wide_beam_finds_the_exhaustive_best(case):
    table = torch.tensor(case["log_probs_row_is_previous_token"], dtype=torch.float64)
    for want in case["results"]:
        found = beam_search(
            lambda tokens, origins: table[tokens[:, -1]].clone(),
            1,
            beam=3000,
            max_len=case["max_len"],
            min_len=case["min_len"],
            eos=case["eos"],
            pad=case["pad"],
            length_penalty=want["lenpen"],
        )[0]
        for ours, theirs in zip(found, want["best"], strict=False):
            assert ours.tokens == theirs["tokens"]
            assert ours.score == pytest.approx(theirs["score"], abs=1e-5)
