"""Shared-prompt pairs: layout, equality with separate sequences and with trl, resume."""

import pytest
import torch

from ritornello.common.models.tiny import tiny_causal_lm
from ritornello.common.training import scored_head
from ritornello.common.training.language_model_sft import (
    SFTSettings,
    sft_trainer,
    tokenize_row,
)
from ritornello.common.training.preference import (
    PreferenceSettings,
    collate_pairs,
    dpo_loss,
    pair_logprobs,
    tokenize_pair,
)
from ritornello.common.training.trl_training import train

PAIRS = [
    {"prompt_ids": [5, 6, 7], "chosen_ids": [8, 9, 2], "rejected_ids": [10, 2]},
    {"prompt_ids": [11], "chosen_ids": [12, 2], "rejected_ids": [13, 14, 15, 2]},
    {"prompt_ids": [3, 4, 5, 6, 7], "chosen_ids": [8, 2], "rejected_ids": [8, 9, 2]},
]
TEXT_PAIRS = [
    {"prompt": f"what is {n} ?", "chosen": f"{n} yes", "rejected": "no"} for n in range(7)
]
REPLAY = [{"prompt": f"say {n}", "completion": f"{n}"} for n in range(5)]


@pytest.fixture(scope="module")
def tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<pad>", "<unk>", "<eos>", "what", "is", "say", "yes", "no", "?", *map(str, range(10))]
    core = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )


def one_by_one(model, pair, side):
    """Log-probability of one completion from a sequence of its own."""
    ids = torch.tensor([[*pair["prompt_ids"], *pair[f"{side}_ids"]]])
    logps = model(input_ids=ids).logits[0, :-1].log_softmax(-1)
    start = len(pair["prompt_ids"])
    return logps[range(start - 1, ids.shape[1] - 1), ids[0, start:]].sum()


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "opt"])
def test_sharing_the_prompt_changes_no_value_and_no_gradient(architecture):
    model = tiny_causal_lm(architecture, width=32, hidden=48, heads=2, vocabulary=32)
    chosen, rejected = pair_logprobs(model, collate_pairs(PAIRS, pad_token_id=0))
    expected = [[one_by_one(model, p, side) for p in PAIRS] for side in ("chosen", "rejected")]
    torch.testing.assert_close(chosen, torch.stack(expected[0]), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(rejected, torch.stack(expected[1]), rtol=1e-4, atol=1e-4)
    parameters = list(model.parameters())
    ours = torch.autograd.grad((chosen - rejected).sum(), parameters, allow_unused=True)
    theirs = torch.autograd.grad(
        (torch.stack(expected[0]) - torch.stack(expected[1])).sum(), parameters, allow_unused=True
    )
    for mine, other in zip(ours, theirs, strict=True):
        if mine is not None and other is not None:
            torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("architecture", "frozen", "dtype"),
    [("llama", False, None), ("qwen2", True, None), ("llama", False, torch.bfloat16)],
)
def test_scoring_tile_by_tile_changes_no_value_and_no_gradient(
    architecture, frozen, dtype, monkeypatch
):
    """A vocabulary whose logits would be too many: three tokens a tile, then all at once."""
    model = tiny_causal_lm(architecture, width=32, hidden=48, heads=2, vocabulary=32)
    head = model.get_output_embeddings()
    head.weight = torch.nn.Parameter(head.weight.detach().clone(), requires_grad=not frozen)
    batch = collate_pairs(PAIRS, pad_token_id=0)
    found = []
    for few in (0, 2**25):
        monkeypatch.setattr(scored_head, "FEW_LOGITS", few)
        monkeypatch.setattr(scored_head, "_TILE", 3 * 32)
        with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
            chosen, rejected = pair_logprobs(model, batch)
        used = [p for p in model.parameters() if p.requires_grad]
        loss = (2 * chosen - rejected).sum()
        found.append([chosen, rejected, *torch.autograd.grad(loss, used)])
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if dtype is None else {"rtol": 0.05, "atol": 0.05}
    for tiled, plain in zip(*found, strict=True):
        torch.testing.assert_close(tiled, plain, **tolerance)


def test_a_head_whose_logits_are_changed_is_not_taken_apart(monkeypatch):
    monkeypatch.setattr(scored_head, "FEW_LOGITS", 0)
    model = tiny_causal_lm("llama", width=32, hidden=48, heads=2, vocabulary=32)
    arguments = (model, {}, torch.arange(2), torch.ones(1, 2, dtype=torch.long))
    model.config.final_logit_softcapping = 30.0
    assert scored_head.tiled_logprobs(*arguments, torch.ones(1, 2, dtype=torch.bool)) is None


