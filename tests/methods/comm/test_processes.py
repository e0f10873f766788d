"""Two processes with half a batch each take the step that one takes with all of it."""

import copy

import torch
import torch.multiprocessing as mp
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


def work(rank, port_file, results):
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{port_file}", rank=rank, world_size=2
    )
    model, x = model_and_data()
    start = sum(SIZES[:rank])
    loss = loss_of(model, x[:, start : start + SIZES[rank]])
    loss.backward()
    for p in model.parameters():  # what DDP does
        torch.distributed.all_reduce(p.grad)
        p.grad /= 2
    if rank == 0:
        torch.save([loss.detach(), *(p.grad for p in model.parameters())], results)
    torch.distributed.destroy_process_group()


def test_gathered_gradients_equal_those_of_the_joint_batch(tmp_path):
    """Ranks differ in their number of rows, too."""
    results = tmp_path / "results.pt"
    mp.spawn(work, args=(str(tmp_path / "store"), str(results)), nprocs=2)
    model, x = model_and_data()
    joint = copy.deepcopy(model)
    loss = loss_of(joint, x)
    loss.backward()
    found = torch.load(results, weights_only=True)
    torch.testing.assert_close(found[0], loss.detach(), rtol=1e-5, atol=1e-6)
    for ours, p in zip(found[1:], joint.parameters(), strict=True):
        torch.testing.assert_close(ours, p.grad, rtol=1e-4, atol=1e-6)
