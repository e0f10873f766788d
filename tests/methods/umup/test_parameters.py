"""Tags survive what users do to parameters; optimisers apply the rules; bad input is named."""

import copy
import io
import pickle
from multiprocessing.reduction import ForkingPickler

import pytest
import torch
from torch import nn

from ritornello.methods.umup import SGD, Adam, AdamW, Parameter, UMuP, param_groups
from ritornello.methods.umup import functional as U
from ritornello.methods.umup.modules import (
    Conv1d,
    DepthModuleList,
    DepthSequential,
    Embedding,
    LayerNorm,
    Linear,
    LinearReadout,
)
from ritornello.methods.umup.optim import describe_groups


def tags(module: nn.Module) -> dict[str, tuple]:
    return {n: (p.mup_type, p.mup_scaling_depth) for n, p in module.named_parameters()}


def small() -> nn.Sequential:
    return nn.Sequential(
        DepthSequential(Linear(4, 4, bias=True), LayerNorm(4)), LinearReadout(4, 3)
    )


@pytest.mark.parametrize(
    "carry",
    [
        copy.deepcopy,
        lambda m: copy.deepcopy(copy.deepcopy(m)),
        lambda m: pickle.loads(pickle.dumps(m)),
        lambda m: pickle.loads(ForkingPickler.dumps(m)),
        lambda m: m.to(torch.float64),
        lambda m: m.to("meta").to_empty(device="cpu"),
        lambda m: (m.load_state_dict(m.state_dict(), assign=True), m)[1],
    ],
    ids=["deepcopy", "deepcopy_twice", "pickle", "process", "dtype", "to_empty", "assign"],
)
def test_tags_survive(carry):
    model = small()
    before = tags(model)
    assert tags(carry(model)) == before


def test_whole_model_survives_torch_save():
    buffer, model = io.BytesIO(), small()
    torch.save(model, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=False)
    assert tags(loaded) == tags(model)
    torch.save(model.state_dict(), buffer := io.BytesIO())
    buffer.seek(0)
    small().load_state_dict(torch.load(buffer, weights_only=True))


def test_deepcopy_keeps_shared_parameters_shared():
    first, second = Linear(4, 4), Linear(4, 4)
    second.weight = first.weight
    a, b = copy.deepcopy(nn.Sequential(first, second))
    assert a.weight is b.weight


def test_a_weight_of_one_axis_has_its_length_as_fan_in():
    (group,) = param_groups([Parameter(torch.ones(16), "weight")], 1.0, 0.0, "adam")
    assert group["lr"] == pytest.approx(0.25)


def test_groups_hold_every_parameter_once_and_keep_the_decay_product():
    model = small()
    groups = param_groups(model, 2.0, 2**-13)
    members = [id(p) for group in groups for p in group["params"]]
    assert sorted(members) == sorted(id(p) for p in model.parameters())
    assert all(g["lr"] * g["weight_decay"] == pytest.approx(2**-13) for g in groups)


def test_schedulers_scale_rate_and_leave_the_product_rule():
    optimizer = AdamW(small(), 1.0, weight_decay=0.01)
    peak = [g["lr"] for g in optimizer.param_groups]
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
    optimizer.step()
    schedule.step()
    for group, rate in zip(optimizer.param_groups, peak, strict=True):
        assert group["lr"] == pytest.approx(rate / 2)
        assert group["lr"] * group["weight_decay"] == pytest.approx(0.005)


def test_zero_rate_tensor_rate_and_dependent_decay():
    assert {g["weight_decay"] for g in param_groups(small(), 0.0, 0.1)} == {0.0}
    groups = param_groups(small(), torch.tensor(2.0), 0.1)
    assert len({id(g["lr"]) for g in groups}) == len(groups)
    plain = param_groups(small(), 2.0, 0.1, independent_weight_decay=False)
    assert {g["weight_decay"] for g in plain} == {0.1}


@pytest.mark.parametrize("build", [AdamW, Adam, SGD])
def test_wrappers_take_torch_s_options_and_groups(build):
    model = small()
    named = [{"params": list(model[0].parameters()), "lr": 0.5}, {"params": model[1].weight}]
    optimizer = build(named, 1.0, maximize=True)
    rates = {g["lr"] for g in optimizer.param_groups}
    assert max(rates) == 1.0
    assert all(g["maximize"] for g in optimizer.param_groups)


