"""The loss: every backend equals the published procedure; gradients, options, ties, ignoring."""

import pytest
import torch

from ritornello.methods.topograph import (
    DiceTopographLoss,
    SoftDiceCLDiceLoss,
    TopographLoss,
    critical_regions,
)
from ritornello.methods.topograph.codes import combine
from ritornello.methods.topograph.loss import aggregate
from ritornello.methods.topograph.regions import critical_pixels

FAST = ("compiled", "scipy", "torch")


@pytest.fixture
def problem(generator):
    """problem(batch, classes, height, width): smooth logits and a target that they resemble."""

    def make(batch=2, classes=3, height=13, width=11, dtype=torch.float32):
        pool = torch.nn.AvgPool2d(3, 1, 1)
        shape = (batch, classes, height, width)
        field = 3 * pool(torch.randn(shape, generator=generator))
        noise = pool(torch.randn(shape, generator=generator))
        return field.to(dtype).requires_grad_(), (field + noise).argmax(1)

    return make


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("size", [(1, 1), (1, 9), (8, 1), (2, 2), (7, 10), (23, 17)])
def test_backends_equal_the_published_procedure(generator, size, backend):
    """On random codes: the hardest images there are, with many contacts at corners."""
    codes = torch.randint(0, 4, (12, *size), generator=generator, dtype=torch.uint8)
    expected = critical_pixels(codes, "reference", False)
    found = critical_pixels(codes, backend, False)
    assert all(torch.equal(a, b) for a, b in zip(found[:2], expected[:2], strict=True))
    assert found[2] == expected[2]


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_change_nothing(draw, threads):
    pred, gt = draw(7, 30, 31)
    expected, count = critical_regions(pred, gt, backend="scipy")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = critical_regions(pred, gt, backend="compiled")
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], expected)
    assert found[1] == count > 7


@pytest.mark.parametrize("backend", FAST)
def test_checkerboards_and_full_masks(backend):
    board = (torch.arange(40)[:, None] + torch.arange(40)) % 2 == 0
    full, none = torch.ones_like(board), torch.zeros_like(board)
    for pred, gt in ((board, none), (none, board), (full, none), (none, full), (board, ~board)):
        expected = critical_regions(pred, gt, backend="reference")
        found = critical_regions(pred, gt, backend=backend)
        assert torch.equal(found[0], expected[0])
    # A lone region without padding touches nothing: critical, not unseen.
    assert critical_regions(full, none, pad=False, backend=backend)[1] == 1
    assert critical_regions(full, none, backend=backend)[1] == 1
    assert critical_regions(full, full, backend=backend)[1] == 0


@pytest.mark.parametrize("connectivity", [4, 8])
@pytest.mark.parametrize("pad", [True, False])
@pytest.mark.parametrize("aggregation", ["mean", "rms", "sum", "max", "min", "ce"])
def test_value_is_the_sum_over_regions(problem, aggregation, pad, connectivity):
    """Equation L_CG as loops over classes and regions, and its gradient."""
    logits, target = problem(dtype=torch.float64)
    loss = TopographLoss(aggregation=aggregation, pad=pad, connectivity=connectivity)
    value = loss(logits, target)
    (gradient,) = torch.autograd.grad(value, logits)
    probabilities = logits.softmax(1)
    predicted, total = logits.argmax(1), 0
    for k in range(3):
        for n in range(2):
            regions, count = critical_regions(
                predicted[n] == k, target[n] == k, pad=pad, connectivity=connectivity
            )
            for region in range(count):
                where = regions == region
                q = probabilities[n].gather(0, predicted[n][None])[0][where]
                total = (
                    total
                    + {
                        "mean": q.mean(),
                        "rms": q.square().mean().sqrt(),
                        "sum": q.sum(),
                        "max": q.max(),
                        "min": q.min(),
                        "ce": torch.nn.functional.cross_entropy(
                            probabilities[n][:, where].T, target[n][where]
                        ),
                    }[aggregation]
                )
    expected = total / (2 * 3)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, logits)[0])
    assert value > 1


