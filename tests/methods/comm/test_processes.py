"""Two processes with half a batch each take the step that one takes with all of it."""

import multiprocessing
from datetime import timedelta

import pytest
import torch
from torch import nn

from ritornello.methods.comm import CoMMLoss

SIZES = (3, 5)
PATIENCE = timedelta(minutes=5)


def model_and_data():
    torch.manual_seed(0)
    model = nn.ModuleList(nn.Linear(4, 6) for _ in range(3))
    x = torch.randn(2, sum(SIZES), 4)
    return model, x


def loss_of(model, x):
    views = [[part(view) for part in model] for view in x]
    return CoMMLoss()(*views).loss


def work(rank, meeting, pipe):
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=2, timeout=PATIENCE
    )
    model, x = model_and_data()
    start = sum(SIZES[:rank])
    loss = loss_of(model, x[:, start : start + SIZES[rank]])
    loss.backward()
    for p in model.parameters():  # what DDP does
        torch.distributed.all_reduce(p.grad)
        p.grad /= 2
    pipe.send([loss.tolist(), *(p.grad.tolist() for p in model.parameters())])
    # Stays until it is killed: gloo's threads may abort a process at its exit or that of a peer.
    pipe.recv()


@pytest.fixture
def ranks(tmp_path):
    """The pipes on which two processes answer."""
    context = multiprocessing.get_context("spawn")
    processes, pipes = [], []
    try:
        for rank in range(2):
            ours, theirs = context.Pipe()
            arguments = (rank, str(tmp_path / "meeting"), theirs)
            process = context.Process(target=work, args=arguments, daemon=True)
            process.start()
            processes.append(process)
            theirs.close()
            pipes.append(ours)
        yield pipes
    finally:
        for process in processes:
            process.kill()
            process.join()


def test_gathered_gradients_equal_those_of_the_joint_batch(ranks):
    """Ranks differ in their number of rows, too."""
    model, x = model_and_data()
    loss = loss_of(model, x)
    loss.backward()
    expected = [loss.detach(), *(p.grad for p in model.parameters())]
    for pipe in ranks:
        assert pipe.poll(PATIENCE.total_seconds()), "a process gives no answer"
        found = [torch.tensor(values) for values in pipe.recv()]  # EOFError: it died
        torch.testing.assert_close(found[0], expected[0], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(found[1:], expected[1:], rtol=1e-4, atol=1e-6)