def test_eager_attention_gives_the_same_values():
    model = tiny_causal_lm("llama", width=32, hidden=48, heads=2, vocabulary=32)
    batch = collate_pairs(PAIRS, pad_token_id=0)
    expected = pair_logprobs(model, batch)
    model.set_attn_implementation("eager")
    torch.testing.assert_close(pair_logprobs(model, batch), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"sliding_window": 6}, "attention window of 6"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "linear_attention"),
        ({"_attn_implementation": "flash_attention_2"}, "attn_implementation"),
    ],
)
def test_models_that_would_misread_the_mask_are_refused(change, match):
    model = tiny_causal_lm("llama", width=32, hidden=48, heads=2, vocabulary=32)
    for name, value in change.items():
        setattr(model.config, name, value)
    with pytest.raises(ValueError, match=match):
        pair_logprobs(model, collate_pairs(PAIRS, pad_token_id=0))


def test_layout_of_a_small_batch():
    batch = collate_pairs(PAIRS[:2], pad_token_id=0)
    assert batch.input_ids.tolist() == [
        [5, 6, 7, 8, 9, 2, 10, 2, 0, 0],
        [0, 0, 11, 12, 2, 0, 13, 14, 15, 2],
    ]
    assert batch.position_ids[0].tolist() == [0, 1, 2, 3, 4, 5, 3, 4, 5, 6]
    assert batch.position_ids[1].tolist() == [0, 0, 0, 1, 2, 3, 1, 2, 3, 4]
    seen = batch.attention_mask[0, 0]
    assert seen[6].tolist() == [1, 1, 1, 0, 0, 0, 1, 0, 0, 0]  # rejected sees no chosen token
    assert seen[4].tolist() == [1, 1, 1, 1, 1, 0, 0, 0, 0, 0]


def test_tokens_never_merge_across_the_boundary_and_completions_are_never_cut(tokenizer):
    ids = tokenize_pair(tokenizer, "what is", "yes", "no", max_length=4)
    assert tokenizer.convert_ids_to_tokens(ids["chosen_ids"]) == ["yes", "<eos>"]
    with pytest.raises(ValueError, match="max_length=3"):
        tokenize_pair(tokenizer, "what is", "yes", "no", max_length=3)
    with pytest.raises(ValueError, match="max_length=3"):
        tokenize_row(tokenizer, "what is", "yes", max_length=3)


@pytest.mark.parametrize(
    ("texts", "match"),
    [
        (("", "a", "b"), "prompt"),
        (("a", " ", "b"), "chosen"),
        (("a", "b", ""), "rejected"),
        (("a", "b", "b"), "differ"),
    ],
)
def test_unusable_pairs_are_named(tokenizer, texts, match):
    with pytest.raises(ValueError, match=match):
        tokenize_pair(tokenizer, *texts, max_length=9)


@pytest.mark.parametrize(
    ("change", "match"),
    [({"beta": 0}, "beta"), ({"batch_size": 3, "micro_batch_size": 2}, "batch_size")]
    + [({name: -1}, name) for name in ("nll_weight", "replay_weight", "lora_rank")],
)
def test_bad_settings_are_named(change, match):
    with pytest.raises(ValueError, match=match):
        PreferenceSettings(**change)
    with pytest.raises(ValueError, match="batch_size"):
        SFTSettings(batch_size=3, micro_batch_size=2)


def small_model(seed=0):
    return tiny_causal_lm(width=16, hidden=24, heads=2, vocabulary=32, seed=seed)


def settings(**changes):
    values = {
        "learning_rate": 1e-2,
        "max_steps": 6,
        "batch_size": 4,
        "nll_weight": 0.2,
        "replay_weight": 1.0,
        "replay_batch_size": 3,
    }
    return PreferenceSettings(**(values | changes))


def trained(tokenizer, folder, *, resume=False, **changes):
    from ritornello.common.training.preference_trainer import preference_trainer

    model = small_model()
    trainer = preference_trainer(
        model,
        tokenizer,
        TEXT_PAIRS,
        settings(**changes),
        output_dir=folder,
        replay=REPLAY,
        use_cpu=True,
    )
    log = train(trainer, resume=resume)
    return trainer.model, log


