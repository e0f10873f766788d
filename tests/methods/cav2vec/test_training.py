"""Batches, schedules and both trainings on small things."""

import numpy as np
import pytest
import torch
from cav2vec_small import TINY, TOKENIZER, recognizer
from hypothesis import given, settings
from hypothesis import strategies as st

from ritornello.common.training import fit
from ritornello.methods.cav2vec import (
    AVForCTC,
    AVHubertConfig,
    CAV2vecForPreTraining,
    PretrainingConfig,
)
from ritornello.methods.cav2vec.batch_order import BatchOrder, frame_groups
from ritornello.methods.cav2vec.corruption import VideoCorruptor
from ritornello.methods.cav2vec.data import LabelledBatches, UptrainingBatches
from ritornello.methods.cav2vec.training import Schedule, finetuning_module, uptraining_module

pytest.importorskip("espeakng_loader", reason="the speech is made by espeak-ng")


def test_uptraining_resumes_to_the_same_weights(clips, mixer, tmp_path):
    labels = [np.arange(len(c.frames)) % 5 for c in clips]
    config = PretrainingConfig(
        AVHubertConfig(**(TINY.to_dict() | {"dropout": 0.1})),
        num_classes=5,
        final_dim=8,
        top_k=2,
        ema_decay=(0.5, 0.9),
        ema_steps=6,
    )
    batches = UptrainingBatches(clips, mixer, VideoCorruptor(), 20, 2, 16, labels, seed=1)

    class StopError(Exception):
        pass

    def until(limit):
        def batch(number):
            if number == limit:
                raise StopError
            return batches(number)

        return batch

    def trained(scratch, *limits):
        for limit in limits:
            torch.manual_seed(0)
            model = CAV2vecForPreTraining(config)
            history = []
            module = uptraining_module(model, Schedule(6, 1e-3, 2), history=history)
            kept = {"steps": 6, "seed": 1, "scratch": scratch, "checkpoint_every": 2}
            try:
                result = fit(module, until(limit), **kept)
            except StopError:
                continue
            return model.state_dict(), result, history
        raise AssertionError

    (straight, first, losses), (resumed, second, again) = (
        trained(tmp_path / "a", 99),
        trained(tmp_path / "b", 5, 99),
    )
    assert (first.resumed_from, second.resumed_from) == (0, 4)
    assert first.losses == second.losses
    assert len(losses) == 6
    assert losses == again
    assert all(torch.equal(value, resumed[name]) for name, value in straight.items())


def test_a_training_can_be_sent_to_another_process():
    cloudpickle = pytest.importorskip("cloudpickle", reason="several processes need it")
    model = CAV2vecForPreTraining(PretrainingConfig(TINY, num_classes=5, final_dim=8, top_k=2))
    sent = cloudpickle.loads(cloudpickle.dumps(uptraining_module(model, Schedule(4, 1e-3, 2))))
    for name, value in model.state_dict().items():
        assert torch.equal(sent.model.state_dict()[name], value)


def test_gradients_are_those_of_all_accumulated_frames(clips, mixer):
    """Batches of different sizes: sums over frames are divided once, and clipped afterwards."""
    labels = [np.arange(len(c.frames)) % 5 for c in clips]
    config = PretrainingConfig(TINY, num_classes=5, final_dim=8, top_k=2, tasks=("mlm", "mp"))
    made = [UptrainingBatches(clips, mixer, VideoCorruptor(), 20, n, 16, labels)(0) for n in (1, 4)]
    assert made[0].labels.numel() != made[1].labels.numel()
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(CAV2vecForPreTraining(config))
    schedule = Schedule(1, 1e-3, 0)
    module = uptraining_module(models[0], schedule)
    fit(module, made.__getitem__, steps=1, seed=3, accumulate=2, clip_norm=0.5)
    models[1].train()
    outputs = []
    for number, batch in enumerate(made):
        torch.manual_seed(3 * 1_000_003 + number)
        generator = np.random.default_rng(int(torch.randint(2**62, ())))
        outputs.append(models[1](batch, generator=generator))
    (sum(o.total for o in outputs) / sum(o.n_frames for o in outputs)).backward()
    norm = torch.nn.utils.clip_grad_norm_(models[1].parameters(), 0.5)
    assert norm > 0.5
    for ours, wanted in zip(models[0].parameters(), models[1].parameters(), strict=True):
        if wanted.grad is not None and wanted.requires_grad:
            torch.testing.assert_close(ours.grad, wanted.grad, atol=1e-6, rtol=1e-4)


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.integers(1, 500), min_size=1, max_size=40),
    st.integers(1, 1200),
    st.integers(0, 99),
)
def test_batches_hold_as_many_frames_as_asked(counts, budget, seed):
    order = BatchOrder(counts, batch_frames=budget, seed=seed)
    capped = np.minimum(counts, 400)
    batches = len(frame_groups(counts, budget, 400))
    for epoch in (0, 1):
        rows = [order(epoch * batches + n) for n in range(batches)]
        assert sorted(clip for batch in rows for _, clip in batch) == list(range(len(counts)))
        for batch in rows:
            assert {e for e, _ in batch} == {epoch}
            longest = max(capped[clip] for _, clip in batch)
            assert len(batch) == 1 or len(batch) * longest <= budget