def test_untagged_parameters_are_named_or_allowed():
    model = nn.Sequential(Linear(4, 4), nn.Linear(4, 2))
    with pytest.raises(ValueError, match=r"1\.weight of shape \(2, 4\).*umup\.Parameter"):
        AdamW(model, 1.0)
    AdamW(model, 1.0, allow_unscaled=True)


def test_effective_rates_are_listed_by_name():
    rows = {row["name"]: row for row in describe_groups(small(), 1.0, 0.1)}
    assert rows["0.0.weight"]["lr"] == pytest.approx(0.5 / 2**0.5)
    assert rows["1.weight"]["lr"] == 1.0


def test_four_dimensional_weights_use_all_axes_but_the_first():
    (group,) = param_groups([Parameter(torch.zeros(8, 2, 2, 4), "weight")], 1.0)
    assert group["lr"] == pytest.approx(0.25)


def test_stacks_do_not_nest_and_do_not_grow():
    with pytest.raises(ValueError, match="do not nest"):
        DepthSequential(DepthSequential(Linear(2, 2)))
    stack = DepthModuleList([Linear(2, 2), Linear(2, 2)])
    with pytest.raises(ValueError, match="fixed at depth 2"):
        stack.append(Linear(2, 2))
    with pytest.raises(ValueError, match="no mup_type"):
        DepthSequential(nn.Linear(2, 2))


def test_unconstrained_linear_in_a_stack_warns_unless_mirrored():
    with pytest.warns(UserWarning, match="constraint=None"):
        DepthSequential(Linear(2, 2, constraint=None))


@pytest.mark.parametrize("mode", ["zeros", "circular", "reflect", "replicate"])
def test_convolution_pads_once_and_keeps_its_constraint(mode):
    x = torch.randn(2, 3, 9, generator=torch.Generator().manual_seed(0), requires_grad=True)
    layer = Conv1d(3, 4, 3, padding=2, padding_mode=mode, constraint=None)
    plain = nn.Conv1d(3, 4, 3, padding=2, padding_mode=mode, bias=False)
    plain.weight.data.copy_(layer.weight)
    torch.testing.assert_close(layer(x), plain(x) / 3)
    (ours,) = torch.autograd.grad(layer(x).sum(), x)
    (theirs,) = torch.autograd.grad(plain(x).sum(), x)
    torch.testing.assert_close(ours, theirs / 12**0.5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: U.linear(torch.zeros(2, 3), torch.zeros(4, 3), constraint="mean"), "gmean"),
        (lambda: U.linear(torch.zeros(2, 5), torch.zeros(4, 3)), "3 features"),
        (lambda: U.matmul(torch.zeros(2, 3), torch.zeros(3, 2), constraint="x"), "to_left_grad"),
        (lambda: U.gelu(torch.zeros(2), mult=0.0), "mult must be positive"),
        (lambda: U.dropout(torch.zeros(2), 1.0), r"p must be in \[0, 1\)"),
        (lambda: U.cross_entropy(torch.zeros(2, 3), torch.zeros(3).long()), "logits must be"),
        (
            lambda: U.cross_entropy(
                torch.zeros(2, 3), torch.zeros(2).long(), label_smoothing=0.1
            ),
            "label_smoothing",
        ),
        (lambda: U.mse_loss(torch.zeros(2), torch.zeros(2), reduction="none"), "reduction"),
        (lambda: U.residual_apply(lambda x: x, torch.zeros(2), tau=-1.0), "tau must be positive"),
        (lambda: UMuP(loss_softmax=0.0), "loss_softmax must be positive"),
        (lambda: Parameter(torch.zeros(2), "hidden"), "mup_type must be one of"),
        (lambda: AdamW(small(), -1.0), "lr must be at least 0"),
        (lambda: param_groups(small(), 1.0, optimizer="lion"), "optimizer must be"),
        (lambda: param_groups(small(), 1.0, readout_constraint="gmean"), "readout_constraint"),
    ],
)  # fmt: skip
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_embedding_and_readout_cannot_be_tied():
    embedding, readout = Embedding(5, 4), LinearReadout(4, 5)
    with pytest.raises(ValueError, match="untied"):
        readout.weight = embedding.weight