def test_an_interrupted_run_ends_with_the_weights_of_an_unbroken_one(tokenizer, tmp_path):
    import shutil

    whole, _ = trained(tokenizer, tmp_path / "whole", save_steps=3)
    shutil.copytree(tmp_path / "whole" / "checkpoint-3", tmp_path / "broken" / "checkpoint-3")
    resumed, _ = trained(tokenizer, tmp_path / "broken", resume=True, save_steps=3)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name
    untrained = small_model().state_dict()
    assert any(not torch.equal(v, untrained[n]) for n, v in whole.state_dict().items())


@pytest.mark.parametrize("stage", ["preferences", "completions"])
def test_adapters_and_loss_curve_survive_a_kill_while_a_checkpoint_is_written(
    tokenizer, tmp_path, stage
):
    def run(folder, *, kill=False):
        from ritornello.common.training.preference_trainer import preference_trainer

        plan = {"lora_rank": 2, "max_steps": 8, "save_steps": 2, "learning_rate": 1e-2}
        if stage == "preferences":
            build, rows, given = preference_trainer, TEXT_PAIRS, settings(**plan)
            more = {"replay": REPLAY}
        else:
            build, rows, given, more = sft_trainer, REPLAY, SFTSettings(batch_size=2, **plan), {}
        trainer = build(
            small_model(), tokenizer, rows, given, output_dir=folder, use_cpu=True, **more
        )
        if kill:
            # the weights of checkpoint-6 are there, its state is not
            save = trainer._save_optimizer_and_scheduler

            def die(where):
                save(where)
                if where.endswith("-6"):
                    raise KeyboardInterrupt

            trainer._save_optimizer_and_scheduler = die
        log = train(trainer, resume=True)
        rows = [{k: v for k, v in row.items() if k != "num_tokens"} for row in log[:-1]]
        return trainer.model.state_dict(), rows

    whole, curve = run(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "broken", kill=True)
    assert (tmp_path / "broken" / "checkpoint-6").is_dir()
    resumed, again = run(tmp_path / "broken")
    assert again == curve
    assert [row["step"] for row in curve] == [2, 4, 6, 8]
    assert all(torch.equal(value, resumed[name]) for name, value in whole.items())


def test_gradient_accumulation_changes_nothing_but_rounding(tokenizer, tmp_path):
    """Without replay, whose rows are drawn per forward pass."""
    once, _ = trained(tokenizer, tmp_path / "a", replay_weight=0.0, max_steps=1)
    twice, _ = trained(
        tokenizer, tmp_path / "b", replay_weight=0.0, max_steps=1, micro_batch_size=2
    )
    for name, value in once.state_dict().items():
        torch.testing.assert_close(value, twice.state_dict()[name], rtol=1e-3, atol=1e-4)


def test_a_process_that_sees_several_devices_trains_on_one(tokenizer, tmp_path, monkeypatch):
    from transformers import TrainingArguments

    seen = property(lambda given: 1 if given._n_gpu == 1 else 2)
    monkeypatch.setattr(TrainingArguments, "n_gpu", seen)
    _, log = trained(tokenizer, tmp_path / "pairs", max_steps=1)
    plan = SFTSettings(max_steps=1, batch_size=2)
    one = sft_trainer(small_model(), tokenizer, REPLAY, plan, output_dir=tmp_path, use_cpu=True)
    assert log
    assert one.args.n_gpu == 1


def test_a_model_computes_after_mixed_precision_training_as_before(tokenizer, tmp_path):
    model, _ = trained(tokenizer, tmp_path, max_steps=1, bf16=True)
    ids = torch.arange(6)[None]
    fresh = small_model()
    fresh.load_state_dict(model.state_dict())
    assert torch.equal(model(ids).logits, fresh(ids).logits)


def test_training_raises_the_margin(tokenizer, tmp_path):
    _, log = trained(tokenizer, tmp_path, max_steps=20)
    margins = [row["rewards/margins"] for row in log if "rewards/margins" in row]
    assert margins[-1] > margins[0]


def test_adapters_learn_against_the_model_without_them(tokenizer, tmp_path):
    """At the start the adapters are neutral: policy and reference agree, the margin is zero."""
    from ritornello.common.training.preference_trainer import preference_trainer

    trainer = preference_trainer(
        small_model(),
        tokenizer,
        TEXT_PAIRS,
        settings(lora_rank=2),
        output_dir=tmp_path,
        replay=REPLAY,
        use_cpu=True,
    )
    batch = next(iter(trainer.get_train_dataloader()))
    chosen, rejected = pair_logprobs(
        trainer.model, collate_pairs([trainer.train_dataset[i] for i in range(4)], 0)
    )
    assert set(batch) >= {"ref_chosen_logps", "ref_rejected_logps"}
    columns = trainer.train_dataset[:4]
    torch.testing.assert_close(chosen, torch.tensor(columns["ref_chosen_logps"]))
    torch.testing.assert_close(rejected, torch.tensor(columns["ref_rejected_logps"]))
    names = [name for name, p in trainer.model.named_parameters() if p.requires_grad]
    assert names
    assert all("lora" in name for name in names)