def test_frames_decide_the_batches_of_both_trainings(clips):
    order = {"batch_size": None, "batch_frames": 80}
    batch = UptrainingBatches(clips, None, None, 20, **order)(0)
    assert batch.video.shape[0] * batch.video.shape[2] <= 80
    labelled = LabelledBatches(clips, TOKENIZER, None, None, 20, **order)
    assert labelled(1).video.shape[0] * labelled(1).video.shape[2] <= 80
    assert len(list(labelled.in_order())) == len(clips)
    for wrong in ({"batch_size": 2, "batch_frames": 9}, {"batch_size": None}, {"batch_size": 0}):
        with pytest.raises(ValueError, match="one of batch_size and batch_frames"):
            UptrainingBatches(clips, None, None, 20, **wrong)


def test_a_frozen_encoder_stands_still_and_then_moves(clips):
    model = recognizer(AVForCTC)
    batches = LabelledBatches(clips, TOKENIZER, None, None, 20, 4)
    schedule = Schedule.finetuning(steps=3, learning_rate=1e-3, warmup_steps=1, frozen_steps=2)
    before = model.backbone.post_extract_proj.weight.clone()
    moved = []

    def watched(number):
        moved.append(not torch.equal(before, model.backbone.post_extract_proj.weight))
        return batches(number)

    fit(finetuning_module(model, schedule), watched, steps=3)
    assert moved[:2] == [False, False]
    assert not torch.equal(before, model.backbone.post_extract_proj.weight)


def test_schedules_rise_and_fall_as_in_the_paper():
    up = Schedule()
    assert up.factor(4799) == pytest.approx(1.0)
    assert up.factor(60_000) == pytest.approx(0.0)
    assert up.factor((4800 + 60_000) // 2) == pytest.approx(0.5)
    down = Schedule.finetuning()
    assert down.factor(20_000) == pytest.approx(1.0)
    assert down.factor(60_000) == pytest.approx(0.05)
    assert down.factor(40_000) == pytest.approx(0.05**0.5)
    with pytest.raises(ValueError, match="warmup_steps"):
        Schedule(steps=5)
    with pytest.raises(ValueError, match="decay"):
        Schedule(decay="cosine")


def test_clean_and_corrupted_share_window_crop_and_flip(clips):
    batch = UptrainingBatches(clips, None, None, 20, 4, 12, seed=2)(1)
    assert batch.audio.shape == (4, 104, 12)
    assert torch.equal(batch.audio, batch.clean_audio)
    assert torch.equal(batch.video, batch.clean_video)
    assert not batch.audio_corrupted.any()


def test_a_batch_is_a_function_of_its_number_alone(clips, mixer):
    makers = [UptrainingBatches(clips, mixer, VideoCorruptor(), 20, 3, 16, seed=2) for _ in "ab"]
    for number in (3, 0, 7):
        for left, right in zip(makers[0](number), makers[1](number), strict=True):
            assert left is None or torch.equal(left, right)
    seen = [makers[0](number).audio for number in range(2)]
    assert not torch.equal(*seen)


def test_labels_of_a_frame_more_or_less_are_cut_and_others_refused(clips):
    counts = clips.frame_counts
    shorter = [np.arange(n - 1 + 2 * (i % 2)) for i, n in enumerate(counts)]
    batches = UptrainingBatches(clips, None, None, 20, 3, 400, shorter)
    for number in range(4):
        batch = batches(number)
        assert batch.labels.shape == batch.audio_corrupted.shape
        assert bool((batch.labels.diff(dim=1) == 1).all())
    wrong = [np.arange(n + 9) for n in counts]
    with pytest.raises(ValueError, match="labels must be as many"):
        UptrainingBatches(clips, None, None, 20, 3, 400, wrong)(0)


def test_pictures_smaller_than_the_crop_are_told(clips):
    with pytest.raises(ValueError, match="at least 88 pixels"):
        UptrainingBatches(clips, None, None, 88, 2)(0)