def test_gradient_is_that_of_finite_differences(problem):
    logits, target = problem(1, 2, 6, 6, dtype=torch.float64)
    assert torch.autograd.gradcheck(TopographLoss(), (logits, target))


def test_a_right_prediction_costs_nothing(problem):
    logits, _ = problem()
    value = TopographLoss()(logits, logits.argmax(1))
    value.backward()
    assert value == 0
    assert torch.count_nonzero(logits.grad) == 0


def test_steps_along_the_gradient_repair_the_topology(canvas):
    blobs, bridged = canvas((5, 10, 2, 5), (5, 10, 10, 13)), canvas((5, 10, 2, 13))
    margin = bridged.float() - 0.5
    logits = torch.stack([-margin, margin])[None].requires_grad_()
    optimizer = torch.optim.SGD([logits], lr=5.0)
    loss = TopographLoss(include_background=False)
    for _ in range(60):
        optimizer.zero_grad()
        loss(logits, blobs[None].long()).backward()
        optimizer.step()
    assert critical_regions(logits[0, 1] > logits[0, 0], blobs)[1] == 0


def test_one_hot_and_probabilities_are_the_same_input(problem):
    logits, target = problem()
    one_hot = torch.nn.functional.one_hot(target, 3).movedim(-1, 1)
    expected = TopographLoss()(logits, target)
    torch.testing.assert_close(TopographLoss()(logits, one_hot.float()), expected)
    torch.testing.assert_close(TopographLoss()(logits, one_hot.bool()), expected)
    found = TopographLoss(softmax=False)(logits.softmax(1), target)
    torch.testing.assert_close(found, expected)
    strided = logits.detach().to(memory_format=torch.channels_last)
    torch.testing.assert_close(TopographLoss()(strided, target), expected.detach())


def test_ignored_pixels_are_in_no_mask(problem):
    logits, target = problem(2, 2, 20, 20)
    ignored = torch.zeros_like(target, dtype=torch.bool)
    ignored[:, 5:9] = True
    marked = target.masked_fill(ignored, 255)
    found = TopographLoss(ignore_index=255, include_background=False, aggregation="sum")
    value = found(logits, marked)
    (gradient,) = torch.autograd.grad(value, logits)
    assert torch.count_nonzero(gradient[:, :, 5:9]) == 0
    pred, gt = logits.argmax(1) == 1, target == 1
    regions, _ = critical_regions(pred, gt, ignore=ignored)
    q = logits.softmax(1).amax(1)[regions >= 0]
    torch.testing.assert_close(value, q.sum() / 2)
    assert value > 0
    assert TopographLoss(ignore_index=-100)(logits, torch.full_like(target, -100)) == 0


def test_ties_go_to_the_lowest_class_in_any_precision():
    logits = torch.zeros(1, 3, 6, 6, dtype=torch.bfloat16)
    target = torch.zeros(1, 6, 6, dtype=torch.long)
    assert TopographLoss()(logits, target) == 0
    value = TopographLoss()(logits, target + 1)
    assert value.dtype == torch.bfloat16
    # Class 0 is predicted everywhere, class 1 everywhere wanted: two regions of mean 1/3.
    assert value == torch.tensor(2 / 3 / 3, dtype=torch.bfloat16)


def test_half_precision_does_not_overflow_in_sums_over_pixels():
    target = torch.arange(512).expand(1, 512, 512) // 256
    logits = 2 * torch.nn.functional.one_hot(target, 2).movedim(-1, 1).float()
    for loss in (SoftDiceCLDiceLoss(0.5), lambda x, y: DiceTopographLoss(beta=0.5)(x, y)[0]):
        half = logits.half().requires_grad_()
        value = loss(half, target)
        value.backward()
        assert value.dtype == torch.float16
        assert bool(half.grad.isfinite().all())
        torch.testing.assert_close(value.float(), loss(logits, target), rtol=1e-3, atol=1e-3)


