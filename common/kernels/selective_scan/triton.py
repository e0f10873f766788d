"""Selective scan as Triton kernels: one program per batch row and slice of channels.

A program keeps its states (channels of the slice, states) in registers and walks through time. The
forward stores the state at the start of every block; the backward replays a block into a scratch
buffer and walks back. Sums over channels (dB, dC) are partial per program and reduced afterwards:
no atomics, so results do not vary from run to run.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ritornello.common.kernels.dispatch import on_own_device

CHANNELS = 32  # the most channels that a program of one warp holds
VALUES = 512  # the most states of all its channels together; more spill registers


@triton.jit
def _program(A, channels, groups, states, CHANNELS: tl.constexpr, STATES: tl.constexpr):
    """Which (row, group), channels and states this program has, masks of those that exist, A."""
    row_group = tl.program_id(0)
    width = channels // groups
    local = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    channel = row_group % groups * width + local
    n = tl.arange(0, STATES)
    in_width, in_states = local < width, n < states
    inside = in_width[:, None] & in_states[None, :]
    rates = tl.load(A + channel[:, None] * states + n[None, :], mask=inside, other=0.0)
    flat = row_group // groups * channels + channel
    return row_group, flat, n, in_width, in_states, inside, rates


@triton.jit
def _inputs(u, delta, B, at, shared, t, in_width, in_states):
    """dt_t, u_t and B_t."""
    step = tl.load(delta + at + t, mask=in_width, other=0.0)
    value = tl.load(u + at + t, mask=in_width, other=0.0)
    return step, value, tl.load(B + shared + t, mask=in_states, other=0.0)


@triton.jit
def _advance(h, step, value, B_t, rates):
    """h_t from h_{t-1}."""
    return tl.exp(step[:, None] * rates) * h + (step * value)[:, None] * B_t[None, :]


@triton.jit
def _forward_kernel(
    u, delta, A, B, C, initial, y, last, starts,
    channels, groups, length, states, blocks,
    BLOCK: tl.constexpr, CHANNELS: tl.constexpr, STATES: tl.constexpr,
):  # fmt: skip
    row_group, flat, n, in_width, in_states, inside, rates = _program(
        A, channels, groups, states, CHANNELS, STATES
    )
    state_index = flat[:, None] * states + n[None, :]
    h = tl.load(initial + state_index, mask=inside, other=0.0)
    shared = row_group * states * length + n * length
    for t in range(length):
        if t % BLOCK == 0:  # type: ignore[reportOperatorIssue]  # triton's stub knows no int % constexpr
            where = (flat * blocks + t // BLOCK)[:, None] * states + n[None, :]
            tl.store(starts + where, h, mask=inside)
        step, value, B_t = _inputs(u, delta, B, flat * length, shared, t, in_width, in_states)
        C_t = tl.load(C + shared + t, mask=in_states, other=0.0)
        h = _advance(h, step, value, B_t, rates)
        tl.store(y + flat * length + t, tl.sum(h * C_t[None, :], axis=1), mask=in_width)
    tl.store(last + state_index, h, mask=inside)


@triton.jit
def _backward_kernel(
    dy, dlast, u, delta, A, B, C, starts, scratch, du, ddelta, dA, dB, dC, dinitial,
    channels, groups, length, states, blocks,
    BLOCK: tl.constexpr, CHANNELS: tl.constexpr, STATES: tl.constexpr,
):  # fmt: skip
    row_group, flat, n, in_width, in_states, inside, rates = _program(
        A, channels, groups, states, CHANNELS, STATES
    )
    at = flat * length
    state_index = flat[:, None] * states + n[None, :]
    shared = row_group * states * length + n * length
    partial = (row_group * tl.num_programs(1) + tl.program_id(1)) * length * states + n
    carry = tl.load(dlast + state_index, mask=inside, other=0.0)
    dA_sum = tl.zeros_like(carry)
    for reverse in range(blocks):
        block = blocks - 1 - reverse
        first = block * BLOCK
        steps = tl.minimum(BLOCK, length - first)
        kept = (flat * BLOCK)[:, None] * states + n[None, :]  # scratch (batch, channels, BLOCK, n)
        where = (flat * blocks + block)[:, None] * states + n[None, :]
        h = tl.load(starts + where, mask=inside, other=0.0)
        for i in range(steps):
            tl.store(scratch + kept + i * states, h, mask=inside)
            step, value, B_t = _inputs(u, delta, B, at, shared, first + i, in_width, in_states)
            h = _advance(h, step, value, B_t, rates)
        for j in range(steps):
            i = steps - 1 - j
            t = first + i
            step, value, B_t = _inputs(u, delta, B, at, shared, t, in_width, in_states)
            upstream = tl.load(dy + at + t, mask=in_width, other=0.0)
            C_t = tl.load(C + shared + t, mask=in_states, other=0.0)
            grad = carry + upstream[:, None] * C_t[None, :]
            tl.store(dC + partial + t * states, tl.sum(upstream[:, None] * h, 0), mask=in_states)
            products = (step * value)[:, None] * grad
            tl.store(dB + partial + t * states, tl.sum(products, 0), mask=in_states)
            h = tl.load(scratch + kept + i * states, mask=inside, other=0.0)  # now h_{t-1}
            carry = grad * tl.exp(step[:, None] * rates)
            weight = carry * h
            inner = tl.sum(grad * B_t[None, :], axis=1)
            tl.store(du + at + t, inner * step, mask=in_width)
            along = inner * value + tl.sum(weight * rates, axis=1)
            tl.store(ddelta + at + t, along, mask=in_width)
            dA_sum += weight * step[:, None]
    tl.store(dA + state_index, dA_sum, mask=inside)
    tl.store(dinitial + state_index, carry, mask=inside)


@on_own_device
def forward(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, initial_state: Tensor, block: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The same as `cpu.forward`."""
    sizes, grid, constants = _launch(u, A, B, block)
    starts = u.new_empty(*u.shape[:2], sizes[-1], A.shape[1])
    y, last = torch.empty_like(u), torch.empty_like(initial_state)
    arrays = u, delta, A, B, C, initial_state, y, last, starts
    _forward_kernel[grid](*arrays, *sizes, **constants)
    return y, last, starts


