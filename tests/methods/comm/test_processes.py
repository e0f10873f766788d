"""Two processes with half a batch each take the step that one takes with all of it."""

import torch
from torch import nn

from ritornello.methods.comm import CoMMLoss

SIZES = (3, 5)


def model_and_data():
    torch.manual_seed(0)
    model = nn.ModuleList(nn.Linear(4, 6) for _ in range(3))
    x = torch.randn(2, sum(SIZES), 4)
    return model, x


def loss_of(model, x):
    views = [[part(view) for part in model] for view in x]
    return CoMMLoss()(*views).loss


def step_of_half(rank):
    model, x = model_and_data()
    start = sum(SIZES[:rank])
    loss = loss_of(model, x[:, start : start + SIZES[rank]])
    loss.backward()
    for p in model.parameters():  # what DDP does
        torch.distributed.all_reduce(p.grad)
        p.grad /= 2
    return [loss.tolist(), *(p.grad.tolist() for p in model.parameters())]


def test_gathered_gradients_equal_those_of_the_joint_batch(two_ranks):
    """Ranks differ in their number of rows, too."""
    model, x = model_and_data()
    loss = loss_of(model, x)
    loss.backward()
    expected = [loss.detach(), *(p.grad for p in model.parameters())]
    for answer in two_ranks(step_of_half):
        found = [torch.tensor(values) for values in answer]
        torch.testing.assert_close(found[0], expected[0], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(found[1:], expected[1:], rtol=1e-4, atol=1e-6)