def test_the_precomputed_reference_and_the_loss_equal_trls(tokenizer, tmp_path):
    """trl's own step, with its online reference model, gives the same loss on the same pairs."""
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    from ritornello.common.training.preference_trainer import preference_trainer

    policy, reference = small_model(1), small_model(0)
    rows = [
        {k: f"{v} <eos>" if k != "prompt" else f"{v} " for k, v in p.items()} for p in TEXT_PAIRS
    ]
    config = DPOConfig(output_dir=str(tmp_path), report_to="none", use_cpu=True, bf16=False)
    peer = DPOTrainer(
        policy, reference, config, train_dataset=Dataset.from_list(rows), processing_class=tokenizer
    )
    peer_batch = peer.data_collator([peer.train_dataset[i] for i in range(len(rows))])
    expected = peer.compute_loss(policy, peer_batch)
    ours = preference_trainer(
        reference,
        tokenizer,
        TEXT_PAIRS,
        settings(nll_weight=0.0, replay_weight=0.0),
        output_dir=tmp_path,
        use_cpu=True,
    )
    batch = ours.data_collator([ours.train_dataset[i] for i in range(len(rows))])
    torch.testing.assert_close(ours.compute_loss(policy, batch), expected, rtol=1e-4, atol=1e-5)


def test_missing_pairs_and_replay_rows_are_named(tokenizer, tmp_path):
    from ritornello.common.training.preference_trainer import preference_trainer

    with pytest.raises(ValueError, match="pairs"):
        preference_trainer(small_model(), tokenizer, [], settings(), output_dir=tmp_path)
    with pytest.raises(ValueError, match="replay"):
        preference_trainer(small_model(), tokenizer, TEXT_PAIRS, settings(), output_dir=tmp_path)


def test_loss_does_not_depend_on_the_prompt_tokens_own_probability(generator):
    """Only completion positions enter: the four log-probabilities are all there is."""
    values = torch.randn(4, 5, generator=generator)
    loss, *_ = dpo_loss(*values, beta=0.1)
    shifted, *_ = dpo_loss(values[0] + 3, values[1] + 3, values[2], values[3], beta=0.1)
    torch.testing.assert_close(loss, shifted)


def test_fine_tuning_fits_completions_only_and_resumes_exactly(tokenizer, tmp_path):
    import shutil

    plan = SFTSettings(learning_rate=1e-2, max_steps=4, batch_size=2, save_steps=2)

    def run(folder, resume):
        trainer = sft_trainer(
            small_model(), tokenizer, REPLAY, plan, output_dir=folder, use_cpu=True
        )
        batch = trainer.data_collator([trainer.train_dataset[0]])
        assert (batch["labels"][0] != -100).sum() == 2  # the completion's word and <eos>
        train(trainer, resume=resume)
        return trainer.model.state_dict()

    whole = run(tmp_path / "whole", resume=False)
    shutil.copytree(tmp_path / "whole" / "checkpoint-2", tmp_path / "broken" / "checkpoint-2")
    resumed = run(tmp_path / "broken", resume=True)
    assert all(torch.equal(value, resumed[name]) for name, value in whole.items())


@pytest.mark.parametrize("few", [0, 2**25])
def test_replay_is_the_mean_loss_of_the_completions_tokens(tokenizer, tmp_path, monkeypatch, few):
    """One replay row: whatever is drawn, its loss is that of the model's own head on all tokens."""
    from ritornello.common.training.preference_trainer import preference_trainer

    monkeypatch.setattr(scored_head, "FEW_LOGITS", few)
    model = small_model()
    trainer = preference_trainer(
        model,
        tokenizer,
        TEXT_PAIRS,
        settings(),
        output_dir=tmp_path,
        replay=REPLAY[:1],
        use_cpu=True,
    )
    batch = trainer.data_collator([trainer.train_dataset[0]])
    _, terms = trainer.compute_loss(model.train(), batch, return_outputs=True)
    row = tokenize_row(tokenizer, **REPLAY[0], max_length=9)
    ids, labels = (torch.tensor([row[name]]) for name in ("input_ids", "labels"))
    expected = model(input_ids=ids, labels=labels).loss
    torch.testing.assert_close(terms["loss/replay"], expected, rtol=1e-5, atol=1e-6)