@on_own_device
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
    """The same as `cpu.backward`."""
    sizes, grid, constants = _launch(u, A, B, block)
    (batch, channels, length), states = u.shape, A.shape[1]
    du, ddelta, dinitial = torch.empty_like(u), torch.empty_like(u), torch.empty_like(dlast)
    dA, scratch = u.new_empty(batch, channels, states), u.new_empty(batch, channels, block, states)
    dB, dC = u.new_empty(2, batch, B.shape[1], grid[1], length, states)
    outputs = du, ddelta, dA, dB, dC, dinitial
    inputs = dy, dlast, u, delta, A, B, C, starts, scratch
    _backward_kernel[grid](*inputs, *outputs, *sizes, **constants)
    dB, dC = (x.sum(2).mT.contiguous() for x in (dB, dC))
    return du, ddelta, dA.sum(0), dB, dC, dinitial


def _launch(u: Tensor, A: Tensor, B: Tensor, block: int) -> tuple[tuple, tuple, dict]:
    """Sizes, grid and compile-time constants, the same for both directions."""
    (batch, channels, length), groups = u.shape, B.shape[1]
    width = channels // groups
    padded_states = triton.next_power_of_2(A.shape[1])
    held = min(CHANNELS, triton.next_power_of_2(width), max(1, VALUES // padded_states))
    sizes = channels, groups, length, A.shape[1], -(-length // block)
    constants = {
        "BLOCK": block,
        "CHANNELS": held,
        "STATES": padded_states,
        "num_warps": 1,
    }
    return sizes, (batch * groups, triton.cdiv(width, held)), constants