def test_autocast_and_compile(problem):
    logits, target = problem()
    expected = TopographLoss()(logits, target)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(TopographLoss()(logits, target), expected)

    @torch.compile(backend="aot_eager")
    def step(x):
        return TopographLoss()(2 * x, target) + x.sum()

    torch.testing.assert_close(step(logits / 2), expected + logits.sum() / 2)


def test_threshold_noise_moves_regions_not_values(problem):
    """Regions come from shifted probabilities, q from those that were not."""
    logits, target = problem(4, 3, 16, 16)
    plain = TopographLoss()(logits, target)
    for kind in ("gaussian", "uniform"):
        loss = TopographLoss(threshold_noise=kind, threshold_scale=0.5)

        def value(seed, loss=loss):
            return loss(logits, target, torch.Generator().manual_seed(seed))

        assert value(1) == value(1)
        assert len({float(value(seed).detach()) for seed in range(4)}) == 4
        assert TopographLoss(threshold_noise=kind, threshold_scale=0.0)(logits, target) == plain
    # With a large shift one class is predicted everywhere: each sample has its own.
    loss = TopographLoss(threshold_noise="uniform", threshold_scale=1e4, aggregation="sum")
    generator = torch.Generator().manual_seed(0)
    shifted = loss._perturbed(logits.detach(), generator).argmax(1)
    assert all(len(image.unique()) == 1 for image in shifted)
    assert len(shifted.unique()) > 1
    total = loss._perturbed(logits.detach(), generator).sum(1)
    torch.testing.assert_close(total, torch.ones_like(total), atol=1e-2, rtol=0)


def test_aggregates_of_uneven_regions():
    values, region = torch.tensor([1.0, 2.0, 4.0, 5.0]), torch.tensor([1, 0, 1, 1])
    for name, expected in (
        ("sum", [2, 10]),
        ("mean", [2, 10 / 3]),
        ("max", [2, 5]),
        ("min", [2, 1]),
        ("rms", [2, 14**0.5]),
    ):
        found = aggregate(values, region, 2, name)
        torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float32))


def test_weighted_sum_with_dice_and_cldice(problem):
    logits, target = problem()
    loss = DiceTopographLoss(0.3, beta=0.25, iterations=3, aggregation="rms")
    value, terms = loss(logits, target)
    topology = TopographLoss(aggregation="rms")(logits, target)
    overlap = SoftDiceCLDiceLoss(0.25, iterations=3)(logits, target)
    torch.testing.assert_close(value, overlap + 0.3 * topology)
    torch.testing.assert_close(terms["topograph"], topology.detach())
    mixed = 0.75 * terms["dice"] + 0.25 * terms["cldice"]
    torch.testing.assert_close(mixed, overlap.detach())
    warm, terms = loss(logits, target, alpha=0)
    torch.testing.assert_close(warm, overlap)
    assert terms["topograph"] == 0
    ignoring = DiceTopographLoss(0.3, ignore_index=9)
    ignored = ignoring(logits, target.masked_fill(target == 2, 9))[0]
    assert torch.isfinite(ignored)
    (gradient,) = torch.autograd.grad(ignored, logits)
    assert torch.count_nonzero(gradient.movedim(1, -1)[target == 2]) == 0


def test_padding_and_complement():
    pred, gt = torch.tensor([[[True, False]]]), torch.tensor([[[True, True]]])
    assert combine(pred, gt, 8, False).tolist() == [[[3, 2]]]
    assert combine(pred, gt, 8, True)[0].tolist() == [[0] * 4, [0, 3, 2, 0], [0] * 4]
    assert combine(pred, gt, 4, True)[0].tolist() == [[3] * 4, [3, 0, 1, 3], [3] * 4]


@pytest.mark.gpu
def test_cuda_equals_the_cpu(problem):
    logits, target = problem(3, 3, 40, 30)
    expected = TopographLoss()(logits, target)
    expected.backward()
    moved = logits.detach().cuda().requires_grad_()
    value = TopographLoss()(moved, target.cuda())
    value.backward()
    torch.testing.assert_close(value.cpu(), expected)
    torch.testing.assert_close(moved.grad.cpu(), logits.grad)
