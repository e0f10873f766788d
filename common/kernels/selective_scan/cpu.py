"""Selective scan in plain PyTorch, block by block: memory for one block of states, not for all.

Time is the first axis, so that one step is one contiguous slab and costs one fused kernel. The
forward keeps the state at the start of every block; the backward rebuilds a block's states from it.
Shapes: T steps of a block, b batch, d channels, g groups, w = d / g channels a group, n states.
"""

import torch
from torch import Tensor


def forward(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, initial_state: Tensor, block: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs, last state and block-start states of `reference.scan`.

    Returns:
        y (batch, channels, length), last state (batch, channels, states), starts (batch, channels,
        blocks, states).
    """
    state, outputs, starts = initial_state, [], []
    for first in range(0, u.shape[-1], block):
        part = slice(first, first + block)
        starts.append(state)
        _, states = _states(u[..., part], delta[..., part], A, B[..., part], state)
        outputs.append(_per_group(states, C.shape[1]) @ _time_major(C[..., part])[..., None])
        state = states[-1]
    y = torch.cat(outputs).flatten(2).permute(1, 2, 0)
    return y.contiguous(), state.clone(), torch.stack(starts, dim=2)


def backward(
    dy: Tensor,
    dlast: Tensor,
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    starts: Tensor,
    block: int,
) -> tuple[Tensor, ...]:
    """Gradients of u, delta, A, B, C and the initial state."""
    du, ddelta, dB, dC = map(torch.empty_like, (u, delta, B, C))
    dA, carry = torch.zeros_like(A), dlast
    for index in reversed(range(starts.shape[2])):
        part = slice(index * block, (index + 1) * block)
        inputs = u[..., part], delta[..., part], A, B[..., part]
        gradients = _block_backward(
            dy[..., part], carry, *inputs, C[..., part], starts[:, :, index]
        )
        du[..., part], ddelta[..., part], dA_part, dB[..., part], dC[..., part], carry = gradients
        dA += dA_part
    return du, ddelta, dA, dB, dC, carry.clone()


def _time_major(x: Tensor) -> Tensor:
    """(b, ..., T) -> (T, b, ...), contiguous."""
    return x.movedim(-1, 0).contiguous()


def _per_group(x: Tensor, groups: int) -> Tensor:
    """(T, b, d, n) -> (T, b, g, w, n)."""
    return x.unflatten(2, (groups, -1))


def _states(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, initial: Tensor
) -> tuple[Tensor, Tensor]:
    """Decays exp(delta A) and states of one block, both (T, b, d, n)."""
    decay = torch.exp_(_time_major(delta)[..., None] * A)
    inputs = _time_major(delta * u).unflatten(2, (B.shape[1], -1))
    states = (inputs[..., None] * _time_major(B)[..., None, :]).flatten(2, 3)
    states[0].addcmul_(decay[0], initial)
    for t in range(1, len(states)):
        states[t].addcmul_(decay[t], states[t - 1])
    return decay, states


def _block_backward(
    dy: Tensor,
    carry: Tensor,
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    initial: Tensor,
) -> tuple[Tensor, ...]:
    """One block: `carry` is the gradient of its last state from later steps; the last value
    returned is that of its initial state."""
    groups = B.shape[1]
    decay, states = _states(u, delta, A, B, initial)
    upstream = _time_major(dy).unflatten(2, (groups, -1))
    grads = (upstream[..., None] * _time_major(C)[..., None, :]).flatten(2, 3)
    grads[-1] += carry
    for t in reversed(range(len(grads) - 1)):
        grads[t].addcmul_(decay[t + 1], grads[t + 1])
    grouped = _per_group(grads, groups)
    along_B = (grouped @ _time_major(B)[..., None]).flatten(2).permute(1, 2, 0)
    inputs = _time_major(delta * u).unflatten(2, (groups, -1))
    dB = (inputs[..., None, :] @ grouped).squeeze(-2)
    dC = (upstream[..., None, :] @ _per_group(states, groups)).squeeze(-2)
    decay *= grads  # gradient of h_{t-1} through the decay
    carry = decay[0].clone()
    decay[0] *= initial
    decay[1:] *= states[:-1]  # now g_t exp(delta_t A) h_{t-1}, the gradient of delta_t A
    ddelta = along_B * u + (decay * A).sum(-1).permute(1, 2, 0)
    dA = torch.einsum("tbdn,bdt->dn", decay, delta)
    return along_B * delta, ddelta, dA, dB.permute(1, 2, 3, 0), dC.permute(1, 2, 3, 0), carry
